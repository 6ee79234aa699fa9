"""Objects of events that Python's collector would not look for in time.

kopf ties the object of each event into a cycle, so it stays in memory until the collector runs. The collector counts
containers and not the texts in them: a few tenants who change large jobs could fill the memory before it does.

What is free then lies between what stays, and the C library keeps it: the process would grow for as long as large
objects come and go. So it is asked to give back what it can.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from elasticjob_operator import numerals

STEP: Final = 16 * 2**20  # bytes
_YOUNG: Final = 1  # what has lived long is not looked at: that takes long, and has hardly a cycle
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


def read_resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        return (numerals.read_count(_STATM.read_text().split()[1]) or 0) * _PAGE
    except OSError:
        return 0


def _find_trim() -> Callable[[], object]:
    """glibc's `malloc_trim`; other C libraries have none, and need none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: None) if trim is None else functools.partial(trim, 0)


class Garbage:
    """Collects whenever the process has grown by a STEP, and gives back what is free."""

    def __init__(
        self, resident: Callable[[], int] = read_resident, collect: Callable[[int], object] = gc.collect
    ) -> None:
        self._resident = resident
        self._collect = collect
        self._trim = _find_trim()
        self._before = resident()

    def look(self) -> None:
        now = self._resident()
        if now >= self._before + STEP:
            self._collect(_YOUNG)
            self._trim()
            self._before = now = self._resident()
        self._before = min(self._before, now)
