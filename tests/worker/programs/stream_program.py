"""A session of a stream, in a loop that counts its epochs itself: three of four batches each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from elasticjob import Session
from worker.programs.backends import choose

EPOCHS, BATCHES = 3, 4
OUT = Path(os.environ["OUT"])


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(BATCHES):
            yield torch.randn(6, 4)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model=model, optimizer=optimizer, backend=choose())
    loader = torch.utils.data.DataLoader(Stream(), batch_size=None)
    for _ in range(EPOCHS):
        for x in session.batches(loader):
            while session.committed == 5 and session.generation == 1 and not (OUT / "told").exists():
                time.sleep(0.01)
            with session.step():
                session.backward(session.model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            with (OUT / f"{os.getpid()}.jsonl").open("a") as lines:
                row = {"step": session.committed, "rank": session.rank, "generation": session.generation}
                lines.write(json.dumps(row) + "\n")
    session.close()


if __name__ == "__main__":
    main()
