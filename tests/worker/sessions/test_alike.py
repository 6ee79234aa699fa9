"""Which settings of optimizers are the same on all ranks, and what a joiner's script has changed. Without processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from elasticjob.sessions.alike import Entered, is_due, judge, summarize

NAMES = ("lr", "betas", "eps", "amsgrad", "mode", "other")


def group(**changed: Any) -> dict[str, Any]:
    return {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "mode": "a", "other": object()} | changed


def row(*groups: Mapping[str, Any], was_there: bool = True) -> list[int]:
    return [int(was_there), *summarize(groups, NAMES)]


def test_steps_that_are_compared() -> None:
    assert [step for step in range(1, 3000) if is_due(step)] == [2**power for power in range(12)]
    assert is_due(3 * 1024) and not is_due(3 * 1024 + 1)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"lr": 0.01 * (1 + 1e-15)}, ""),
        ({"lr": torch.tensor(0.01)}, ""),
        ({"params": [1]}, ""),
        ({"other": object()}, ""),
        ({"lr": 0.0099}, "('lr')"),
        ({"lr": 1e-5}, "('lr')"),
        ({"lr": 0.0}, "('lr')"),
        ({"lr": float("nan")}, "('lr')"),
        ({"betas": (0.999, 0.9)}, "(others than 'lr')"),
        ({"eps": -1e-8}, "(others than 'lr')"),
        ({"amsgrad": True}, "(others than 'lr')"),
        ({"mode": "b", "lr": 1.0}, "('lr' and others than 'lr')"),
    ],
)
def test_what_differs(changed: Mapping[str, Any], told: str) -> None:
    found = judge([row(group()), row(group(**changed))], 1)
    assert (told in found) if told else not found, found


def test_a_rate_that_sinks_to_nothing_is_nothing_on_all_processors() -> None:
    assert not judge([row(group(lr=0.0)), row(group(lr=6e-19))], 1)


def test_rates_of_two_groups_that_are_exchanged_differ() -> None:
    one, other = group(lr=0.1), group(lr=0.2)
    assert "'lr'" in judge([row(one, other), row(other, one)], 1)


@pytest.mark.parametrize(
    ("were_there", "wrong"),
    [((True, False, False), [1]), ((False, True, False), [0, 2]), ((False, False, False), [1])],
)
def test_those_that_train_longer_are_right(were_there: Sequence[bool], wrong: list[int]) -> None:
    rates = (0.1, 0.2, 0.1)
    rows = [row(group(lr=rate), was_there=one) for rate, one in zip(rates, were_there, strict=True)]
    assert [rank for rank in range(3) if judge(rows, rank)] == wrong


Change = Callable[[torch.nn.Module, torch.optim.Optimizer], object]


@pytest.mark.parametrize(
    ("change", "names", "changed"),
    [
        (lambda model, optimizer: model.eval(), [], ""),
        (lambda model, optimizer: model.load_state_dict(model.state_dict()), [], ""),
        (lambda model, optimizer: optimizer.param_groups[0].update(lr=0.5), ["lr"], ""),
        (lambda model, optimizer: optimizer.param_groups[0].update(lr=0.1), [], ""),
        (lambda model, optimizer: optimizer.param_groups[0]["rate"].mul_(2), ["rate"], ""),
        (lambda model, optimizer: model.weight.requires_grad_(False), ["requires_grad"], ""),
        (lambda model, optimizer: model.weight.data.add_(1), [], "weight"),
    ],
)
def test_what_a_joiner_has_changed_since_it_has_entered(change: Change, names: list[str], changed: str) -> None:
    for is_joiner in (False, True):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["rate"] = torch.tensor(1.0)
        entered = Entered([optimizer], dict(model.named_parameters()), is_joiner)
        change(model, optimizer)
        assert entered.put_back() == (names if is_joiner else [])
        assert entered.find_changed() == changed
        if is_joiner:
            assert model.weight.requires_grad
            assert (optimizer.param_groups[0]["lr"], float(optimizer.param_groups[0]["rate"])) == (0.1, 1.0)
