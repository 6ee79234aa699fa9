"""Two ranks of a session whose script adds a layer to the model after two steps."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import elasticjob
from elasticjob import ElasticDistributedSampler
from elasticjob.errors import ConfigurationError
from worker.programs.saying import say

torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
model = torch.nn.Sequential(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = ElasticDistributedSampler(data, global_batch_size=4, virtual_ranks=2 if sys.argv[1] == "virtual" else None)
options: dict[str, Any] = {"ddp": {"find_unused_parameters": True}} if sys.argv[1] == "unused" else {}
session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler, **options)
error = ""
try:
    for x, y in session.batches(DataLoader(data, batch_sampler=sampler)):
        if session.committed == 1 and len(model) == 1:
            added = torch.nn.Linear(2, 2)
            model.append(added)
            torch.nn.init.eye_(added.weight)
            torch.nn.init.zeros_(added.bias)  # random numbers differ between ranks in virtual ranks
            optimizer.add_param_group({"params": list(added.parameters())})
        with session.step():
            session.backward(torch.nn.functional.mse_loss(session.model(x), y))
            optimizer.step()
            optimizer.zero_grad()
except ConfigurationError as said:
    error = str(said)
say("error", error)
say("weights", [parameter.flatten().tolist() for parameter in model.parameters()])
say("steps", session.committed + 1)
