"""What a snapshot in memory costs a step: `python benchmarks/scripts/snapshot_cost.py [--mb 10 100 500]`.

One process trains with steps of about 100 ms, and takes a snapshot of each. One JSON line for each size: medians, in
milliseconds, of the time that training waits (in `should_save`, `save` and `optimizer.step()`), of the time until the
snapshot is complete, of a plain copy of the same bytes, and of `torch.save` to the same file system.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

import elasticjob

STEP_SECONDS = 0.1


def compute(seconds: float) -> None:
    """Work of one thread, like a forward and a backward pass."""
    left, until = torch.ones(256, 256), time.perf_counter() + seconds
    while time.perf_counter() < until:
        left = torch.mm(left, left).clamp(0, 1)


def measure(megabytes: int, steps: int, folder: Path) -> dict[str, Any]:
    """One size. Half of the state is parameters, half the optimizer's."""
    numbers = megabytes * 2**20 // 8
    model = torch.nn.ParameterList([torch.ones(numbers // 8) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    marks: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: marks.append(time.perf_counter()))
    checkpoint = elasticjob.Checkpointer(folder / "files", model, optimizer, memory_every=1)
    optimizer.register_step_pre_hook(lambda *_: marks.append(time.perf_counter()))
    waits, whole, copies, saves = [], [], [], []
    for step in range(1, steps + 1):
        compute(STEP_SECONDS)
        for parameter in model:
            parameter.grad = torch.zeros_like(parameter)
        marks.clear()
        optimizer.step()
        began = time.perf_counter()
        taken = checkpoint.should_save(step)
        if taken:
            checkpoint.save(step)
        waits.append(marks[1] - marks[0] + time.perf_counter() - began)
        if step % 4 == 0 and taken:
            checkpoint.wait()
            whole.append(time.perf_counter() - began)
    source = torch.ones(megabytes * 2**20, dtype=torch.uint8)
    target = source.clone()
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source)
        copies.append(time.perf_counter() - began)
        began = time.perf_counter()
        torch.save([model.state_dict(), optimizer.state_dict()], folder / "saved.pt")
        saves.append(time.perf_counter() - began)
    found = {"waits": waits[3:], "untilComplete": whole[1:], "copy": copies, "torchSave": saves}
    return {"mb": megabytes} | {name: round(1000 * statistics.median(one), 1) for name, one in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, nargs="*", default=[10, 100, 500])
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["ELASTICJOB_MEMORY"] = folder
        store = FileStore(f"{folder}/store", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        for megabytes in args.mb:
            print(json.dumps(measure(megabytes, args.steps, Path(folder) / str(megabytes))), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
