"""A session with short epochs, and what all ranks do together between two of them: an evaluation, and a schedule."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from backends import choose  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, TensorDataset

from elasticjob import ElasticDistributedSampler, Session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epoch-steps", type=int, default=1)
    parser.add_argument("--interruptible", action="store_true", help="put the evaluation into such a block")
    parser.add_argument("--linger", type=Path, help="rank 0 of three lingers in their third step until this exists")
    parser.add_argument("--direct", action="store_true", help="read the loader without the session")
    parser.add_argument("--other", action="store_true", help="read a loader with a sampler of its own from epoch 3 on")
    parser.add_argument("--from-zero", action="store_true", help="begin the loop with epoch 0, wherever the others are")
    parser.add_argument("--again", choices=["after", "beside"], help="create a second session, and where")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    data = TensorDataset(torch.randn(12 * args.epoch_steps, 4))
    sampler = ElasticDistributedSampler(data, global_batch_size=12)
    loader = DataLoader(data, batch_sampler=sampler)
    descriptor = os.open(args.out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    session = Session(model=model, optimizer=optimizer, sampler=sampler, backend=choose(), scheduler=scheduler)

    def note(**line: object) -> None:
        place = {"rank": session.rank, "world": session.world_size, "generation": session.generation}
        line |= {"t": time.time(), "step": session.committed, "epoch": epoch, "pid": os.getpid()}
        os.write(descriptor, (json.dumps({**place, **line}) + "\n").encode())

    def evaluate() -> torch.Tensor:
        both = torch.tensor([1.0, float(epoch)])
        if session.world_size > 1:
            dist.all_reduce(both)
        return both

    def note_evaluation(both: torch.Tensor) -> None:
        count, epochs = both.tolist()
        note(ranks=count, epochs=epochs / count)

    entered = (-1, -1)  # the last step before the present world, and its number
    for epoch in range(0 if args.from_zero else sampler.epoch, 10_000):
        if args.other and epoch == 3:
            loader = DataLoader(data, batch_sampler=ElasticDistributedSampler(data, global_batch_size=12))
        sampler.set_epoch(epoch)
        made = 0
        for (x,) in loader if args.direct else session.batches(loader):
            with session.step():
                session.backward(session.model(x).square().mean())
                entered = (session.committed, session.regroups) if entered[1] != session.regroups else entered
                is_third = session.committed == entered[0] + 2  # in the first two, the ranks compare their settings
                if args.linger is not None and session.rank == 0 and session.world_size == 3 and is_third:
                    note(lingers=True)
                    while not args.linger.exists():
                        time.sleep(0.02)
                optimizer.step()
                optimizer.zero_grad()
            made += 1
            note()
            time.sleep(0.02)
        if args.interruptible:
            with session.interruptible() as block:
                found = evaluate()
            if block.is_whole:
                note_evaluation(found)
        else:
            note_evaluation(evaluate())
        scheduler.step()
        note(made=made, rate=optimizer.param_groups[0]["lr"])
        if args.again and epoch == 2:
            if args.again == "after":
                session.close()
            session = Session(model=model, optimizer=optimizer, sampler=sampler)


if __name__ == "__main__":
    main()
