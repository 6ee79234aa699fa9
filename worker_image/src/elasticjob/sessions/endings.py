"""Communicators of a device end in threads of their own: an abort or a destroy may take long, fail or never return.

`ncclCommAbort` frees memory of the device, which waits for the kernels of all other communicators: two that are stuck
take a quarter of a minute one after the other, and half a second at once. Nobody waits here, and the next world is made
meanwhile. A thread keeps its group until the end, because torch's destructor waits for torch's own threads.

A new thread is on the first device, whichever its process has. What it calls there would open a context on the device
of another rank.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

import torch

from elasticjob.torchcompat import devices, groups, threads

_ABORT, _SHUTDOWN, _DROP = "abort", "shutdown", ""
_CPU = torch.device("cpu")
_WAYS = {_ABORT: groups.abort, _SHUTDOWN: groups.shut_down}


class Endings:
    """What this process still ends. Thread-safe."""

    def __init__(self, device: torch.device = _CPU) -> None:
        """`device` is that of this process."""
        self._device = device
        self._lock = threading.Lock()
        self._aborted: dict[int, Any] = {}  # groups by their identity, which lasts as long as they are kept here

    def abort(self, groups: Iterable[Any]) -> None:
        """Abort these groups, all at once, unless that is under way. Returns at once."""
        with self._lock:
            for group in groups:
                if id(group) not in self._aborted:
                    self._aborted[id(group)] = group
                    self._start(_ABORT, [group])

    def end(self, groups: list[Any], broken: bool) -> None:
        """Torch has forgotten these groups, and they are to go: aborted if the world is `broken`. Returns at once.

        The list is emptied: whoever has the last reference waits for the destructor, and that is to be a thread.
        """
        if broken:
            self.abort(groups)
        with self._lock:
            while groups:
                held = [groups.pop()]
                was_aborted = self._aborted.pop(id(held[0]), None) is not None
                self._start(_DROP if was_aborted else _SHUTDOWN, held)

    def _start(self, how: str, held: list[Any]) -> None:
        threads.Thread(_end, (held, how, self._device), f"elasticjob-end-{how}").start()


def _end(held: list[Any], how: str, device: torch.device) -> None:
    with contextlib.suppress(Exception):  # nothing depends on it
        devices.use(device)
    with contextlib.suppress(Exception):
        if how:
            _WAYS[how](held[0])
    held.clear()
