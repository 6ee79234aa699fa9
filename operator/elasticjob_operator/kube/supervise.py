"""Work in the background that goes on whatever happens to it.

A watch, the renewal of the certificate, the writing of the Service's endpoints: an error in one of them is no reason to
end the process, which would end all others and, where an object is the cause, every other replica as well. It is told
with its traceback, counted, and the work begins anew after a pause that grows. Only what is named ends the process.
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

FATAL = (UsageError,)  # what only a person can mend, and no second try
LONG_SECONDS = 60.0  # work that went on for so long was well: its next failure is the first again

T = TypeVar("T")


async def keep_going(name: str, work: Callable[[], Awaitable[None]], on_restart: Callable[[str], None]) -> None:
    """Runs `work` until it returns. Where it raises it is run again, after a pause and after `on_restart(name)`."""
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
                logger.warning("%s: %s; again in %.1f s", name, error, pause)
            else:
                logger.exception("%s has failed; this is a defect; it begins anew in %.1f s", name, pause)
            on_restart(name)
        await asyncio.sleep(pause)


async def insist(call: Callable[[], Awaitable[T]], refusals: tuple[int, ...] = (401, 403)) -> T:
    """The answer of the API server, however long it takes to give one; UsageError where it is one of the refusals."""
    failures = 0
    while True:
        try:
            return await call()
        except ApiError as error:
            if error.status in refusals:
                raise UsageError(f"the API server refuses the operator's credentials: {error}") from None
            failures += 1
            pause = spread(find_pause(failures, most=10.0, asked=error.retry_after))
            logger.warning("the API server: %s; again in %.1f s", error, pause)
            await asyncio.sleep(pause)
