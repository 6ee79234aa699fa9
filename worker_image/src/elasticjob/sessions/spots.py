"""Spot checks of many tensors: a few words of each, copied with one operation for each kind of word.

They show what a script changes through `.data`, which torch does not count. A digest of all would cost a step its time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch

_MOST = 8  # words of a tensor: each of them may be read from memory
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}  # by the size of an element


class _Group(NamedTuple):
    """Tensors of one device and one size of element."""

    numbers: list[int]
    views: list[torch.Tensor]


class Spots:
    """Of some tensors, as long as they keep their memory."""

    def __init__(self, tensors: Sequence[torch.Tensor], memory: Sequence[int]) -> None:
        self.memory = memory
        self._tensors = tensors
        groups: dict[tuple[torch.device, int], _Group] = defaultdict(lambda: _Group([], []))
        for number, tensor in enumerate(tensors):
            words = view(tensor)
            if words is not None:
                group = groups[tensor.device, tensor.element_size()]
                group.numbers.append(number)
                group.views.append(words)
        self._groups = list(groups.values())

    def read(self) -> list[torch.Tensor]:
        """Copies of the words; nothing waits for a device."""
        return [torch.cat(group.views) for group in self._groups]

    def find_changed(self, before: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors whose words are not as they were read before."""
        found = []
        for group, then, now in zip(self._groups, before, self.read(), strict=True):
            parts = torch.split((then != now).cpu(), [len(one) for one in group.views])
            found += [self._tensors[at] for at, part in zip(group.numbers, parts, strict=True) if bool(part.any())]
        return found


def view(tensor: torch.Tensor) -> torch.Tensor | None:
    """Words that are spread over the tensor: bits, since no number that is not one equals itself."""
    words, row = _WORDS.get(tensor.element_size()), tensor.detach()
    if words is None or type(row) is not torch.Tensor or row.numel() == 0:
        return None  # a subclass has other memory, or none
    try:
        row = row.view(-1) if row.is_contiguous() else row[(0,) * (row.dim() - 1)]
        row = row.view(words)
    except RuntimeError:  # sparse ones, and others without plain memory
        return None
    return row[:: -(-len(row) // _MOST)]
