"""Random numbers that depend on what they are for, and not on who computes it.

A *stream* is the sequence of random numbers after a *key*: the seed, the epoch, the position in it and the virtual
rank. Python's, NumPy's and torch's generators are seeded with the key whenever a virtual rank takes its turn. So a
stream has no state that a checkpoint would have to keep: who knows the position knows every stream.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import get_worker_info

Key = tuple[int, ...]


def find_seed(key: Key) -> int:
    """64 bits that are unrelated for different keys."""
    packed = struct.pack(f"<{len(key)}q", *key)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def start(key: Key) -> None:
    """Seed the generators of this process: `random`, NumPy's global one if it is imported, torch's CPU and device."""
    seed = find_seed(key)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    # Not torch.manual_seed: it takes ten times as long, because it looks for every kind of device.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


class SeededBatch(list[int]):
    """Indices of a batch. In a process of a DataLoader, reading them starts the stream of their virtual rank."""

    def __init__(self, indices: Iterable[int], key: Key) -> None:
        super().__init__(indices)
        self.key = key

    def __iter__(self) -> Iterator[int]:
        if get_worker_info() is not None:
            start(self.key)
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        return SeededBatch, (list(super().__iter__()), self.key)
