"""Schedulers of a step that a loss breaks off: taken back with it, or stepped for it. Without processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from elasticjob.sessions.schedules import StepSchedules

Optimizer = torch.optim.Optimizer
KINDS: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda one: schedulers.StepLR(one, 2, 0.5),
    "multi-step": lambda one: schedulers.MultiStepLR(one, [2, 4]),
    "linear": lambda one: schedulers.LinearLR(one, total_iters=5),
    "exponential": lambda one: schedulers.ExponentialLR(one, 0.9),
    "lambda": lambda one: schedulers.LambdaLR(one, lambda step: 1 / (step + 1)),
    "multiplicative": lambda one: schedulers.MultiplicativeLR(one, lambda _: 0.9),
    "cosine": lambda one: schedulers.CosineAnnealingLR(one, 8),
    "warm restarts": lambda one: schedulers.CosineAnnealingWarmRestarts(one, 3),
    "cyclic": lambda one: schedulers.CyclicLR(one, 0.01, 0.1, step_size_up=3, cycle_momentum=True),
    "one cycle": lambda one: schedulers.OneCycleLR(one, 0.2, total_steps=12),
    "sequential": lambda one: schedulers.SequentialLR(
        one, [schedulers.ConstantLR(one), schedulers.ExponentialLR(one, 0.9)], milestones=[3]
    ),
    "chained": lambda one: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(one), schedulers.ExponentialLR(one, 0.9)]
    ),
    "plateau": lambda one: schedulers.ReduceLROnPlateau(one, patience=0),
}


class Training:
    """A scheduler, with or without a session's care."""

    def __init__(self, kind: str, in_tensor: bool) -> None:
        parameter = torch.nn.Parameter(torch.ones(2))
        rate = torch.tensor(0.1) if in_tensor else 0.1
        self.optimizer = torch.optim.SGD([parameter], lr=rate, momentum=0.9, foreach=False)
        self.scheduler = KINDS[kind](self.optimizer)
        self.kept = StepSchedules([self.scheduler, object()])
        parameter.grad = torch.zeros(2)
        self.optimizer.step()

    def step(self) -> None:
        self.scheduler.step(*([1.0] if isinstance(self.scheduler, schedulers.ReduceLROnPlateau) else []))

    def make(self, steps: int) -> None:
        for _ in range(steps):
            self.kept.keep([self.optimizer])
            self.step()
            self.kept.note_step()
            self.kept.forget()

    def read(self) -> list[float]:
        """The learning rate and the momentum after each of the next steps."""
        found = []
        for _ in range(4):
            found += [float(self.optimizer.param_groups[0][name]) for name in ("lr", "momentum")]
            self.step()
        return found


@pytest.mark.parametrize("in_tensor", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scheduler_is_taken_back_with_its_step(kind: str, in_tensor: bool) -> None:
    broken, whole = Training(kind, in_tensor), Training(kind, in_tensor)
    broken.make(3)
    whole.make(3)
    broken.kept.keep([broken.optimizer])
    broken.step()
    broken.kept.take_back()
    assert broken.read() == whole.read()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plateau"])
def test_a_scheduler_to_which_the_script_has_not_come_makes_the_step(kind: str) -> None:
    broken, whole = Training(kind, False), Training(kind, False)
    broken.make(2)
    whole.make(3)
    broken.kept.keep([broken.optimizer])
    broken.kept.catch_up()
    assert broken.read() == whole.read()


def test_a_scheduler_of_a_step_that_counts_stays_what_it_is() -> None:
    """A loss may come between two steps."""
    whole = Training("step", False)
    whole.make(3)
    before = whole.scheduler.state_dict()
    whole.kept.take_back()
    assert whole.scheduler.state_dict() == before


def test_a_scheduler_that_does_not_make_each_step_is_left_alone() -> None:
    broken = Training("step", False)
    broken.make(2)
    for _ in range(2):
        broken.kept.keep([broken.optimizer])
        broken.kept.note_step()  # the script has left it out
    broken.kept.keep([broken.optimizer])
    before = broken.scheduler.last_epoch
    broken.kept.catch_up()
    assert broken.scheduler.last_epoch == before


def test_nor_is_one_that_has_made_it() -> None:
    broken = Training("step", False)
    broken.make(2)
    broken.kept.keep([broken.optimizer])
    broken.step()
    before = broken.scheduler.last_epoch
    broken.kept.catch_up()
    assert broken.scheduler.last_epoch == before


def test_settings_of_the_beginning_hold_in_a_block_only_also_where_it_fails() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedules = StepSchedules([])
    schedules.keep([optimizer])
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(MemoryError), schedules.before():
        assert optimizer.param_groups[0]["lr"] == 1.0
        raise MemoryError
    assert optimizer.param_groups[0]["lr"] == 0.5
