"""Mistakes in scripts of Horovod, and what it is easy to get wrong, in two ranks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch

import elasticjob.compat.horovod as hvd


def say(check: str, result: Any) -> None:
    print(json.dumps({"check": check, "result": result}), flush=True)


def refused(check: str, call: Callable[[], Any]) -> None:
    try:
        result = call()
    except (ValueError, AttributeError) as error:
        say(check, str(error))
    else:
        say(check, f"not refused: {result}")


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def backward(net: torch.nn.Module) -> None:
    torch.autograd.backward(net(torch.ones(1, 2) * (hvd.rank() + 1)).sum())


def parameters_of(net: torch.nn.Module) -> list[float]:
    return [round(one, 5) for parameter in net.parameters() for one in parameter.flatten().tolist()]


refused("too early", hvd.rank)
refused("comm", lambda: hvd.init(comm=[0, 1]))
hvd.init()
hvd.init()
refused("process set", lambda: hvd.allreduce(torch.ones(1), process_set=object()))
refused("both", lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum))
refused("adasum", lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum))
refused("root", lambda: hvd.broadcast(torch.ones(1), root_rank=2))
refused("gather of a scalar", lambda: hvd.allgather(torch.tensor(1.0)))
refused("gather of others", lambda: hvd.allgather(torch.ones(1, 1 + hvd.rank())))
refused("unknown", lambda: hvd.alltoall)
refused("unknown, later", lambda: hvd.alltoall_async)
refused("never heard of", lambda: hvd.jump)
refused("other models", lambda: hvd.broadcast_parameters(torch.nn.Linear(2, 2 + hvd.rank()).state_dict()))
refused("no folder", lambda: hvd.elastic.TorchState(epoch=0))

net, plain = make()
refused("no passes", lambda: hvd.DistributedOptimizer(plain, backward_passes_per_step=0))
refused("divided sum", lambda: hvd.DistributedOptimizer(plain, op=hvd.Sum, gradient_predivide_factor=2.0))
refused("a name missing", lambda: hvd.DistributedOptimizer(plain, list(net.named_parameters())[:1]))
refused("a name twice", lambda: hvd.DistributedOptimizer(plain, [("a", one) for one in net.parameters()]))
refused("parameters only", lambda: hvd.DistributedOptimizer(plain, net.parameters()))  # type: ignore[arg-type]

# Created before it is wrapped, the scheduler has put a `step` of its own into the optimizer.
net, plain = make()
scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
say("is one", isinstance(optimizer, torch.optim.SGD))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for _ in range(2):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
        scheduler.step()
say("scheduled before", [parameters_of(net), optimizer.param_groups[0]["lr"]])

net, plain = make()
optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
backward(net)
refused("cleared too early", optimizer.zero_grad)
refused("a second pass", lambda: backward(net))
optimizer.synchronize()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer.step()
say("averaged twice", [str(one.message) for one in caught])

# The ranks find their gradients in different orders, and in buckets of one parameter each.
hvd.optimizer.BUCKET_BYTES = 1
parts = [torch.nn.Parameter(torch.zeros(size)) for size in (3, 5, 7, 2)]
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parts, lr=1.0))
for one in parts if hvd.rank() else reversed(parts):
    torch.autograd.backward(one.sum() * (hvd.rank() + 1) * len(one))
optimizer.step()
say("any order", [one.tolist()[0] for one in parts])

table = torch.nn.Embedding(4, 2, sparse=True)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters())
refused("sparse", lambda: torch.autograd.backward(table(torch.tensor([1])).sum()))
hvd.shutdown()
say("left", hvd.is_initialized())
hvd.shutdown()
