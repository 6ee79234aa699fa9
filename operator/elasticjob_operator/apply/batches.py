"""Slow start for many similar calls: concurrency grows while they succeed, and no call starts after a failure.

If one pod is rejected (quota, admission, an invalid template), a thousand would be. So a few calls start first, and
each success allows one more: concurrency doubles with every round trip, and a small job needs one or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

FIRST = 4  # at most this many are rejected at once
MOST = 32


async def run_all(
    calls: Iterable[Callable[[], Awaitable[None]]], *, first: int = FIRST, most: int = MOST, goes_on: bool = False
) -> list[BaseException]:
    """Run the calls; return their errors once none is in flight. A call is not created before its turn.

    `goes_on`: an error of one call says nothing about the others, so the next ones start all the same.
    """
    waiting = iter(calls)
    errors: list[BaseException] = []
    running: set[asyncio.Future[None]] = set()
    width = first
    try:
        while True:
            while len(running) < width and (goes_on or not errors) and (call := next(waiting, None)) is not None:
                running.add(asyncio.ensure_future(call()))
            if not running:
                return errors
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed = [error for one in done if (error := one.exception()) is not None]
            errors += failed
            width = min(most, width + len(done) - (0 if goes_on else len(failed)))
    finally:
        for one in running:
            one.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
