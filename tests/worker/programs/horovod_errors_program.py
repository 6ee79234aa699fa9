"""Mistakes in scripts of Horovod, and what it is easy to get wrong, in two ranks."""

from __future__ import annotations

import copy
import json
import pickle
import time
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

net, plain = make()
optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
backward(net)
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


def is_same(net: torch.nn.Module) -> bool:
    every = hvd.allgather_object(parameters_of(net))
    return bool(every[0] == every[1])


# What is trained changes after the optimizer was wrapped.
net, plain = make()
first, last = net.children()
first.requires_grad_(False)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
for step in range(4):
    first.requires_grad_(step >= 2)
    optimizer.zero_grad()
    backward(net)
    optimizer.step()
say("unfrozen later", is_same(net))

net, plain = make()
first, last = net.children()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(last.parameters(), lr=0.1), last.named_parameters())
for step in range(4):
    if step == 2:
        optimizer.add_param_group({"params": list(first.parameters())})
    optimizer.zero_grad()
    backward(net)
    optimizer.step()
say("added later", is_same(net))

# A later wrapper takes the place of an earlier one, around the same optimizer or another one.
net, plain = make()
optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
for given in (plain, optimizer, torch.optim.Adam(net.parameters())):
    optimizer = hvd.DistributedOptimizer(given, net.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
say("wrapped again", is_same(net))

# A gradient that is changed once it was sent would be lost.
net, plain = make()
optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
backward(net)
torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
refused("clipped too early", optimizer.step)

net, plain = make()
optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
backward(net)
net.zero_grad()
refused("cleared by the model", optimizer.step)


# A scaler changes gradients in a way that torch does not count.
net, plain = make()
optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
torch.autograd.backward(scaler.scale(net(torch.ones(1, 2) * (hvd.rank() + 1)).sum()))
refused("scaled too early", lambda: scaler.step(optimizer))

net, plain = make()
optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
torch.autograd.backward(scaler.scale(net(torch.ones(1, 2) * (hvd.rank() + 1)).sum()))
scaler.unscale_(optimizer)
refused("unscaled too early", lambda: scaler.step(optimizer))

trained = []
for scale in (1.0, 4.0):
    net, plain = make()
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(scaler.scale(net(torch.ones(1, 2) * (hvd.rank() + 1)).sum()))
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    trained.append(parameters_of(net))
say("scaled", [is_same(net), trained[0] == trained[1]])


# Gradients that a closure makes.
def train_with_closure(kind: Any) -> list[Any]:
    net, _ = make()
    optimizer = hvd.DistributedOptimizer(kind(net.parameters(), lr=0.01), net.named_parameters())

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(torch.ones(1, 2) * (hvd.rank() + 1)) - 1).square().sum()
        torch.autograd.backward(loss)
        return loss  # type: ignore[no-any-return]

    losses = [float(optimizer.step(compute)) for _ in range(3)]
    return [is_same(net), losses == sorted(losses, reverse=True), len(set(hvd.allgather_object(losses[0])))]


say("closure", train_with_closure(torch.optim.SGD))
say("closure, called often", train_with_closure(torch.optim.LBFGS))

# A state is loaded into an optimizer whose scheduler was created before, and which has hooks.
net, plain = make()
scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
steps: list[int] = []
optimizer.register_step_post_hook(lambda *_: steps.append(1))
optimizer.load_state_dict(optimizer.state_dict())
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    optimizer.step()
    scheduler.step()
say("scheduled before, loaded", [optimizer.param_groups[0]["lr"], len(steps)])

refused("copied", lambda: copy.deepcopy(optimizer))
refused("pickled", lambda: pickle.dumps(optimizer))
optimizer.set_backward_passes_per_step(2)
for _ in range(2):
    backward(net)
optimizer.step()
refused("too few passes", lambda: optimizer.set_backward_passes_per_step(0))

if hvd.rank():
    time.sleep(0.5)
handle = hvd.allreduce_async_(torch.ones(1))
say("done", [hvd.poll(handle), bool(hvd.synchronize(handle)), hvd.poll(handle)][hvd.rank() :])
handles = hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], op=hvd.Sum)
say("grouped later", [one.tolist() for one in hvd.synchronize(handles)])
both = [torch.ones(1), torch.ones(2)]
hvd.synchronize(hvd.grouped_allreduce_async_(both, op=hvd.Sum))
say("grouped later, in place", [one.tolist() for one in both])
hvd.shutdown()
say("left", hvd.is_initialized())
hvd.shutdown()
