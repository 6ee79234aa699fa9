"""What a script changes in a step before its optimizers do, as it was before: momentum encoders, old policies, noise.

These are the parameters of a replicated model, and the other objects of a session. A step that a loss breaks is made
again, so they would change twice; and what a script changes only for some passes, such as weights under attack, would
stay so. Copies of all of them would cost memory and time in each step, and most never change so early. So the first
step of a process finds out which do, by digests, and again the first one of an epoch. Only those are copied from then
on. One that begins to in another step is seen by torch's counter of changes, by its memory, or by some of its words.
Without a copy a step is torn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler

from elasticjob.collectives import skeletons
from elasticjob.sessions.spots import Spots
from elasticjob.torchcompat.optimizers import load_state
from elasticjob.torchcompat.versions import count_all_changes

Marks = list[list[Any]]  # of tensors: their memory, their changes, and their digests or nothing
_GONE = torch.empty(0)  # stands for a tensor that a script has deleted
_SOME = 5  # steps without a pass of the model that find out what changes
_MANY = 50  # steps until the end of an epoch is a reason to find it out again ...
_MOST = 1000  # ... and until there needs to be none


class Place(NamedTuple):
    """Where a tensor is; a script may assign another one."""

    module: torch.nn.Module
    name: str


class Early:
    """The parameters of a model and the other objects of one session. `begin` and `look` surround the passes."""

    def __init__(self, model: torch.nn.Module | None, others: Iterable[Any]) -> None:
        """`others`: objects with `state_dict` and `load_state_dict`. Optimizers and schedulers are left out."""
        self._model = model
        self._modules: list[torch.nn.Module] = []
        self._objects: list[Any] = []
        for one in others:
            if isinstance(one, (torch.optim.Optimizer, LRScheduler)):
                continue
            (self._modules if isinstance(one, torch.nn.Module) else self._objects).append(one)
        self._still: list[Place] | None = None  # which have not changed early; listed once: that takes milliseconds
        self._tensors: list[torch.Tensor] = []  # that were there when it was last found out
        self._moving: list[Place] = []  # which have
        self._drawn: set[int] = set()  # of the other objects, by their number
        self._is_known = self._has_passed = False  # which change early, and the model in a step that finds it out
        self._begun = 0  # steps since it began to find it out
        # Of the present step: what is to be compared, what was copied, and the states of the other objects.
        self._marks: Marks | None = None
        self._spots: Spots | None = None  # made anew only where a tensor has other memory: that takes milliseconds
        self._words: list[torch.Tensor] | None = None  # where nothing is compared by digests
        self._copies: list[tuple[Place, torch.Tensor, torch.Tensor]] = []
        self._states: Mapping[int, Any] = {}
        self._is_open = self._is_applying = self._is_torn = False

    @property
    def is_open(self) -> bool:
        """Whether a step has begun, and nobody has looked since."""
        return self._is_open

    def begin(self) -> None:
        """A step begins."""
        self.forget()
        self._is_open = True
        self._begun += 1
        if self._begun > _MOST:
            self.look_again()
        if self._still is None:
            self._still = [] if self._model is None else list(_list_parameters(self._model))
            for module in self._modules:
                self._still += [*_list_parameters(module), *_list_buffers(module)]
        if not self._is_known:
            self._tensors = _read(self._still)
        self._marks = self._mark()
        if self._is_known:
            if self._spots is None or self._spots.memory != self._marks[0]:
                self._spots = Spots(self._tensors, self._marks[0])
            self._words = self._spots.read()
        with torch.no_grad():
            found = zip(self._moving, _read(self._moving), strict=True)
            self._copies = [(place, tensor, tensor.clone()) for place, tensor in found if tensor is not _GONE]
        wanted = self._drawn if self._is_known else range(len(self._objects))
        self._states = {number: copy.deepcopy(self._objects[number].state_dict()) for number in wanted}

    def begin_pass(self) -> None:
        """Of the model. What the script has changed until now, it may put back before the optimizer."""
        if self._is_open and not self._is_known:
            self._compare()
            self._has_passed = True

    def begin_applying(self) -> None:
        """An optimizer that makes the gradients by itself begins, and changes what is trained."""
        if self._is_open and not self._is_applying:
            self._compare()
            self._is_applying = True

    def look(self) -> None:
        """The first optimizer of the step begins: whatever has changed has changed early."""
        if self._is_open and not self._is_known:
            self._find()
            self._is_known = self._has_passed or self._begun >= _SOME
        self._is_open = False

    def look_again(self) -> None:
        """Find out once more what changes early: a script may do other things from now on."""
        if self._begun >= _MANY:
            self._begun, self._is_known, self._has_passed = 0, False, False

    def break_off(self) -> None:
        """The step is broken. What is put back from here on has not changed early."""
        if self._is_open:
            self._find()
        self._is_open = False

    def take_back(self) -> bool:
        """Put back what has changed early in a broken step. Whether all is as it was before."""
        self.break_off()
        is_whole = not self._is_torn
        with torch.no_grad():
            for place, tensor, before in self._copies:
                tensor.copy_(before)
                if getattr(place.module, place.name, None) is not tensor:
                    setattr(place.module, place.name, tensor)
        for number in self._drawn & self._states.keys():
            load_state(self._objects[number], self._states[number])
        self.forget()
        return is_whole

    def forget(self) -> None:
        """The step is applied."""
        self._is_open = self._is_applying = self._is_torn = False
        self._marks, self._words, self._copies, self._states = None, None, [], {}

    def _find(self) -> None:
        self._compare()
        if not self._is_known:
            for number, before in self._states.items():
                if _find_digest(before) != _find_digest(self._objects[number].state_dict()):
                    self._drawn.add(number)

    def _compare(self) -> None:
        """With the beginning of the step. What has changed is copied in the next ones."""
        if self._marks is None:
            return
        places = list(enumerate(self._still or ()))
        present = _read(self._still or ())
        changed = {at for one, other in zip(self._marks, self._mark(), strict=True) for at in _find_unequal(one, other)}
        changed |= {at for at, _ in places if present[at] is not self._tensors[at]}
        if self._spots is not None and self._words is not None:
            spotted = set(map(id, self._spots.find_changed(self._words)))
            changed |= {at for at, one in enumerate(self._tensors) if id(one) in spotted}
        moved = {at for at, place in places if at in changed and not (self._is_applying and present[at].requires_grad)}
        if moved:
            self._moving += [place for at, place in places if at in moved]
            self._still = [place for at, place in places if at not in moved]
            self._tensors = [one for at, one in enumerate(self._tensors) if at not in moved]
            self._marks = [[one for at, one in enumerate(those) if at not in moved] for those in self._marks]
            self._is_torn = True

    def _mark(self) -> Marks:
        """Of what has not changed early. Whole lists at a time: a model may have a thousand parameters."""
        digests = [] if self._is_known else [skeletons.digest(one) for one in self._tensors]
        return [list(map(torch.Tensor.data_ptr, self._tensors)), count_all_changes(self._tensors), digests]


def _find_unequal(before: list[Any], now: list[Any]) -> list[int]:
    return [at for at, (one, other) in enumerate(zip(before, now, strict=True)) if one != other]


def _read(places: Iterable[Place]) -> list[torch.Tensor]:
    """What is there now."""
    found = [getattr(module, name, None) for module, name in places]
    return [_GONE if one is None else one for one in found]


def _list_parameters(model: torch.nn.Module) -> Iterator[Place]:
    for module in model.modules():
        found = module.named_parameters(recurse=False)
        yield from (Place(module, name) for name, one in found if not is_lazy(one))


def _list_buffers(model: torch.nn.Module) -> Iterator[Place]:
    for module in model.modules():
        yield from (Place(module, name) for name, _ in module.named_buffers(recurse=False))


def _find_digest(state: Any) -> tuple[str, list[int]]:
    tensors: list[torch.Tensor] = []
    skeleton = skeletons.split(state, tensors)
    return repr(skeleton), [skeletons.digest(one) for one in tensors]
