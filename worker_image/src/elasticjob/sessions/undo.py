"""What optimizers have changed in a step that is then broken, as it was before.

A GAN is an example: the discriminator has stepped, and the loss breaks the backward pass of the generator. All ranks
are there at the same time, so none would have the state of a complete step. What the script has done to other objects
of the session since then, such as a scheduler, is taken back with it.

The copies use the same memory in each step: new memory costs several times what the copying does.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from elasticjob.collectives import skeletons
from elasticjob.torchcompat.optimizers import load_state


class _Before:
    """The parameters and the state of an optimizer, as they were."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._skeleton: Any = None
        self._tensors: list[torch.Tensor] = []

    def keep(self) -> None:
        tensors: list[torch.Tensor] = []
        skeleton = skeletons.split([self._parameters, self.optimizer.state_dict()], tensors)
        if list(skeletons.find_slots(self._skeleton)) == list(skeletons.find_slots(skeleton)):
            for kept, tensor in zip(self._tensors, tensors, strict=True):
                kept.copy_(tensor)
        else:
            self._tensors = [tensor.clone() for tensor in tensors]
        self._skeleton = copy.deepcopy(skeleton)

    def take_back(self) -> None:
        parameters, state = skeletons.join(self._skeleton, self._tensors)
        for parameter, before in zip(self._parameters, parameters, strict=True):
            parameter.copy_(before)
        load_state(self.optimizer, copy.deepcopy(state))  # which may use the tensors that it gets

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return [one for group in self.optimizer.param_groups for one in group["params"]]


class Undo:
    """The optimizers that have begun to apply a part of the present step, each as it was before."""

    def __init__(self, others: Iterable[Any] = ()) -> None:
        """`others`: further objects with `state_dict` and `load_state_dict`."""
        self._others = list(others)
        self._copies: list[_Before] = []  # of the last step, whose memory is used again
        self._before: list[_Before] = []  # of this step
        self._states: list[Any] | None = None  # of the others, if they are kept
        self._is_complete = True

    @property
    def is_needed(self) -> bool:
        """Whether an optimizer has stepped, or begun to, or one of the others may have changed."""
        return self._states is not None or not self._is_complete

    @torch.no_grad()
    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """This one is about to step."""
        self.keep_others()
        if not self._has(optimizer):
            before = next((one for one in self._copies if one.optimizer is optimizer), None)
            before = before or _Before(optimizer)
            before.keep()
            self._before.append(before)

    def keep_others(self) -> None:
        """One of the others is about to change, unless that has been kept in this step."""
        if self._states is None:
            self._states = [copy.deepcopy(one.state_dict()) for one in self._others]

    @contextlib.contextmanager
    def leaving_others(self) -> Iterator[None]:
        """After this block the others are as they were before it."""
        states = [copy.deepcopy(one.state_dict()) for one in self._others]
        try:
            yield
        finally:
            for other, state in zip(self._others, states, strict=True):
                load_state(other, state)

    def skip(self, optimizer: torch.optim.Optimizer) -> None:
        """This one steps. Unless it was kept, the step cannot be taken back."""
        self._is_complete &= self._has(optimizer)

    def forget(self) -> None:
        """The step is over."""
        self._copies, self._before, self._states, self._is_complete = self._before, [], None, True

    @torch.no_grad()
    def take_back(self) -> bool:
        """Whether all is as it was before the step."""
        is_complete = self._is_complete
        for one in self._before if is_complete else ():
            one.take_back()
        if is_complete and self._states is not None:
            for other, state in zip(self._others, self._states, strict=True):
                load_state(other, state)
        self.forget()
        return is_complete

    def _has(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(one.optimizer is optimizer for one in self._before)
