"""Ranks of a session whose script changes a trained weight for some passes, and puts it back: attacks, averages.

`HOW` says how, and rank 1 dies in step or block `LOST` while the weight is another one. The changes begin in step
`FROM`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from elasticjob import Session

LAST, LOST, FROM = 9, int(os.environ.get("LOST", "-1")), int(os.environ.get("FROM", "0"))
HOW = os.environ["HOW"]

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = Session(model=model, optimizer=optimizer)
weight = model.weight


def change() -> Callable[[], None]:
    """Another weight, until what is returned is called; or another rate, for good."""
    if HOW == "rate":
        for group in optimizer.param_groups:
            group["lr"] *= 0.8
        return lambda: None
    intact = weight.data.clone()
    if HOW == "counted":
        with torch.no_grad():
            weight.add_(0.5)
    else:
        weight.data.add_(0.5)

    def put_back() -> None:
        if HOW == "assigned":
            weight.data = intact
        elif HOW == "counted":
            with torch.no_grad():
                weight.copy_(intact)
        else:
            weight.data.copy_(intact)

    return put_back


def make_pass() -> torch.Tensor:
    found = session.model(torch.full((2, 4), 0.1 * at)).square().mean()
    if session.rank == 1 and at == LOST:
        os._exit(9)
    assert isinstance(found, torch.Tensor)
    return found


while session.committed < LAST:
    at = session.committed + 1
    with session.step():
        changes = HOW != "evaluation" and at >= FROM
        put_back = change() if changes else lambda: None
        session.backward(make_pass() if HOW != "evaluation" else session.model(torch.ones(2, 4)).square().mean())
        put_back()
        optimizer.step()
        optimizer.zero_grad()
    if HOW == "evaluation":
        with session.interruptible():
            put_back = change()
            with torch.no_grad():
                value = make_pass()
            if session.world_size > 1:
                dist.all_reduce(value)
            put_back()
    row = {"step": session.committed, "world": session.world_size, "weight": weight.sum().item()}
    with Path(os.environ["OUT"], f"{os.getpid()}.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\n")
session.close()
