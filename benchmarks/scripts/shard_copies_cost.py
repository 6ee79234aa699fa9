"""What copies of shards cost a step: no copies, sent copies after every step and after every tenth, and HSDP.

    torchrun --nproc-per-node 4 benchmarks/scripts/shard_copies_cost.py --mib 100

Each rank counts as a pod. All variants train the same FSDP2 model in turns of some steps, so that the noise of the
machine meets all. HSDP keeps two live copies, and agrees on each step as a session does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from elasticjob.sessions.sharded.copies import ShardCopies

WIDTH, BATCH, TURN, TURNS = 1024, 128, 10, 6


class Variant:
    """One way to train the model."""

    def __init__(self, layers: int, every: int = 0, copies: int = 1) -> None:
        size = dist.get_world_size()
        shape, names = ((size,), ("shard",)) if copies == 1 else ((copies, size // copies), ("replicate", "shard"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if copies > 1:
            self.optimizer.register_step_pre_hook(lambda *_: dist.all_reduce(torch.zeros(1)))
        self.copies = ShardCopies(every) if every else None
        if self.copies is not None:
            self.copies.connect(True)
            self.copies.enter(dist.group.WORLD)
        self.done = 0
        self.copied: set[int] = set()

    def read(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self, x: torch.Tensor) -> None:
        torch.autograd.backward(self.model(x).square().mean())
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.copies is not None:
            self.copies.after_step(self.done, self.read)
            self.copied |= {*self.copies.steps}
        self.done += 1


def measure(run: Callable[[], None]) -> float:
    dist.barrier()
    began = time.monotonic()
    run()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=100, help="of parameters and optimizer state, in all")
    args = parser.parse_args()
    os.environ["LOCAL_WORLD_SIZE"] = "1"  # each rank is a pod
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    layers = max(1, round(args.mib * 2**20 / (3 * 4 * WIDTH * (WIDTH + 1))))  # AdamW: three numbers a parameter
    variants = {"none": Variant(layers), "every 1": Variant(layers, 1), "every 10": Variant(layers, 10)}
    if size % 2 == 0:
        variants["HSDP"] = Variant(layers, copies=2)
    x = torch.randn(BATCH, WIDTH)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(TURNS):
        for name, variant in variants.items():
            found = [measure(lambda: variant.step(x)) for _ in range(TURN)]  # noqa: B023
            if variant.copies is not None:
                variant.copies.finish()
            seconds[name] += found if turn else []
    mib = layers * 3 * 4 * WIDTH * (WIDTH + 1) / 2**20
    if dist.get_rank() == 0:
        for name, found in seconds.items():
            mean = statistics.mean(found)
            line = {"copies": name, "ranks": size, "MiB": round(mib), "stepSeconds": round(mean, 4)}
            line |= {"ratio": round(mean / statistics.mean(seconds["none"]), 3)}
            line |= {"copied": f"{len(variants[name].copied)} of {variants[name].done} steps"}
            print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
