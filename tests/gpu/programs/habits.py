"""One process of a session whose script uses the device in ways that no call in Python shows: SETTINGS["kind"].

`async`, `functional`, `stream`, `graph`: two optimizers, and what the second one needs is reduced by a collective that
was only begun, by a functional one, in a stream of the script's own, or by a CUDA graph that is replayed.
`capturable`: an optimizer that counts its steps on the device, in a stream of its own, with the rate in a tensor, and a
GradScaler; its metrics are copied to the host beside it.
`trail`: behind the optimizers, rank 0 sends a buffer, and a scheduler follows a value that is reduced.
`power`: DDP compresses the gradients by PowerSGD, whose state remembers what it has left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import elasticjob
from gpu.programs import train, training

DRY, device = train.DRY, train.device
SETTINGS: dict[str, Any] = train.SETTINGS
KIND: str = SETTINGS["kind"]
FAKE: Any = sys.modules.get("worker.fake_nccl")  # the model of NCCL


class Script:
    """The training of the other checks, with a factor of 1 that all ranks agree on."""

    def __init__(self) -> None:
        self.x, self.y = (one.to(device) for one in training.make_data(torch.float64))
        self.model: Any = training.make_model(SETTINGS.get("width", 256), torch.float64).to(device)
        layers: list[nn.Module] = list(self.model.children())
        parts = [self.model] if KIND == "capturable" else [nn.Sequential(*layers[:-1]), layers[-1]]
        self.optimizers = [self.make_optimizer(one) for one in parts]
        self.factor = torch.ones(1, dtype=torch.float64, device=device)
        self.side = None if DRY else torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph: Any = None
        self.follower: Any = None
        if KIND == "trail":
            layers[0].register_buffer("kept", torch.ones(1, dtype=torch.float64, device=device))
            self.follower = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizers[0], mode="max", patience=10**6)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
        self.metric = torch.zeros(1, dtype=torch.float64, pin_memory=not DRY)

    def make_optimizer(self, part: nn.Module) -> torch.optim.Optimizer:
        if KIND != "capturable":
            return training.make_optimizer(part)
        rate = torch.tensor(0.001, dtype=torch.float64, device=device)
        more: dict[str, Any] = {"foreach": False} if DRY else {"capturable": True, "fused": True}
        return torch.optim.Adam(part.parameters(), lr=rate, **more)

    def enter(self, run: elasticjob.Session) -> None:
        """A world begins: its graph has its communicators."""
        _, _, bits = (one.item() for one in training.describe(self.model))
        row = {"generation": run.generation, "rank": run.rank, "step": run.committed, "bits": bits}
        if self.follower is not None:
            row |= {"kept": self.model[0].kept.item(), "best": max(self.follower.best, 0.0)}
        train.say("world", **row)
        if KIND == "power":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            run.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        if KIND != "graph" or run.world_size == 1 or (DRY and FAKE is None):
            return
        self.graph = torch.cuda.CUDAGraph()
        if FAKE is not None:
            self.graph.capture_begin()
            dist.all_reduce(self.factor)
            self.graph.capture_end()
            return
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # NCCL's threads go on meanwhile
            dist.all_reduce(self.factor)

    def begin(self) -> Callable[[], torch.Tensor]:
        """Ask the others for the factor; what is returned gives it to the script's stream."""
        found = self.factor.fill_(1.0)
        if KIND == "functional":
            later = functional.all_reduce(found, "sum", cast("Any", dist.group.WORLD))
            return lambda: later + 0.0
        if KIND == "stream" and self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                dist.all_reduce(found)

            def join() -> torch.Tensor:
                torch.cuda.current_stream().wait_stream(cast("Any", self.side))
                return found

            return join
        if KIND == "graph" and self.graph is not None:

            def replay() -> torch.Tensor:
                self.graph.replay()
                return found

            return replay
        under_way: Any = dist.all_reduce(found, async_op=True)

        def wait() -> torch.Tensor:
            under_way.wait()
            return found

        return wait

    def apply(self, run: elasticjob.Session, loss: torch.Tensor) -> None:
        if KIND == "capturable":
            self.apply_aside(loss)
            return
        if KIND in ("trail", "power"):
            self.apply_and_follow(run)
            return
        get = self.begin() if run.world_size > 1 else lambda: self.factor.fill_(1.0)
        self.optimizers[0].step()
        train.pass_point("optimizer")
        factor = get() / run.world_size
        for one in self.model[-1].parameters():
            one.grad.mul_(factor)
        self.optimizers[1].step()

    def apply_and_follow(self, run: elasticjob.Session) -> None:
        """What follows the optimizers has the same value in each step."""
        self.optimizers[0].step()
        self.optimizers[1].step()
        train.pass_point("optimizer")
        if KIND == "power" or run.world_size == 1:
            return
        dist.broadcast(self.model[0].kept, src=0)
        value = torch.ones(1, dtype=torch.float64, device=device)
        dist.all_reduce(value)
        if FAKE is not None:
            FAKE.synchronize()
        self.follower.step(value.item() / run.world_size)

    def apply_aside(self, loss: torch.Tensor) -> None:
        """What reads the metric does so when the step is committed."""
        self.metric.copy_(loss.detach().reshape(1), non_blocking=True)
        if self.side is None:
            self.scaler.step(self.optimizers[0])
        else:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.scaler.step(self.optimizers[0])
            torch.cuda.current_stream().wait_stream(self.side)
        train.pass_point("optimizer")
        self.scaler.update()


def main() -> None:
    torch.set_num_threads(1)
    if not DRY:
        torch.cuda.set_device(device)
    script = Script()
    model, optimizers = script.model, script.optimizers
    more: dict[str, Any] = {"scaler": script.scaler} if KIND == "capturable" else {"second": optimizers[1]}
    more |= {"follower": script.follower} if KIND == "trail" else {}
    sampler = training.make_sampler()
    run = elasticjob.Session(
        model=model,
        optimizer=optimizers[0],
        sampler=sampler,
        backend=train.BACKEND,
        timeout=60.0,
        on_world=script.enter,
        **more,
    )
    steps, loader = train.Steps(), training.make_loader(sampler)
    for epoch in range(sampler.epoch, 10**6):
        sampler.set_epoch(epoch)
        for index in run.batches(loader):
            where, before, generation = index.to(device, non_blocking=True), run.committed, run.generation
            with run.step():
                loss = nn.functional.mse_loss(run.model(script.x[where]), script.y[where])
                train.pass_point("forward")
                run.backward(script.scaler.scale(loss) if KIND == "capturable" else loss)
                train.pass_point("backward")
                if run.ends_step:
                    script.apply(run, loss)
                    for one in optimizers:
                        one.zero_grad()
            if run.committed > before:
                values = training.describe(model)
                steps.queue(values, step=run.committed, generation=generation, rank=run.rank, world=run.world_size)
            steps.flush(wait=False)


if __name__ == "__main__":
    main()
