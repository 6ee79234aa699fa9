"""What changes in a step before its optimizers, and is taken back with a broken step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from elasticjob.sessions.early import Early


class Coin:
    """An object with a state that is no module."""

    def __init__(self) -> None:
        self.tossed = 0

    def state_dict(self) -> dict[str, int]:
        return {"tossed": self.tossed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.tossed = state["tossed"]


class Things:
    """A model with a frozen half, a module beside it, and a coin."""

    def __init__(self) -> None:
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
        self.frozen: Any = self.model[1].requires_grad_(False)
        self.beside: Any = torch.nn.BatchNorm1d(1)
        self.coin = Coin()
        self.early = Early(self.model, [self.beside, self.coin])

    def read(self) -> list[float]:
        with torch.no_grad():
            tensors = (self.frozen.weight, self.beside.running_mean, self.beside.weight)
            return [*(round(float(one), 6) for one in tensors), self.coin.tossed]


def follow(things: Things) -> None:
    with torch.no_grad():
        things.frozen.weight.add_(1)


def follow_by_data(things: Things) -> None:
    things.frozen.weight.data = things.frozen.weight.data + 1


def follow_in_place_by_data(things: Things) -> None:
    """What torch does not count, in the same memory."""
    things.frozen.weight.data.add_(1)


def replace(things: Things) -> None:
    things.frozen.weight = torch.nn.Parameter(things.frozen.weight + 1, requires_grad=False)


def count(things: Things) -> None:
    things.beside.train()
    things.beside(torch.tensor([[1.0], [2.0]]))


def toss(things: Things) -> None:
    things.coin.tossed += 1


CHANGES = [follow, follow_by_data, follow_in_place_by_data, replace, count, toss]


def make_step(things: Things, change: Callable[[Any], None]) -> None:
    things.early.begin()
    things.early.begin_pass()
    change(things)
    things.early.look()
    things.early.forget()


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_early_in_the_first_step_is_taken_back_in_later_ones(change: Callable[[Any], None]) -> None:
    things = Things()
    make_step(things, change)
    before = things.read()
    things.early.begin()
    change(things)
    assert things.read() != before
    assert things.early.take_back()
    assert things.read() == before


@pytest.mark.parametrize("change", [one for one in CHANGES if one is not toss])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_first_change_cannot_be_taken_back_and_is_seen(change: Callable[[Any], None], steps: int) -> None:
    things = Things()
    for _ in range(steps):
        make_step(things, lambda _: None)
    things.early.begin()
    change(things)
    assert not things.early.take_back()


def test_what_changes_with_the_optimizers_is_left_to_them() -> None:
    things = Things()
    make_step(things, lambda _: None)
    things.early.begin()
    things.early.look()
    follow(things)
    toss(things)
    assert things.early.take_back()
    assert things.coin.tossed == 1


def put_back(things: Things) -> None:
    """In a pass the weight was another one."""
    weight = things.model[0].weight
    intact = weight.data.clone()
    weight.data.add_(1)
    things.early.begin_pass()
    weight.data.copy_(intact)


def test_a_trained_weight_that_is_another_one_in_a_pass_is_taken_back() -> None:
    things = Things()
    make_step(things, put_back)
    weight = things.model[0].weight
    before = weight.tolist()
    things.early.begin()
    weight.data.add_(1)
    assert things.early.take_back()
    assert weight.tolist() == before


def test_what_an_optimizer_with_a_closure_changes_is_left_to_it() -> None:
    things = Things()
    for _ in range(2):
        things.early.begin()
        things.early.begin_applying()
        with torch.no_grad():
            things.model[0].weight.add_(1)
        things.early.begin_pass()
        follow(things)
        things.early.look()
    before = things.read()
    things.early.begin()
    things.early.begin_applying()
    with torch.no_grad():
        things.model[0].weight.add_(1)
    follow(things)
    assert things.early.take_back()
    assert things.read() == before


@pytest.mark.parametrize(("steps", "is_known"), [(10, False), (60, True)])
def test_what_begins_to_change_in_a_later_epoch_is_found_out(steps: int, is_known: bool) -> None:
    things = Things()
    for _ in range(steps):
        make_step(things, lambda _: None)
    things.early.look_again()
    make_step(things, follow_by_data)
    things.early.begin()
    follow_by_data(things)
    assert things.early.take_back() == is_known


def test_a_parameter_that_is_gone_and_comes_again_tears_its_step_and_not_the_next_one() -> None:
    things = Things()
    make_step(things, follow)
    weight = things.frozen.weight
    things.early.begin()
    things.frozen.weight = None
    things.early.look()
    things.early.forget()
    make_step(things, lambda _: None)  # without it
    things.frozen.weight = weight
    things.early.begin()
    follow(things)
    assert things.early.take_back()


def test_what_torch_does_not_count_is_known_by_its_memory() -> None:
    things = Things()
    with torch.inference_mode():
        things.beside.running_mean = torch.zeros(1)
    make_step(things, lambda _: None)
    things.early.begin()
    assert things.early.take_back()
    things.early.begin()
    things.beside.running_mean = torch.ones(1)
    assert not things.early.take_back()
