"""Puts the memory of a process into huge pages: to fork it then takes a third of the time.

A process that has imported torch has 60,000 small pages, which each fork has to list, and each end of a process to
leave: 17 ms of a processor, and 5 ms with huge ones. Who writes to one gets a small page of its own.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1
_SIZE = 2 << 20


def collapse() -> int:
    """How many huge pages there are now; none where the kernel does not do that."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return sum(advise(at, _SIZE, _COLLAPSE) == 0 for at in _find_places())


def _find_places() -> list[int]:
    """The addresses in private memory of no file at which a huge page can be."""
    found: list[int] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, mode, _, _, inode, *name = line.split()
        if mode == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            first, end = (int(word, 16) for word in place.split("-"))
            found += range(-(-first // _SIZE) * _SIZE, end // _SIZE * _SIZE, _SIZE)
    return found
