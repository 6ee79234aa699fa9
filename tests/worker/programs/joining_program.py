"""Rank 1 joins rank 0, whose script has changed the model, the optimizer or the schedule since it began."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from elasticjob.errors import ConfigurationError
from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState
from elasticjob.torchcompat import groups
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
    except (ValueError, RuntimeError) as error:
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
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.3})
say("groups", [agree(memory), [[len(group["params"]), group["lr"]] for group in optimizer.param_groups]])
memory, model, optimizer = make()
if RANK == 0:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
say("a group of a stranger", agree(memory))
memory, model, optimizer = make()
if RANK == 0:
    optimizer.param_groups[0]["params"].extend(model[0].parameters())
say("another group", agree(memory))


class Observed(torch.nn.Module):
    """The first pass, which a joiner has not made, gives its buffers their shapes."""

    low: torch.Tensor
    high: torch.Tensor | None
    rows: torch.Tensor
    cache: torch.Tensor

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, width)
        self.register_buffer("low", torch.empty(0))
        self.register_buffer("high", None)
        self.register_buffer("rows", torch.zeros(1, 2))
        self.register_buffer("cache", None, persistent=False)

    def look(self) -> None:
        self.low = torch.full((2,), -1.0)
        self.high = torch.full((2,), 1.0)
        self.rows = torch.cat([self.rows, torch.ones(2, 2)])
        self.cache = torch.full((3,), 2.0)


def make_memory(model: torch.nn.Module, **extras: Any) -> Memory:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = Memory(ReplicatedModelState(model, optimizer, (lambda *_: None, lambda *_: None)), None, extras)
    made.committed = 7 if RANK == 0 else -1
    return made


observed, average = Observed(), Observed()
if RANK == 0:
    observed.look()
    average.look()
memory = make_memory(observed, average=average)
found = agree(memory)
shapes = [None if one is None else list(one.shape) for one in (observed.low, observed.high, average.rows)]
say("shapes of buffers", [found, shapes])
say("a buffer that is not saved", None if observed.cache is None else observed.cache.tolist())
say("shapes of parameters", agree(make_memory(Observed(width=2 - RANK))))
more = Observed()
memory = make_memory(more)
if RANK == 0:
    more.adapter = torch.nn.Linear(2, 1)
say("parameters that are added", agree(memory))
groups.destroy_groups()  # a thread of gloo's that frees its last tensors when the interpreter ends would abort it
