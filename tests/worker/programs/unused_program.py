"""Two ranks of a session train a model with a parameter that no pass uses, without and with DDP's option for it."""

from __future__ import annotations

import sys
from typing import Any

import torch

import elasticjob
from elasticjob.errors import ConfigurationError
from worker.programs.saying import say


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.used(x)
        return found.sum()


torch.manual_seed(0)
options: dict[str, Any] = {"ddp": {"find_unused_parameters": True}} if sys.argv[1] == "with" else {}
model = Model()
before = model.used.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = elasticjob.Session(model=model, optimizer=optimizer, **options)
error = ""
try:
    for _ in range(2):
        with session.step():
            session.backward(session.model(torch.full((1, 2), float(session.rank + 1))))
            optimizer.step()
            optimizer.zero_grad()
except (ConfigurationError, RuntimeError) as said:
    error = str(said)
say("error", error)
say("unchanged", torch.equal(before, model.used.weight))
say("weight", model.used.weight.flatten().tolist())
session.close()
