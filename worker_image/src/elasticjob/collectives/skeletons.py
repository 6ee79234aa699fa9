"""State in transit: a state dict as a skeleton (plain data with placeholders) and its tensors, and digests of tensors.

Tensors are so sent and stored as raw bytes, and never pickled. They are sent and compared in chunks: a large one alone,
small ones together, because each message has a fixed cost.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

CHUNK_BYTES = 4 << 20
_ROW = 1024  # 64-bit words of a tensor that are summed before the sums are mixed
_PIECE_ON_CPU, _PIECE = 64, 8192  # rows at a time: what fits into a cache, or what occupies a device
_MASK, _SIGN = (1 << 64) - 1, 1 << 63
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
    """A 64-bit number that differs if any bit of the tensor does, or its place, for all practical purposes.

    It is the same on each device. A row of words is summed after each has been multiplied with a weight of its place,
    and the sums are mixed with the index of the row. The upper half of a word is weighted once more: what is multiplied
    modulo 2^64 moves to higher bits, so the highest ones alone would not depend on their place.
    """
    raw = as_bytes(tensor)
    if raw.numel() == 0:
        return 0
    if raw.storage_offset() % 8:
        raw = raw.clone()
    words = raw[: raw.numel() // 8 * 8].view(torch.int64)
    rows = words[: words.numel() // _ROW * _ROW].view(-1, _ROW)
    low, high = _weights(raw.device)
    step = _PIECE_ON_CPU if raw.device.type == "cpu" else _PIECE
    sums = [_sum_rows(part, low) + _sum_rows(part >> 32, high) for part in torch.split(rows, step)]
    tail = raw[raw.numel() // 8 * 8 :].to(torch.int64)
    flat = torch.cat([*sums, words[rows.numel() :], tail])
    # Overflow wraps around.
    mixed = (flat + torch.arange(1, flat.numel() + 1, device=flat.device)) * _ODD
    mixed = (mixed ^ (mixed >> 29)) * _ODD
    return int((mixed ^ (mixed >> 32)).sum().item()) & _MASK


def _sum_rows(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    # The product is the fastest on a CPU, and other devices have none of integers.
    return rows @ weights if rows.device.type == "cpu" else (rows * weights).sum(1)


@functools.cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of a row: unrelated numbers, all odd and different in their lowest bits."""
    drawn = [_mix(place) for place in range(2 * _ROW)]
    signed = [((one & ~(2 * _ROW - 1) | 2 * (place % _ROW) + 1) ^ _SIGN) - _SIGN for place, one in enumerate(drawn)]
    weights = torch.tensor(signed, dtype=torch.int64, device=device)
    return weights[:_ROW], weights[_ROW:]


def _mix(number: int) -> int:
    """64 bits that look random (SplitMix64): the same for every version of torch. Pure."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
    return mixed ^ (mixed >> 31)


def signed_digest(tensor: torch.Tensor) -> int:
    """The same, as a number of a tensor: those have a sign."""
    return digest(tensor) - _SIGN


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, in its own memory if it is contiguous, and otherwise in a copy."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def combine(digests: list[int]) -> int:
    """Combine several digests into one that fits a signed 64-bit word."""
    total = len(digests)
    for one in digests:
        total = (total * 1_000_003 + one) & _MASK
    return total >> 1
