"""What the statuses of jobs without pods keep in memory: small ones as they are, the others in a room that all share.

A status may take 700 KB if its pods have said all that they may, and a namespace has as many jobs as it likes: they
have finished, are suspended, or get no pods. Of one without room, that is kept by which others decide; its passes read
it again before they do anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from elasticjob_operator.api.names import JobKey
from elasticjob_operator.kube.job_room import count_bytes
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.short_status import shorten
from elasticjob_operator.shares import Berths

KEPT_BYTES: Final = 8 * 1024  # of the status of a job ...
KEPT_JOBS: Final = 4096  # ... of so many of a namespace: what is larger, and what is more, shares ...
MOST_KEPT_BYTES: Final = 64 * 2**20  # ... so many bytes of all jobs, of which one namespace gets half
_FACTOR: Final = 2  # what a status takes, read and as it was written, for each byte of the latter
_MOST_MEMBERS: Final = 500  # of one with more, nothing is counted, which would take long


class StatusRoom:
    """Which statuses are kept. Call `leave` for a job that is gone."""

    def __init__(self) -> None:
        self._berths = Berths(KEPT_BYTES, KEPT_JOBS, MOST_KEPT_BYTES)

    def let_in(self, job: Job, *, has_pods: bool) -> Job:
        """The job, without what there is no room for."""
        if has_pods:
            self.leave(job.key)
            return job
        size = _measure(job)
        if size is not None and self._berths.put(job.key, size):
            return job
        self.leave(job.key)
        return replace(job, status=shorten(job.status), status_raw={}, is_short=True)

    def leave(self, key: JobKey) -> None:
        self._berths.leave(key)


def _measure(job: Job) -> int | None:
    if len(job.status.rendezvous.members) > _MOST_MEMBERS:
        return None
    return _FACTOR * count_bytes(job.status_raw)
