"""Ranks of a session train a model of which parts are unfrozen, and frozen, between two epochs."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import elasticjob
from elasticjob import ElasticDistributedSampler
from worker.programs.saying import say

torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = ElasticDistributedSampler(data, global_batch_size=8, virtual_ranks=4 if sys.argv[1] == "virtual" else None)
session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model[0].requires_grad_(epoch >= 1)
    model[2].requires_grad_(epoch <= 1)
    for x, y in session.batches(DataLoader(data, batch_sampler=sampler)):
        with session.step():
            session.backward(torch.nn.functional.mse_loss(session.model(x), y))
            if session.ends_step:
                optimizer.step()
                optimizer.zero_grad()
    say(f"{epoch}", [parameter.flatten().tolist() for parameter in model.parameters()])
session.close()
