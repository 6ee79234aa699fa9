"""How often the status of a job is written only to tell of news: agents can have news at any rate.

Each job may tell once in ten seconds, as one that trains does. What is more is a matter of two budgets: one of the job,
and one of its namespace, so that sixty jobs write hardly more than one.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Final

from elasticjob_operator.ratelimit import Bucket
from elasticjob_operator.recent import Recent

EACH_SECONDS: Final = 10.0  # after which a job may tell in any case
AT_ONCE, PER_SECOND = 60.0, 0.5  # of a job
NAMESPACE_AT_ONCE, NAMESPACE_PER_SECOND = 120.0, 5.0
NAMESPACES: Final = 4096  # that are remembered


@dataclass(slots=True)
class JobNews:
    """Of one job."""

    budget: Bucket = field(default_factory=lambda: Bucket(AT_ONCE, time.monotonic()))
    told_at: float = -math.inf


class News:
    """Of all jobs."""

    def __init__(self) -> None:
        self._budgets: Recent[str, Bucket] = Recent(NAMESPACES)

    def may_tell(self, namespace: str, job: JobNews, now: float) -> bool:
        """Whether this job may tell now, which then counts. `now` is monotonic."""
        if now - job.told_at < EACH_SECONDS:
            if namespace not in self._budgets:
                self._budgets[namespace] = Bucket(NAMESPACE_AT_ONCE, now)
            has_own = job.budget.has(1.0, PER_SECOND, AT_ONCE, now)
            if not has_own or not self._budgets[namespace].take(NAMESPACE_PER_SECOND, NAMESPACE_AT_ONCE, now):
                return False
            job.budget.take(PER_SECOND, AT_ONCE, now)
        job.told_at = now
        return True
