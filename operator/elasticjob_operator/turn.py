"""Lets others have the event loop in the middle of long work, and between pieces of it that are ready at once."""

from __future__ import annotations

import asyncio
import time
from typing import Final

SECONDS: Final = 0.01


class Turn:
    """Call `pause` between two pieces of work: it lets others in once `seconds` have passed since it last did."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._since = time.monotonic()

    async def pause(self) -> None:
        if time.monotonic() - self._since >= self._seconds:
            await asyncio.sleep(0)
            self._since = time.monotonic()


class Line:
    """Each of those who `wait` goes on in an iteration of the event loop of its own."""

    def __init__(self) -> None:
        self._first = asyncio.Lock()

    async def wait(self) -> None:
        async with self._first:
            await asyncio.sleep(0)
