"""What a session takes back of a broken step, without processes."""

from __future__ import annotations

from typing import Any

import torch

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
