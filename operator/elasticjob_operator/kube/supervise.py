"""Supervises background tasks, and restarts them after errors.

An error in a watch, in the renewal of the certificate or in writing the Service's endpoints must not end the process,
which would end all other tasks and, if an object is the cause, every other replica as well. The error is logged with
its traceback and counted, and the task is restarted with back-off. Only errors in `FATAL` end the process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.errors import UsageError
from elasticjob_operator.rest.errors import ApiError

logger = logging.getLogger(__name__)

FATAL = (UsageError,)  # errors that need an administrator; a retry is pointless
LONG_SECONDS = 60.0  # after running this long, the back-off is reset

T = TypeVar("T")


async def keep_going(name: str, work: Callable[[], Awaitable[None]], on_restart: Callable[[str], None]) -> None:
    """Run `work` until it returns. If it raises, call `on_restart(name)` and run it again with back-off.

    Raises the errors in `FATAL`.
    """
    failures = 0
    while True:
        started = time.monotonic()
        try:
            await work()
            return
        except FATAL:
            raise
        except Exception as error:
            failures = 1 if time.monotonic() - started >= LONG_SECONDS else failures + 1
            pause = spread(find_pause(failures))
            if isinstance(error, ApiError):
                logger.warning("%s: %s; retrying in %.1f s", name, error, pause)
            else:
                logger.exception("%s failed; this is a bug; restarting it in %.1f s", name, pause)
            on_restart(name)
        await asyncio.sleep(pause)


async def insist(call: Callable[[], Awaitable[T]], refusals: tuple[int, ...] = (401, 403)) -> T:
    """Retry `call` until the API server answers. Raises UsageError if the status is one of `refusals`."""
    failures = 0
    while True:
        try:
            return await call()
        except ApiError as error:
            if error.status in refusals:
                raise UsageError(f"the API server refuses the operator's credentials: {error}") from None
            failures += 1
            pause = spread(find_pause(failures, most=10.0, asked=error.retry_after))
            logger.warning("the API server: %s; retrying in %.1f s", error, pause)
            await asyncio.sleep(pause)
