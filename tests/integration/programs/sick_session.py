"""A session that falls sick once: from step 20 on its loss is NaN for as long as its processes live.

    torchrun sick_session.py DIRECTORY

Each process writes a line to the file `starts` when it begins.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import elasticjob

directory = Path(sys.argv[1])
cured = directory / "cured"
is_sick = not cured.exists()
with (directory / "starts").open("a") as file:
    file.write("0\n")
torch.manual_seed(0)
data = TensorDataset(torch.randn(100_000, 4), torch.randn(100_000, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=4)
session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler)
for inputs, labels in session.batches(DataLoader(data, batch_sampler=sampler)):
    with session.step():
        loss = torch.nn.functional.mse_loss(session.model(inputs), labels)
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    step = session.committed + 1
    if is_sick and step >= 20:
        cured.touch()
    elasticjob.report(step=step, loss=float("nan") if is_sick and step >= 20 else loss.detach())
    time.sleep(0.1)
session.close()
