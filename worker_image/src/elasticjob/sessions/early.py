"""What a script changes in a step before its optimizers do, as it was before: momentum encoders, old policies, noise.

These are the frozen parameters of a replicated model, and the other objects of a session. A step that a loss breaks is
made again, so they would change twice. Copies of all of them would cost memory and time in each step, and most never
change so early. So the first step of a process finds out which do, by digests, and only those are copied from then on.
One that begins to later is seen by torch's counter of changes, or by its memory. Without a copy a step is torn.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler

from elasticjob.collectives import skeletons
from elasticjob.torchcompat.optimizers import load_state
from elasticjob.torchcompat.versions import count_all_changes

Mark = tuple[int, int | None, int]  # of a tensor: its memory, its changes, and its digest or 0
_GONE = torch.empty(0)  # stands for a tensor that a script has deleted
_needs_gradients = operator.attrgetter("requires_grad")


class Place(NamedTuple):
    """Where a tensor is; a script may assign another one."""

    module: torch.nn.Module
    name: str
    first: torch.Tensor  # the one that was there when the places were listed
    held: Mapping[str, torch.Tensor | None]  # of the module: getattr would take much longer

    @property
    def key(self) -> tuple[int, str]:
        """The same for each list of the places."""
        return id(self.module), self.name


class Early:
    """The frozen parameters of a model and the other objects of one session. `begin` and `look` surround the passes."""

    def __init__(self, model: torch.nn.Module | None, others: Iterable[Any]) -> None:
        """`others`: objects with `state_dict` and `load_state_dict`. Optimizers and schedulers are left out."""
        self._model = model
        self._parameters: list[Place] | None = None  # of the model, listed once: that takes milliseconds
        self._firsts: list[torch.Tensor] = []  # of them
        self._trained: list[bool] = []  # which of them were when they were sorted
        self._is_sorted = False
        self._others: list[Place] = []
        self._still: list[Place] = []  # what is frozen, and has not changed early
        self._early: list[Place] = []  # what is frozen, and has
        self._modules: list[torch.nn.Module] = []
        self._objects: list[Any] = []
        for one in others:
            if isinstance(one, (torch.optim.Optimizer, LRScheduler)):
                continue
            (self._modules if isinstance(one, torch.nn.Module) else self._objects).append(one)
        self._is_known = False  # which change early
        self._moving: set[tuple[int, str]] = set()  # places, by the module's id
        self._drawn: set[int] = set()  # of the other objects, by their number
        # Of the present step: what is to be compared, what was copied, and the states of the other objects.
        self._marks: list[Mark] = []
        self._copies: list[tuple[Place, torch.Tensor, torch.Tensor]] = []
        self._states: Mapping[int, Any] = {}
        self._is_open = self._is_torn = False

    def begin(self) -> None:
        """A step begins."""
        self.forget()
        self._is_open = True
        self._sort()
        self._marks = self._mark()
        with torch.no_grad():
            found = zip(self._early, _read(self._early), strict=True)
            self._copies = [(place, tensor, tensor.clone()) for place, tensor in found if tensor is not _GONE]
        wanted = self._drawn if self._is_known else range(len(self._objects))
        self._states = {number: copy.deepcopy(self._objects[number].state_dict()) for number in wanted}

    def look(self) -> None:
        """The first optimizer of the step begins, or the step is broken: whatever has changed has changed early."""
        if not self._is_open:
            return
        self._is_open = False
        marks = self._mark()
        if marks != self._marks:
            pairs = zip(self._still, marks, self._marks, strict=True)
            self._moving.update(place.key for place, now, before in pairs if now != before)
            self._is_sorted = False
            self._is_torn = True
        if not self._is_known:
            for number, before in self._states.items():
                if _find_digest(before) != _find_digest(self._objects[number].state_dict()):
                    self._drawn.add(number)
            self._is_known = True

    def take_back(self) -> bool:
        """The step is broken. Whether all is as it was before."""
        self.look()
        is_whole = not self._is_torn
        with torch.no_grad():
            for place, tensor, before in self._copies:
                tensor.copy_(before)
                if place.held.get(place.name) is not tensor:
                    setattr(place.module, place.name, tensor)
        for number in self._drawn & self._states.keys():
            load_state(self._objects[number], self._states[number])
        self.forget()
        return is_whole

    def forget(self) -> None:
        """The step is applied."""
        self._is_open = self._is_torn = False
        self._marks, self._copies, self._states = [], [], {}

    def _sort(self) -> None:
        """List what is frozen now, by whether it has changed early. Only requires_grad is looked at in each step."""
        if self._parameters is None:
            self._parameters = [] if self._model is None else list(_list_parameters(self._model))
            self._firsts = [place.first for place in self._parameters]
            for module in self._modules:
                self._others += [*_list_parameters(module), *_list_buffers(module)]
        trained = list(map(_needs_gradients, self._firsts))
        if trained != self._trained or not self._is_sorted:
            frozen = [place for place, is_trained in zip(self._parameters, trained, strict=True) if not is_trained]
            watched = [*frozen, *self._others]
            self._still = [place for place in watched if place.key not in self._moving]
            self._early = [place for place in watched if place.key in self._moving]
            self._trained, self._is_sorted = trained, True

    def _mark(self) -> list[Mark]:
        """Of what has not changed early. Whole lists at a time: a model may have a thousand frozen parameters."""
        tensors = _read(self._still)
        digests = [0] * len(tensors) if self._is_known else [skeletons.digest(one) for one in tensors]
        return list(zip(map(torch.Tensor.data_ptr, tensors), count_all_changes(tensors), digests, strict=True))


def _read(places: Iterable[Place]) -> list[torch.Tensor]:
    """What is there now."""
    found = [held.get(name) for _, name, _, held in places]
    return [_GONE if one is None else one for one in found]


def _list_parameters(model: torch.nn.Module) -> Iterator[Place]:
    for module in model.modules():
        held = module._parameters
        yield from (Place(module, name, one, held) for name, one in module.named_parameters(recurse=False))


def _list_buffers(model: torch.nn.Module) -> Iterator[Place]:
    for module in model.modules():
        held = module._buffers
        yield from (Place(module, name, one, held) for name, one in module.named_buffers(recurse=False))


def _find_digest(state: Any) -> tuple[str, list[int]]:
    tensors: list[torch.Tensor] = []
    skeleton = skeletons.split(state, tensors)
    return repr(skeleton), [skeletons.digest(one) for one in tensors]
