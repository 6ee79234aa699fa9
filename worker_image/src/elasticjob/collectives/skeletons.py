"""State in transit: a state dict as a skeleton (plain data with placeholders) and its tensors, and digests of tensors.

Tensors are so sent and stored as raw bytes, and never pickled. They are sent and compared in chunks: a large one alone,
small ones together, because each message has a fixed cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

CHUNK_BYTES = 4 << 20
_ROW = 1024  # 64-bit words of a tensor that are summed before the sums are mixed
_MASK = (1 << 64) - 1
_ODD = -7046029254386353131  # 2^64 / golden ratio, as a signed number


@dataclass(frozen=True)
class Slot:
    """The placeholder of a tensor in a skeleton."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str  # the device type; the index differs by rank

    @property
    def size(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def split(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The skeleton of `value`; appends its tensors to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return Slot(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        return {key: split(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([split(item, tensors) for item in value])
    return value


def find_slots(skeleton: Any) -> Iterator[Slot]:
    """The slots of a skeleton, in the order of their tensors."""
    if isinstance(skeleton, Slot):
        yield skeleton
    elif isinstance(skeleton, dict):
        for item in skeleton.values():
            yield from find_slots(item)
    elif isinstance(skeleton, list | tuple):
        for item in skeleton:
            yield from find_slots(item)


def join(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """Rebuild the value from its skeleton and its tensors."""
    if isinstance(skeleton, Slot):
        return tensors[skeleton.index]
    if isinstance(skeleton, dict):
        return {key: join(item, tensors) for key, item in skeleton.items()}
    if isinstance(skeleton, list | tuple):
        return type(skeleton)([join(item, tensors) for item in skeleton])
    return skeleton


def pack(slots: list[Slot], limit: int = CHUNK_BYTES) -> list[list[Slot]]:
    """Group slots into chunks of at most `limit` bytes: neighbours on one device share a chunk. Pure."""
    chunks: list[list[Slot]] = []
    room = 0
    for slot in slots:
        if chunks and slot.size <= room and slot.device == chunks[-1][-1].device:
            chunks[-1].append(slot)
        else:
            chunks.append([slot])
            room = limit
        room -= slot.size
    return chunks


def digest(tensor: torch.Tensor) -> int:
    """A 64-bit number that differs if any bit of the tensor does, for all practical purposes. Reads the memory once."""
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if raw.numel() == 0:
        return 0
    if raw.storage_offset() % 8:
        raw = raw.clone()
    words = raw[: raw.numel() // 8 * 8].view(torch.int64)
    rows = words[: words.numel() // _ROW * _ROW].view(-1, _ROW).sum(1)
    tail = raw[raw.numel() // 8 * 8 :].to(torch.int64)
    sums = torch.cat([rows, words[words.numel() // _ROW * _ROW :], tail])
    # The position of a sum matters too: each is mixed with its index before all are added. Overflow wraps around.
    mixed = (sums + torch.arange(1, sums.numel() + 1, device=sums.device)) * _ODD
    mixed = (mixed ^ (mixed >> 29)) * _ODD
    return int((mixed ^ (mixed >> 32)).sum().item()) & _MASK


def combine(digests: list[int]) -> int:
    """Combine several digests into one that fits a signed 64-bit word."""
    total = len(digests)
    for one in digests:
        total = (total * 1_000_003 + one) & _MASK
    return total >> 1
