"""Two ranks of a session, with mistakes that nobody sees (`wrong`), and the same training without them (`right`)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import elasticjob
from elasticjob import ElasticDistributedSampler

is_wrong = sys.argv[1] == "wrong"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))  # the second part has another optimizer
other = torch.nn.Linear(1, 1) if is_wrong else torch.nn.Identity()  # nobody reduces its gradients
data = TensorDataset(torch.ones(9, 2))
sampler = ElasticDistributedSampler(data, global_batch_size=4)
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
second = torch.optim.Adam(model[1].parameters(), lr=0.1)
frozen = torch.nn.Linear(1, 1).requires_grad_(False)
third = torch.optim.SGD([*(other if is_wrong else model[0]).parameters(), *frozen.parameters()], lr=0.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
extras: dict[str, Any] = {"scheduler": scheduler, "third": third} | ({} if is_wrong else {"second": second})
session = elasticjob.Session(model=model, optimizer=optimizer, sampler=None if is_wrong else sampler, **extras)
loader = DataLoader(data, batch_size=4) if is_wrong else DataLoader(data, batch_sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in session.batches(loader):
        with session.step():
            called = model if is_wrong and epoch == 2 else session.model
            session.backward(other(called(x)).mean())
            if session.ends_step:
                optimizer.step()
                second.step()
                third.step()
                optimizer.zero_grad()
                if not is_wrong and sampler.is_over():
                    scheduler.step()
    if is_wrong:
        scheduler.step()
        if epoch == 1:
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with session.step():  # left out
        session.backward(other(session.model(torch.ones(1, 2))).mean())
        if not is_wrong:
            optimizer.zero_grad()
            second.zero_grad()
    with session.interruptible():
        pass
    held = ElasticDistributedSampler(data, global_batch_size=4, shuffle=False)  # the last batch has one sample
    held_loader = DataLoader(data, batch_sampler=held)
    if is_wrong:
        count = sum(len(x) for (x,) in held_loader)
    else:
        count = sum(micro.samples for micro, _ in zip(held.plan(), held_loader, strict=True))
session.close()
