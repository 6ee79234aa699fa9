"""What a session takes back of a broken step, without processes."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState


def ignore(*_: Any) -> None:
    pass


def test_a_broken_step_is_repeated_with_its_gradient_scaler() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    memory = Memory(ReplicatedModelState(model, optimizer, (ignore, ignore)), None, {"scaler": scaler})
    memory.begin()
    memory.take_back(1, True, False)  # broken before the scaler was used

    def compute() -> None:
        memory.begin()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)

    compute()
    before, weight = scaler.state_dict(), model.weight.detach().clone()
    memory.take_back(1, True, False)
    assert scaler.state_dict() == before
    compute()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, weight - 0.5), "the gradient of one pass, unscaled once"


def make_memory(**extras: Any) -> tuple[Memory, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Memory(ReplicatedModelState(model, optimizer, (ignore, ignore)), None, extras), optimizer


def test_no_step_is_counted_when_torch_fills_the_state_of_an_optimizer() -> None:
    """torch's `get_optimizer_state_dict` steps an optimizer without state, with zeros, and does so again for SGD."""
    calls: list[str] = []
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hooks = (lambda *_: calls.append("before"), lambda *_: calls.append("after"))
    ReplicatedModelState(model, optimizer, hooks)
    get_optimizer_state_dict(model, optimizer)
    assert not calls
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert calls == ["before", "after"]


def test_a_step_of_a_warm_up_with_a_rate_of_zero_counts() -> None:
    calls: list[str] = []
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    ReplicatedModelState(model, optimizer, (ignore, lambda *_: calls.append("after")))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert calls == ["after"]
