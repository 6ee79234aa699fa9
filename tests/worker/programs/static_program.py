"""Two ranks accumulate the gradients of a static graph, in a session or without one; `static` or not."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import elasticjob
from elasticjob import ElasticDistributedSampler

is_session, is_static = sys.argv[1] == "session", sys.argv[2] == "static"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(12, 3))
sampler = ElasticDistributedSampler(data, global_batch_size=6, micro_batch_size=1)
loader = DataLoader(data, batch_sampler=sampler)
options = {"static_graph": True} if is_static else {}
if is_session:
    session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler, ddp=options)
    for (x,) in session.batches(loader):
        with session.step():
            session.backward(session.model(x).square().mean())
            if session.ends_step:
                optimizer.step()
                optimizer.zero_grad()
    session.close()
else:
    elasticjob.init()
    ddp = DistributedDataParallel(model, **options)  # type: ignore[arg-type]
    for micro, (x,) in sampler.steps(loader):
        with micro.sync(ddp):
            (ddp(x).square().mean() * micro.scale).backward()
        if micro.ends_step:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
weights = torch.cat([one.detach().flatten() for one in model.parameters()])
print(json.dumps({"check": "weights", "result": weights.tolist()}), flush=True)
