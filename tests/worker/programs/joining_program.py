"""Rank 1 joins rank 0, whose script has changed the model, the optimizer or the schedule since it began."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from elasticjob.errors import ConfigurationError
from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState
from worker.programs.saying import say

dist.init_process_group("gloo")
RANK = dist.get_rank()


def make(rate: Any = None) -> tuple[Memory, torch.nn.Sequential, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    extras = {} if rate is None else {"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, rate)}
    memory = Memory(ReplicatedModelState(model, optimizer, (lambda *_: None, lambda *_: None)), None, extras)
    memory.committed = 7 if RANK == 0 else -1
    return memory, model, optimizer


def agree(memory: Memory) -> str:
    try:
        memory.agree(dist.group.WORLD)
    except ConfigurationError as error:
        return str(error)
    except ValueError as error:
        return f"torch: {error}"
    return ""


memory, model, _ = make()
model.requires_grad_(RANK == 0)
say("trainable", [agree(memory), [parameter.requires_grad for parameter in model.parameters()]])
total = 10 * (RANK + 1)
say("schedule of the world", agree(make(lambda step: max(0.0, 1 - step / total))[0]))
say("schedule", agree(make(lambda step: [1.0, 0.5, 0.1][step])[0]))
memory, model, optimizer = make()
if RANK == 0:
    optimizer.add_param_group({"params": model[0].parameters()})
say("groups", agree(memory))
