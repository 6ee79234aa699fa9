"""The state of a session as it travels: which rank's counts, how to tell that two are equal, how to send it.

The choice of the source is a pure function. A state dict is split into a skeleton (plain data with placeholders)
and its tensors, so that tensors are sent as they are and never pickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_MODULUS = (1 << 61) - 1


@dataclass(frozen=True)
class Standing:
    """What one rank has in its memory."""

    step: int  # the last step applied to it; -1 for a newcomer
    clean: bool  # no step is applied in part
    digest: int  # of everything that must be equal on all ranks


class StateLostError(RuntimeError):
    """No rank of the new world has a whole state in memory: only a checkpoint helps."""


def choose_source(standings: list[Standing]) -> int:
    """The rank whose state counts: the most advanced one that is whole, the lowest of them.

    Where nobody has trained yet rank 0's initial parameters count, as with DDP.
    """
    whole = [rank for rank, standing in enumerate(standings) if standing.clean]
    if not whole:
        raise StateLostError("every rank was interrupted in the middle of applying a step")
    best = max(standings[rank].step for rank in whole)
    return next(rank for rank in whole if standings[rank].step == best)


def are_equal(standings: list[Standing]) -> bool:
    """Whether all ranks have the same whole state, so that nothing needs to be sent."""
    return all(standing == standings[0] and standing.clean for standing in standings)


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a skeleton."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str  # its type: each rank has its own index


def split(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The skeleton of `value`; its tensors are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return Slot(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        return {key: split(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([split(item, tensors) for item in value])
    return value


def find_slots(skeleton: Any) -> Iterator[Slot]:
    """The slots of a skeleton in the order of their tensors."""
    if isinstance(skeleton, Slot):
        yield skeleton
    elif isinstance(skeleton, dict):
        for item in skeleton.values():
            yield from find_slots(item)
    elif isinstance(skeleton, list | tuple):
        for item in skeleton:
            yield from find_slots(item)


def join(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """The value again, from its skeleton and its tensors."""
    if isinstance(skeleton, Slot):
        return tensors[skeleton.index]
    if isinstance(skeleton, dict):
        return {key: join(item, tensors) for key, item in skeleton.items()}
    if isinstance(skeleton, list | tuple):
        return type(skeleton)([join(item, tensors) for item in skeleton])
    return skeleton


def digest(tensors: list[torch.Tensor]) -> int:
    """A number that differs where any bit of any tensor does, for all practical purposes."""
    total = len(tensors)
    for tensor in tensors:
        flat = tensor.detach().contiguous().view(-1)
        if flat.numel() == 0:
            continue
        raw = flat.view(torch.uint8)
        words = raw.view(torch.int32) if raw.numel() % 4 == 0 and raw.storage_offset() % 4 == 0 else raw
        total = (total * 1_000_003 + int(words.sum(dtype=torch.int64).item())) % _MODULUS
    return total
