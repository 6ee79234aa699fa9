"""Leadership: permission to write, which the election grants until a time on this machine's clock.

Everything that changes something in the cluster goes through `Api`, and `Api` refuses whatever is not a read where this
right is not held. It is refused by default: nothing that forgets to ask can write.

What is promised: no request to write is handed to a connection after the moment until which the right was lent. That
moment lies before the one at which another replica may take the Lease. A request that was handed over before may still
be carried out after it, for no API server can be asked to forget a request; it is bounded by the end of the process,
which closes its connections, and harmless: what is written carries the version or the UID that it was decided on, and
what is created has a name that only one can have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def read_clock() -> float:
    """Seconds that no change of the date moves, and that count while the machine is suspended, where that is known."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Leadership:
    """Whether this replica may write. Only the election lends it; it runs out by itself."""

    __slots__ = ("_clock", "_until")

    def __init__(self, clock: Callable[[], float] = read_clock) -> None:
        self._clock = clock
        self._until = -math.inf

    def lend(self, until: float) -> None:
        """`until` is a moment of the clock; a later call replaces it."""
        self._until = until

    def end(self) -> None:
        self._until = -math.inf

    def seconds_left(self) -> float:
        return max(0.0, self._until - self._clock())

    @property
    def is_held(self) -> bool:
        return self.seconds_left() > 0
