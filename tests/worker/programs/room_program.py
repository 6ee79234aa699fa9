"""Takes a snapshot in memory of each step, beside a loader with workers. Its argument: MiB of the state."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = tempfile.mkdtemp(dir="/dev/shm")  # as an agent makes one
os.environ["ELASTICJOB_MEMORY"] = MEMORY
import elasticjob  # noqa: E402 - it is looked for at the import

BATCHES, SNAPSHOTS = 12, 2


class Images(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, item: int) -> torch.Tensor:
        return torch.full((1 << 18,), float(item))  # 1 MiB


def main() -> None:
    elasticjob.init()
    model = nn.Linear(1 << 10, int(sys.argv[1]) << 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = elasticjob.Checkpointer(tempfile.mkdtemp(), model, optimizer, memory_every=1)

    def train(step: int) -> None:
        model(torch.ones(1, 1 << 10)).mean().backward()
        optimizer.step()
        if checkpoint.should_save(step):
            checkpoint.save(step)
            checkpoint.wait()

    for step in range(SNAPSHOTS):  # they are there first
        train(1 + step)
    for step, _ in enumerate(DataLoader(Images(), batch_size=2, num_workers=2, prefetch_factor=4), 1 + SNAPSHOTS):
        train(step)
        time.sleep(0.1)  # the workers fill all that they may
    held = sorted(path.stat().st_size >> 20 for path in Path(MEMORY).rglob("*.data"))
    sys.stdout.write(f"trained {step} steps beside snapshots of {held} MiB\n")


if __name__ == "__main__":
    main()
