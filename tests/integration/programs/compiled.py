"""Trains a small model in stages, each of which compiles other code: OUT STAGES [ALONE]

Every rank appends what it does to OUT/said.jsonl: `begins` before the first call of a stage's compiled code, and
`trains` after each of its steps. The state is kept after each step, so a worker that was killed compiles again what it
had not used. At the end, rank 0 trains the same without a compiler, and says how much the weights differ (`ends`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS = 3  # of a stage
PARTS = 2  # of a batch, which the ranks share: what is compiled has the same shapes in a world of one


def build() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


def find_loss(stage: int) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    """Other code in each stage: no cache has it from the stage before."""

    def loss(net: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        out = net(rows)
        for _ in range(stage % 3 + 1):
            out = torch.tanh(out * (1.0 + stage / 10)) + torch.sin(out) / (stage + 2)
        found: torch.Tensor = (out.softmax(-1) * rows).pow(2).mean()
        return found

    return loss


def make_batch(stage: int, step: int) -> torch.Tensor:
    return torch.randn(8 * PARTS, 8, generator=torch.Generator().manual_seed(100 * stage + step))


def train_plainly(stages: int) -> nn.Module:
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for stage in range(stages):
        for step in range(STEPS):
            optimizer.zero_grad()
            find_loss(stage)(net, make_batch(stage, step)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return net


def main() -> None:
    out, stages = Path(sys.argv[1]), int(sys.argv[2])
    alone = sys.argv[3:] == ["ALONE"]
    torch.set_num_threads(1)
    if alone:
        os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    descriptor = os.open(out / "said.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(event: str, **more: object) -> None:
        line = {"event": event, "rank": rank, "pid": os.getpid(), "t": time.time(), **more}
        os.write(descriptor, (json.dumps(line) + "\n").encode())

    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    done, kept = 0, out / ("alone.pt" if alone else "state.pt")
    if kept.exists():
        state = torch.load(kept)
        done = state.pop("done")
        net.load_state_dict(state)
    sizes = [0] * world  # each rank has to begin where the others do
    dist.all_gather_object(sizes, done)
    if len(set(sizes)) > 1:
        raise SystemExit(f"ranks begin at different steps: {sizes}")
    compiled: dict[int, Callable[..., torch.Tensor]] = {}
    for number in range(done, stages * STEPS):
        stage, step = divmod(number, STEPS)
        if stage not in compiled:
            compiled[stage] = torch.compile(find_loss(stage))
            say("begins", stage=stage)
        optimizer.zero_grad()
        for part in make_batch(stage, step).chunk(PARTS)[rank::world]:
            compiled[stage](net, part).backward()  # type: ignore[no-untyped-call]
        for parameter in net.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= PARTS
        optimizer.step()
        say("trains", stage=stage, step=step)
        if rank == 0:
            torch.save({**net.state_dict(), "done": number + 1}, kept.with_suffix(".tmp"))
            kept.with_suffix(".tmp").rename(kept)
        dist.barrier()
    if rank == 0:
        from torch._dynamo.utils import counters

        pairs = zip(net.parameters(), train_plainly(stages).parameters(), strict=True)
        counted = {
            name.removeprefix("fxgraph_cache_"): n for name, n in counters["inductor"].items() if "cache" in name
        }
        say("ends", differs=max(float((a - b).abs().max()) for a, b in pairs), cache=counted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
