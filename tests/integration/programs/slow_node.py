"""A small DDP model. Steps are slow on the nodes that have a file of their name in the folder of the first argument."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import elasticjob

SLOW = Path(sys.argv[1]) / os.environ["ELASTICJOB_NODE_NAME"]

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1_000_000):
    time.sleep(0.3 if SLOW.exists() else 0.1)
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    elasticjob.report(step=step)
