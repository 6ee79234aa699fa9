"""Ranks of a session unfreeze a part of a model whose gradients PowerSGD compresses; each prints the parameters."""

from __future__ import annotations

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

import elasticjob
from elasticjob import Session
from worker.programs.saying import say


def compress(session: Session) -> None:
    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3)
    session.model.register_comm_hook(state, power.powerSGD_hook)


torch.set_num_threads(1)
torch.manual_seed(0)
first = torch.nn.Linear(64, 64)
layers = [first, torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)]
model = torch.nn.Sequential(*layers)
first.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = elasticjob.Session(model=model, optimizer=optimizer, on_world=compress)
for number in range(12):
    if number == 6:
        say("before", first.weight.double().norm().item())
        first.requires_grad_(True)
    with session.step():
        torch.manual_seed(2 * number + session.rank)
        session.backward(session.model(torch.randn(4, 64)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
say("after", first.weight.double().norm().item())
say("parameters", [one.double().sum().item() for one in model.parameters()])
session.close()
