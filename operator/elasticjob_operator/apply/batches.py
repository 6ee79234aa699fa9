"""Slow start for many similar calls: concurrency grows while they succeed, and no call starts after a failure.

If one pod is rejected (quota, admission, an invalid template), a thousand would be. So a few calls start first, and
each success allows one more: concurrency doubles with every round trip, and a small job needs only one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

FIRST = 8  # many jobs are not larger: one round trip, and at most this many rejections
MOST = 32


async def run_all(
    calls: Iterable[Callable[[], Awaitable[None]]], *, first: int = FIRST, most: int = MOST
) -> list[Exception]:
    """Run the calls; return their errors once none is in flight. A call is not created before its turn."""
    waiting = iter(calls)
    errors: list[Exception] = []
    workers = 0

    async def work(call: Callable[[], Awaitable[None]] | None) -> None:
        """Run this call, and then others. The success of each lets one more run beside it, up to `most`."""
        while call is not None:
            try:
                await call()
            except Exception as error:
                errors.append(error)
            else:
                add_worker()
            call = None if errors else next(waiting, None)

    def add_worker() -> None:
        nonlocal workers
        if workers < most and (call := next(waiting, None)) is not None:
            workers += 1
            group.create_task(work(call))

    async with asyncio.TaskGroup() as group:
        for _ in range(first):
            add_worker()
    return errors
