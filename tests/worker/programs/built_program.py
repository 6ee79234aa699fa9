"""A session whose `build` lets torch reduce the gradients: DDP or `replicate`. Each rank prints a norm.

With FSDP1, what the session says of it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elasticjob import Session
from elasticjob.errors import ConfigurationError


def wrap(kind: str, model: torch.nn.Module) -> torch.nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "part":
        return torch.nn.Sequential(DistributedDataParallel(model))
    if kind == "replicate":
        from torch.distributed._composable.replicate import replicate

        replicate(model)
        return model
    from torch.distributed.fsdp import FullyShardedDataParallel

    apart = kind == "fsdp1 by name"
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=apart)


def build(_: Any) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = wrap(sys.argv[1], torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


torch.set_num_threads(1)
try:
    session = Session(build=build)
except ConfigurationError as error:
    print(json.dumps({"check": "refused", "result": str(error)}), flush=True)
    dist.destroy_process_group()
    sys.exit()
for number in range(3):
    with session.step():
        torch.manual_seed(10 * number + session.rank)
        session.backward(session.model(torch.randn(2, 4)).square().mean())
        session.optimizer.step()
        session.optimizer.zero_grad()
state = session.model.state_dict()
print(json.dumps({"check": "norm", "result": sum(float(one.double().norm()) for one in state.values())}), flush=True)
dist.barrier()
session.close()
