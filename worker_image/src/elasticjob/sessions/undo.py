"""What optimizers have changed in a step that is then broken, as it was before.

A GAN is an example: the discriminator has stepped, and the loss breaks the backward pass of the generator. All ranks
are there at the same time, so none would have the state of a complete step. What the script has done to other objects
of the session since then, such as a scheduler, is taken back with it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class _Before:
    optimizer: torch.optim.Optimizer
    parameters: list[torch.Tensor]
    state: dict[str, Any]


class Undo:
    """The optimizers that have begun to apply a part of the present step, each as it was before."""

    def __init__(self, others: Iterable[Any] = ()) -> None:
        """`others`: further objects with `state_dict` and `load_state_dict`."""
        self._others = list(others)
        self._before: list[_Before] = []
        self._states: list[Any] = []  # of the others
        self._is_complete = True

    @property
    def is_needed(self) -> bool:
        """Whether an optimizer has stepped, or begun to."""
        return bool(self._before) or not self._is_complete

    @torch.no_grad()
    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """This one is about to step."""
        if not self._before:
            self._states = [copy.deepcopy(one.state_dict()) for one in self._others]
        if not any(one.optimizer is optimizer for one in self._before):
            parameters = [one.detach().clone() for one in _read_parameters(optimizer)]
            self._before.append(_Before(optimizer, parameters, copy.deepcopy(optimizer.state_dict())))

    def skip(self, optimizer: torch.optim.Optimizer) -> None:
        """This one steps. Unless it was kept, the step cannot be taken back."""
        self._is_complete &= any(one.optimizer is optimizer for one in self._before)

    def forget(self) -> None:
        """The step is over."""
        self._before, self._states, self._is_complete = [], [], True

    @torch.no_grad()
    def take_back(self) -> bool:
        """Whether all is as it was before the step."""
        is_complete = self._is_complete
        for one in self._before if is_complete else ():
            for parameter, before in zip(_read_parameters(one.optimizer), one.parameters, strict=True):
                parameter.copy_(before)
            one.optimizer.load_state_dict(one.state)
        for other, state in zip(self._others, self._states, strict=True) if is_complete and self._before else ():
            other.load_state_dict(state)
        self.forget()
        return is_complete


def _read_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]
