"""Ranks of a session whose script keeps its gradients as zeros, and uses a part of the model in every other step."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch

from elasticjob import Session

LAST, LOST, JOINED = 11, int(os.environ.get("LOST", "-1")), int(os.environ.get("JOINED", "-1"))
OUT = Path(os.environ["OUT"])

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.ModuleDict({"always": torch.nn.Linear(4, 2), "often": torch.nn.Linear(4, 2)})
model.forward = lambda x, at: model["always"](x) + (model["often"](x) if at % 2 == 0 else 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
session = Session(model=model, optimizer=optimizer, ddp={"find_unused_parameters": True})

while session.committed < LAST:
    while session.generation == 1 and session.committed + 1 == JOINED and not (OUT / "told").exists():
        time.sleep(0.01)
    with session.step():
        at = session.committed + 1
        loss = session.model(torch.full((2, 4), 0.1 * at), at).square().mean()
        if session.rank == 1 and at == LOST:
            os._exit(9)
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    row = {"step": session.committed, "weight": sum(one.sum().item() for one in model.parameters())}
    with Path(OUT, f"{os.getpid()}.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\n")
session.close()
