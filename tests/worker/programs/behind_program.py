"""Ranks of a session whose script changes something that the session keeps outside of any block, as `HOW` says.

It waits before step `HOLD` of the first world until `OUT/told` is there. In step `LOST_STEP` of the first world, rank 1
dies in the block.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from elasticjob import Checkpointer, ElasticDistributedSampler, Session

EPOCHS, SAMPLES, BATCH = 3, 12, 4
HOW = os.environ["HOW"]
HOLD, LOST_STEP = int(os.environ.get("HOLD", "-1")), int(os.environ.get("LOST_STEP", "-1"))
OUT = Path(os.environ["OUT"])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    data = torch.utils.data.TensorDataset(torch.arange(4.0 * SAMPLES).reshape(SAMPLES, 4) / 100)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    first = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = ElasticDistributedSampler(data, global_batch_size=BATCH)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    session = Session(model=model, optimizer=optimizer, sampler=sampler)

    def set_rate(rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate

    made = 0  # by this process
    scheduler = None
    if HOW == "weights":
        model.load_state_dict(first)
    if HOW == "tried":
        before = {name: one.clone() for name, one in model.state_dict().items()}
        model.load_state_dict(first)  # as a search for a learning rate does
        model.load_state_dict(before)
    if HOW == "scheduler":
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    if HOW == "barrier":
        dist.barrier()
    if HOW == "objects":
        names = [f"run of {os.getpid()}"]
        dist.broadcast_object_list(names, src=0)
    if HOW == "checkpointer":
        Checkpointer(OUT / "saved", model, optimizer, sampler=sampler)
    if HOW == "frozen":
        model[0].requires_grad_(False)
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        if HOW == "head" and epoch:
            set_rate(optimizer.param_groups[0]["lr"] * 0.5)
        if HOW == "frozen" and epoch == 1:
            model[0].requires_grad_(True)
        for (x,) in session.batches(loader):
            step = session.committed + 1
            while session.generation == 1 and step == HOLD and not (OUT / "told").exists():
                time.sleep(0.01)
            if HOW == "counter":
                set_rate(0.1 / (1 + made))
            with session.step():
                found = session.model(x).square().mean()
                if step == LOST_STEP and session.generation == 1 and session.rank == 1:
                    os._exit(9)
                session.backward(found)
                optimizer.step()
                optimizer.zero_grad()
            made += 1
            if scheduler is not None:
                scheduler.step()
            if session.committed == step:
                row: dict[str, object] = {
                    "step": step,
                    "rank": session.rank,
                    "rate": float(optimizer.param_groups[0]["lr"]),
                }
                row |= {"sum": float(sum(one.detach().double().sum() for one in model.parameters()))}
                row |= {"trains": [one.requires_grad for one in model.parameters()]}
                with (OUT / f"{os.getpid()}.jsonl").open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
            if HOW == "behind":
                set_rate(optimizer.param_groups[0]["lr"] * 0.9)
    session.close()


if __name__ == "__main__":
    main()
