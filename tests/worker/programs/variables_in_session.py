"""As variables.py, in one process that goes through all worlds."""

import time

import torch
from variables import write

import elasticjob

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = elasticjob.Session(model=model, optimizer=optimizer)
while True:
    with session.step():
        session.model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        write()
    time.sleep(0.05)
