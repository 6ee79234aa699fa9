"""The cost of virtual ranks: a step with them, and a step of plain accumulation (DDP) with the same micro batches.

In each world both sides take turns of some steps in the same processes, so that the noise of the machine meets both.
`CPU` is the CPU time of rank 0, which a busy machine disturbs less than seconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import elasticjob
from benchmarks import harness, plots
from elasticjob.data.virtual_plan import Micro

VIRTUAL_RANKS, MICRO_BATCH = 8, 8
COUNTED = 5  # steps of a turn that are counted
Times = dict[str, list[float]]


def make_model(width: int = 32) -> nn.Module:
    """A CNN with batch norm and dropout for images of 32 x 32; of 0.4 million parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 8 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * width, 10))


class Plain:
    """Gradients are accumulated, and exchanged by DDP in the last pass of a step."""

    def __init__(self, turns: int) -> None:
        torch.manual_seed(0)
        module = make_model()
        self.model = nn.parallel.DistributedDataParallel(module) if dist.get_world_size() > 1 else module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        self._turns = turns

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        for turn in range(self._turns):
            micro = Micro(0, MICRO_BATCH, 1 / self._turns, ends_step=turn == self._turns - 1)
            with micro.sync(self.model):
                torch.autograd.backward(nn.functional.cross_entropy(self.model(x), y) * micro.scale)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Virtual:
    """The same with virtual ranks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        batch = VIRTUAL_RANKS * MICRO_BATCH
        self._sampler = elasticjob.ElasticDistributedSampler(
            batch * 1_000_000, global_batch_size=batch, virtual_ranks=VIRTUAL_RANKS, shuffle=False
        )
        self._ranks = elasticjob.VirtualRanks(self.model, self._sampler)
        self._turns = self._sampler.steps(iter(lambda: 0, 1))

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        for micro, _ in self._turns:
            with self._ranks.turn(micro):
                self._ranks.backward(nn.functional.cross_entropy(self.model(x), y))
            if micro.ends_step:
                break
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(repeats: int) -> Times:
    """Seconds and CPU seconds of each side's steps, a few in turns. The first of a turn finds the other's caches."""
    x, y = torch.randn(MICRO_BATCH, 3, 32, 32), torch.randint(10, (MICRO_BATCH,))
    sides: dict[str, Plain | Virtual] = {"plain": Plain(VIRTUAL_RANKS // dist.get_world_size()), "virtual": Virtual()}
    found: Times = {f"{name} {unit}": [] for name in sides for unit in ("seconds", "CPU")}
    for turn in range(-(-repeats // COUNTED) + 1):
        for name, side in sides.items() if turn % 2 else reversed(sides.items()):
            for number in range(COUNTED + 1):
                dist.barrier()
                began, cpu = time.perf_counter(), time.process_time()
                side.step(x, y)
                if turn and number:  # the first turn allocates
                    found[f"{name} seconds"].append(time.perf_counter() - began)
                    found[f"{name} CPU"].append(time.process_time() - cpu)
    return found


def train(steps: int) -> Times:
    """The losses of a small model's global batches, with virtual ranks and without."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps * 32, 3, 32, 32, generator=generator)
    y = x.mean((2, 3)).argmax(1)
    found: Times = {"virtual": [], "plain": []}
    for name, losses in found.items():
        torch.manual_seed(0)
        model: nn.Module = make_model(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        virtual = VIRTUAL_RANKS if name == "virtual" else None
        sampler = elasticjob.ElasticDistributedSampler(len(x), global_batch_size=32, virtual_ranks=virtual)
        ranks = elasticjob.VirtualRanks(model, sampler) if virtual else None
        if ranks is None and dist.get_world_size() > 1:
            model = nn.parallel.DistributedDataParallel(model)
        total = torch.zeros(())
        for micro, indices in sampler.steps(list(sampler)):
            with ranks.turn(micro) if ranks else micro.sync(model):
                loss = nn.functional.cross_entropy(model(x[indices]), y[indices])
                total += loss.detach() * micro.scale / (1 if ranks else dist.get_world_size())
                torch.autograd.backward(loss * micro.scale)
            if micro.ends_step:
                optimizer.step()
                optimizer.zero_grad()
                dist.all_reduce(total)
                losses.append(total.item())
                total = torch.zeros(())
    return found


def draw(path: Path, steps: int) -> None:
    """How far the losses of other worlds are from those of a world of one, by step."""
    curves: dict[str, list[tuple[float, float]]] = {}
    alone = run_world(1, partial(train, steps))
    for size in (2, 4):
        found = run_world(size, partial(train, steps))
        for name, label in (("plain", "DDP"), ("virtual", "virtual ranks")):
            pairs = enumerate(zip(found[name], alone[name], strict=True))
            curves[f"{label}, world of {size}"] = [(step + 1, abs(one - other)) for step, (one, other) in pairs]
    plots.draw_lines(path, curves, "step", "difference of the loss from that in a world of 1", log=False)


def run_world(size: int, measure_in_rank: Callable[[], Times]) -> Times:
    """Fork a world of this size, and return what rank 0 measured."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "times.json")
        fork = multiprocessing.get_context("fork")  # torch is imported once
        ranks = [fork.Process(target=_run_rank, args=(n, size, store.port, measure_in_rank, path)) for n in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise RuntimeError(f"a rank of a world of {size} failed")
        found: Times = json.loads(path.read_text())
        return found


def _run_rank(rank: int, size: int, port: int, measure_in_rank: Callable[[], Times], path: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": str(size)}
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    found = measure_in_rank()
    if rank == 0:
        path.write_text(json.dumps(found))
    dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> None:
    options = harness.parse_options("curve", __doc__ or "", argv, budgets=(60, 300), repeats=(10, 40))
    report = harness.Report("curve", options.out)
    draw(options.out / "same-curve.png", 20 if options.quick else 100)
    for size in (1, 2, 4):
        if not options.has_time():
            harness.say("the time is over: what follows is left out (--budget)")
            return
        found = run_world(size, partial(measure, options.repeats))
        for unit in ("seconds", "CPU"):
            case = f"a step in a world of {size}" + (" (CPU seconds of a rank)" if unit == "CPU" else "")
            peer = "plain accumulation with DDP"
            report.add(harness.Result("curve", case, found[f"virtual {unit}"], peer, found[f"plain {unit}"]))


if __name__ == "__main__":
    main()
