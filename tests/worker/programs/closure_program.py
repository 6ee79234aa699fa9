"""A session whose optimizer gets a closure, which drops the last gradients before it computes new ones.

With `DIES` the model has a frozen layer, too, and rank 1 dies in a closure.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch

from elasticjob import Session
from worker import fake_nccl

JOINED, LAST = 4, 9

torch.set_num_threads(1)
torch.manual_seed(1)
model: torch.nn.Module = torch.nn.Linear(4, 2)
if "DIES" in os.environ:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4).requires_grad_(False), model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = Session(model=model, optimizer=optimizer, backend=fake_nccl.choose())
folder = Path(os.environ["OUT"])


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    if "SKIPS" in os.environ and session.rank == 1 and session.committed == JOINED:
        return torch.zeros(())
    loss = session.model(torch.full((2, 4), 0.1 * session.committed)).square().mean()
    if "DIES" in os.environ and session.rank == 1 and session.committed == JOINED:
        os._exit(9)
    session.backward(loss)
    assert isinstance(loss, torch.Tensor)
    return loss


while session.committed < LAST:
    while (
        "SKIPS" not in os.environ
        and "DIES" not in os.environ
        and session.committed == JOINED
        and session.generation == 1
        and not Path(folder, "told").exists()
    ):
        time.sleep(0.01)
    with session.step():
        optimizer.step(closure)
    row = {"step": session.committed, "world": session.world_size, "weight": list(model.parameters())[-2].sum().item()}
    with Path(folder, f"{os.getpid()}.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\n")
session.close()
