"""The learning rates of a session: those of all ranks are the same, and belong to the step that was made last.

torch keeps no function in the state of a LambdaLR. A joiner makes its own, for example from `len(loader)`, which is
another number in another world: ranks with different learning rates train different models. So the values of these
functions are compared, at some steps.

A loss breaks the block of a step off anywhere. If the step is taken back, so are its schedulers, wherever in the block
they step, and so are the settings of its optimizers, such as a rate that the script lowers itself. If the optimizer has
applied it, the step counts, though the script did not come to a scheduler after it: one that makes each step makes this
one too. One that follows a value of the lost world does not.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_STEPS = (1, 2, 5, 10, 50, 100, 1_000, 10_000, 100_000)

DIFFERENT = (
    "the functions of a scheduler (LambdaLR) give other learning rates here than on the ranks that train already: they"
    " must not depend on the world, as len(loader) does with a micro_batch_size. The steps of an epoch are"
    " math.ceil(len(dataset) / global_batch_size) in a world of any size."
)


def evaluate(extras: Iterable[Any]) -> list[float | None]:
    """The values of all functions of the schedulers among these, and of those that they consist of; None: an error."""
    found: list[float | None] = []
    for extra in extras:
        parts = getattr(extra, "_schedulers", ())
        found += evaluate(parts) if isinstance(parts, (list, tuple)) else []
        functions = getattr(extra, "lr_lambdas", ())
        found += [_call(function, step) for function in functions for step in _STEPS]
    return found


def _call(function: Callable[[int], Any], step: int) -> float | None:
    try:
        return float(function(step))
    except Exception:
        return None


class Settings:
    """Those of one group of an optimizer's parameters, as they are now. Loading a state makes other groups of them."""

    def __init__(self, optimizer: torch.optim.Optimizer, number: int) -> None:
        self.optimizer, self.number = optimizer, number
        self._values = _copy(_without_parameters(optimizer.param_groups[number]))

    def find_changed(self) -> list[str]:
        """The names of those that the group has not any more."""
        group = self.optimizer.param_groups[self.number]
        return [name for name, value in self._values.items() if not _are_equal(value, group.get(name))]

    def apply(self) -> None:
        """Let the group have them again."""
        group = self.optimizer.param_groups[self.number]
        for name, value in self._values.items():
            if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                group[name].copy_(value)  # some optimizers, and those that are compiled, know the tensor itself
            else:
                group[name] = value


class StepSchedules:
    """The schedulers among some objects, and the settings of these optimizers: as they were before a step."""

    def __init__(self, extras: Iterable[Any]) -> None:
        self._schedulers = [one for one in extras if isinstance(one, LRScheduler)]
        self.has_any = bool(self._schedulers)
        self._states: list[dict[str, Any]] = []
        self._counts: list[int] = []  # how often each had stepped
        self._settings: list[Settings] = []
        self._is_broken = False
        self._steps_always: list[bool | None] = [None] * len(self._schedulers)  # once in each step; None: no step yet

    def keep(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """What changes from here on goes back with the next step, if that is broken."""
        self._states = [_copy(one.state_dict()) for one in self._schedulers]
        self._counts = list(map(_count, self._schedulers))
        self._settings = [Settings(one, number) for one in optimizers for number in range(len(one.param_groups))]
        self._is_broken = False

    def note_step(self) -> None:
        """The script's block has come to its end."""
        for index, made in enumerate(self._count_steps()):
            self._steps_always[index] = self._steps_always[index] is not False and made == 1

    def catch_up(self) -> None:
        """The step counts, and the script's block was broken off after the optimizer."""
        for scheduler, always, made in zip(self._schedulers, self._steps_always, self._count_steps(), strict=True):
            if always and made == 0 and not isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step()

    def make_again(self) -> None:
        """What the script has done counts, but some values of a lost world were wrong: take back what has followed one.
        The other schedulers step as often as they have.
        """
        steps = list(zip(self._schedulers, self._count_steps(), strict=True))
        if any(made and isinstance(one, ReduceLROnPlateau) for one, made in steps):
            self._restore()
            for one, made in steps:
                for _ in range(0 if isinstance(one, ReduceLROnPlateau) else made):
                    one.step()

    def take_back(self) -> None:
        """The step is taken back."""
        self._restore()
        self._is_broken = True

    def take_back_again(self) -> None:
        """The script is about to begin a broken step again: what it has done behind the block belonged to that step."""
        if self._is_broken:
            self._restore()
            self.forget()

    def _restore(self) -> None:
        for scheduler, state in zip(self._schedulers, self._states, strict=bool(self._states)):
            scheduler.load_state_dict(_copy(state))
        for one in self._settings:
            one.apply()

    @contextlib.contextmanager
    def before(self) -> Iterator[None]:
        """In this block, the settings of the optimizers are those of the beginning of the step."""
        now = [Settings(one.optimizer, one.number) for one in self._settings]
        for one in self._settings:
            one.apply()
        try:
            yield
        finally:
            for one in now:
                one.apply()

    @property
    def is_kept(self) -> bool:
        """Whether there is a beginning to go back to."""
        return bool(self._settings)

    def forget(self) -> None:
        """The step is over."""
        self._states, self._counts, self._settings, self._is_broken = [], [], [], False

    def _count_steps(self) -> list[int]:
        """How often each has stepped in this step."""
        counts = self._counts or list(map(_count, self._schedulers))
        return [_count(one) - before for one, before in zip(self._schedulers, counts, strict=True)]


def _count(scheduler: Any) -> int:
    parts = getattr(scheduler, "_schedulers", ())
    if parts and not hasattr(scheduler, "last_epoch"):  # a chain of others, which step together
        return _count(parts[0])
    return int(scheduler.last_epoch)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    """A deep copy, in little time for what most schedulers have."""
    plain = (int, float, str, type(None))
    return {name: value if isinstance(value, plain) else _copy_tensor(value) for name, value in state.items()}


def _copy_tensor(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
