"""Stages of a pipeline in a session, of which each rank has another: named apart, or alike; cut over two ranks, or not.

Each rank prints how far it came.
"""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from elasticjob import Session
from elasticjob.errors import ConfigurationError


def build(mesh: Any) -> tuple[Any, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    kind, stages = sys.argv[1], 2
    stage = dist.get_rank() * stages // dist.get_world_size()
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(stages)])
    name = str(stage) if kind != "alike" else "0"
    part: Any = torch.nn.Sequential(OrderedDict({name: model[stage]}))
    if kind == "cut":
        whole = init_device_mesh("cpu", (stages, dist.get_world_size() // stages), mesh_dim_names=("stage", "shard"))
        fully_shard(part, mesh=whole["shard"])
    return part, torch.optim.SGD(part.parameters(), lr=0.1)


try:
    Session(build=build)
    said = "begins"
except ConfigurationError as error:
    said = str(error)
print(json.dumps({"check": "said", "result": said}), flush=True)
os._exit(0)
