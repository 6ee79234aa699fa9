"""Leadership: permission to write, granted by the election until a time on this machine's clock.

Every change in the cluster goes through `Api`, which rejects all requests but reads while leadership is not held.
Rejection is the default: code that forgets to check cannot write.

The guarantee: no write request is handed to a connection after the time until which leadership was granted. That time
is before the one at which another replica may take the Lease. A request that was handed over earlier may still be
executed after it, because a request cannot be revoked; neither can one between the last look at the clock and the
system call that follows it, if the process is stopped there. This is bounded by the end of the process, which closes
its connections, and harmless: updates have the resourceVersion or UID that they were decided on, and created objects
have unique names.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def read_clock() -> float:
    """Monotonic seconds, including the time in suspend if the platform supports that."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Leadership:
    """Whether this replica may write. Only the election grants it; it expires by itself."""

    __slots__ = ("_clock", "_until")

    def __init__(self, clock: Callable[[], float] = read_clock) -> None:
        self._clock = clock
        self._until = -math.inf

    def lend(self, until: float) -> None:
        """Grant leadership until this time of the clock; a later call replaces it."""
        self._until = until

    def end(self) -> None:
        self._until = -math.inf

    def seconds_left(self) -> float:
        return max(0.0, self._until - self._clock())

    @property
    def is_held(self) -> bool:
        return self.seconds_left() > 0
