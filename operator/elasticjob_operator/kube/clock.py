"""The time of the cluster: that of the API server, whatever the clock of this machine shows.

Deadlines, back-offs and ages compare the present with times in objects. The API server wrote those
(`creationTimestamp`, `deletionTimestamp`), or the leader before, on another machine. If this machine's clock is set, or
differs from that of the last leader, a comparison with it would fail a job that has time left, or wait for hours. So
the operator reads it once, at its start, and counts on without it. Every response has the API server's time, in whole
seconds; where that differs, the median of the last responses counts.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from elasticjob_operator.kube.leadership import read_clock

logger = logging.getLogger(__name__)

RESPONSES: Final = 9  # that are compared: one API server of several whose clock is wrong is outvoted
TOLERANCE: Final = 2.0  # seconds; less is what clocks of a cluster differ by, and no reason for a jump
TOLD: Final = 30.0  # seconds; such a difference is worth a line in the log


class ClusterClock:
    """Seconds since the epoch by the API server's clock. Call it for the present."""

    def __init__(self, wall: Callable[[], float] = time.time, count: Callable[[], float] = read_clock) -> None:
        self._count = count
        self._offset = wall() - count()
        self._differences: deque[float] = deque(maxlen=RESPONSES)

    def __call__(self) -> float:
        return self._count() + self._offset

    def note(self, date: str | None, seconds: float) -> None:
        """Note the `Date` of a response that has just arrived, `seconds` after its request was sent."""
        server = parse_date(date)
        if server is None:
            return
        # The response was made at some time since the request, and up to a second after what its whole seconds say.
        earliest, latest = server - self(), server + 1.0 + seconds - self()
        self._differences.append(max(earliest, min(0.0, latest)) + self._offset)
        ahead = statistics.median_low(self._differences) - self._offset
        if abs(ahead) <= TOLERANCE:
            return
        self._offset += ahead
        if abs(ahead) >= TOLD:
            logger.warning(
                "the API server's clock is %.0f s %s this machine's: the operator goes by the API server's",
                abs(ahead),
                "ahead of" if ahead > 0 else "behind",
            )


def parse_date(text: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date; None if it is none."""
    try:
        parsed = parsedate_to_datetime(text) if text else None
        return None if parsed is None else (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
