"""Ranks of a session accumulate two backward passes in one block, the first one without a reduction."""

from __future__ import annotations

import torch

import elasticjob
from elasticjob.torchcompat import groups
from worker.programs.saying import say

torch.manual_seed(0)
model = torch.nn.Linear(3, 2).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = elasticjob.Session(model=model, optimizer=optimizer)
data = torch.randn(2, 2, 4, 3, dtype=torch.float64)  # by pass and rank
entered = []
for _ in range(3):
    with session.step():
        first, last = data if session.world_size == 1 else data[:, session.rank]
        entered.append(groups.count_collectives() or 0)
        with session.model.no_sync():
            session.backward(session.model(first).square().mean() / 2)
        entered.append(groups.count_collectives() or 0)
        session.backward(session.model(last).square().mean() / 2)
        optimizer.step()
        optimizer.zero_grad()
say("weight", model.weight.flatten().tolist())
say("reduced", entered[-1] - entered[-2])
session.close()
