"""How many writes of one job the API server has refused in the last minute, over all ways in which a job writes.

Each way has a back-off of its own, which ends early when something has changed that may let the next try succeed.
Changes may be many, and the ways add up: what all of them share is this bound. Time comes in as an argument, from a
clock that nobody sets.
"""

from __future__ import annotations

import math
from typing import Final

from elasticjob_operator.recent import Recent
from elasticjob_operator.rest.errors import BUSY, ApiError

MOST: Final = 10
OFTEN: Final = 5  # from then on, only what a job cannot do without is tried
SECONDS: Final = 60.0
_MOST_JOBS: Final = 10_000
# Of a server that is away or busy, and of objects that have changed: the next try is not for nothing.
_PASSING: Final = (0, 404, 409, *BUSY)


class RefusedWrites:
    """The times of the last refusals of each job, by its UID."""

    def __init__(self) -> None:
        self._times: Recent[str, tuple[float, ...]] = Recent(_MOST_JOBS)
        self._busy: Recent[str, float] = Recent(_MOST_JOBS)

    def was_busy(self, uid: str, since: float) -> bool:
        """Whether the API server has been too busy for such a write of the job since then."""
        return self._busy.get(uid, -math.inf) >= since

    def note(self, uid: str, error: ApiError, now: float) -> None:
        if error.status in BUSY:
            self._busy[uid] = now
        if error.status not in _PASSING:
            self._times[uid] = (*self._times.get(uid, ()), now)[-MOST:]

    def wait_until(self, uid: str, writes: int, now: float) -> float:
        """When so many writes may be refused without more than MOST in a minute; `now` if they may be at once."""
        recent = [at for at in self._times.get(uid, ()) if at > now - SECONDS]
        excess = len(recent) + min(writes, MOST) - MOST
        return recent[excess - 1] + SECONDS if excess > 0 else now

    def has_any(self, uid: str, now: float) -> bool:
        return self.wait_until(uid, MOST, now) > now

    def wait_for_extras(self, uid: str, now: float) -> float:
        """The same for what a job can do without."""
        return self.wait_until(uid, MOST - OFTEN + 1, now)
