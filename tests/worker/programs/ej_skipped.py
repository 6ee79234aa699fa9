"""A session whose GradScaler skips one step: then only the scaler and the schedule tell that it was made."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from elasticjob import ElasticDistributedSampler, Session

SKIPPED = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--linger", type=Path, required=True, help="two ranks linger in that step until this exists")
    parser.add_argument("--reduce", action="store_true", help="and then use a collective, still inside of the block")
    args = parser.parse_args()
    from backends import choose  # type: ignore[import-not-found]

    args.out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
    data = TensorDataset(torch.randn(12 * 10_000, 4))
    sampler = ElasticDistributedSampler(data, global_batch_size=12)
    loader = DataLoader(data, batch_sampler=sampler)
    descriptor = os.open(args.out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    extras: dict[str, Any] = {"scheduler": scheduler, "scaler": scaler}
    session = Session(model=model, optimizer=optimizer, sampler=sampler, backend=choose(), **extras)

    def note(**line: object) -> None:
        place = {"t": time.time(), "rank": session.rank, "world": session.world_size, "generation": session.generation}
        os.write(descriptor, (json.dumps({**place, "step": session.committed, **line}) + "\n").encode())

    for (x,) in session.batches(loader):
        with session.step():
            loss = session.model(x).square().mean()
            session.backward(scaler.scale(loss * float("inf") if session.committed + 1 == SKIPPED else loss))
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if session.committed + 1 == SKIPPED and session.world_size == 2:
                note(lingers=True)
                while not args.linger.exists():
                    time.sleep(0.02)
                if args.reduce:
                    dist.all_reduce(torch.ones(1))
            optimizer.zero_grad()
        note(schedule=scheduler.last_epoch, scale=scaler.get_scale())
        time.sleep(0.02)


if __name__ == "__main__":
    main()
