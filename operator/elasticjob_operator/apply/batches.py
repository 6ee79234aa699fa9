"""Many equal calls, side by side: ever more while they succeed, none after the first that fails.

Where one pod is refused (quota, admission, a template that is wrong), a thousand would be. So a few are asked for
first, and each that is made lets one more go beside it: the width doubles with every round trip, and a small job waits
for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

FIRST = 8  # the size of many a job: all of it in one round trip, and as few refusals as that a try
MOST = 32


async def run_all(
    calls: Iterable[Callable[[], Awaitable[None]]], *, first: int = FIRST, most: int = MOST
) -> list[BaseException]:
    """Returns the errors when nothing is under way any more. A call is not made before its turn."""
    waiting = iter(calls)
    errors: list[BaseException] = []
    running: set[asyncio.Future[None]] = set()
    width = first
    try:
        while True:
            while len(running) < width and not errors and (call := next(waiting, None)) is not None:
                running.add(asyncio.ensure_future(call()))
            if not running:
                return errors
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed = [error for one in done if (error := one.exception()) is not None]
            errors += failed
            width = min(most, width + len(done) - len(failed))
    finally:
        for one in running:
            one.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
