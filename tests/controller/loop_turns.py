"""Turns of the event loop: work that gives way does no more than a few pieces in one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from elasticjob_operator import turn

PIECES = 3  # of any work in one turn, where each piece takes as long as all of them may


class Turns:
    """Counts them while it is `counted`."""

    def __init__(self) -> None:
        self.now = 0
        self._next: asyncio.Handle | None = None

    def count(self) -> None:
        self.now += 1
        self._next = asyncio.get_running_loop().call_soon(self.count)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()


@contextlib.asynccontextmanager
async def counted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Turns]:
    """Whoever asks whether others should have the loop is told so each time."""
    monkeypatch.setattr(turn, "SECONDS", 0.0)
    turns = Turns()
    turns.count()
    try:
        yield turns
    finally:
        turns.stop()
