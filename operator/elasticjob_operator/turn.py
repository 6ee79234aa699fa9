"""Lets others have the event loop in the middle of long work, and between pieces of it that are ready at once."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

SECONDS: Final = 0.01


class _Iteration:
    """Of an event loop. All that is ready is done in one, and shares its time."""

    def __init__(self) -> None:
        self._began = float("-inf")  # of one that was long ago nobody knows what the present one has done
        self._is_ending = False

    def is_long(self, loop: asyncio.AbstractEventLoop) -> bool:
        if not self._is_ending:
            self._is_ending = True
            loop.call_soon(self._next)
        return time.monotonic() - self._began >= SECONDS

    def _next(self) -> None:
        self._began, self._is_ending = time.monotonic(), False


_iterations: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Iteration] = weakref.WeakKeyDictionary()


async def pause() -> None:
    """Await this between two pieces of work: others are let in once SECONDS have passed in this turn of the event loop.

    It does not matter whose work it was: ten tasks that are ready have these SECONDS together, and a piece each.
    """
    loop = asyncio.get_running_loop()
    iteration = _iterations.get(loop)
    if iteration is None:
        iteration = _iterations[loop] = _Iteration()
    if iteration.is_long(loop):
        await asyncio.sleep(0)


async def one_by_one(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a `pause` after each. What they are of may change meanwhile: give it a copy."""
    for item in items:
        yield item
        await pause()


class Line:
    """Each of those who `wait` goes on in an iteration of the event loop of its own; their groups take turns."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the group with the next turn is first
        self._moves = False

    async def wait(self, group: str) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        if not self._moves:
            self._moves = True
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        while self._waiting:
            group = next(iter(self._waiting))
            same = self._waiting.pop(group)
            first = same.popleft()
            if same:
                self._waiting[group] = same
            if not first.done():  # a task that was cancelled waits no more
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._moves = False
