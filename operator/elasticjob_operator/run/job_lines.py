"""What may be written into the operator's log about the jobs of one namespace.

Each line about a job begins with its namespace and its name. What a line tells was caused by whoever writes the job,
its pods or their events, and some tell of one pod: a namespace has a budget of such lines, all its jobs together. Long
ones count as several. The next line after those that were left out says how many they were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from elasticjob_operator.ratelimit import Bucket
from elasticjob_operator.recent import Recent

ABOUT_A_JOB: Final = "%s/%s: "  # what the message of such a line begins with
LINES_AT_ONCE, LINES_PER_SECOND = 500.0, 5.0
LONG: Final = 4096  # characters, for each of which a line counts once more
NAMESPACES: Final = 4096  # that are remembered


@dataclass
class _Budget:
    """Of one namespace."""

    lines: Bucket
    left_out: int = 0


class JobLines(logging.Filter):
    """Lets through what a namespace may still write, and everything that is not about a job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._budgets: Recent[str, _Budget] = Recent(NAMESPACES)

    def filter(self, record: logging.LogRecord) -> bool:
        namespace = find_namespace(record)
        if namespace is None:
            return True
        now = self._clock()
        if namespace not in self._budgets:
            self._budgets[namespace] = _Budget(Bucket(LINES_AT_ONCE, now))
        budget = self._budgets[namespace]
        cost = 1.0 + len(record.getMessage()) // LONG
        if not budget.lines.take(LINES_PER_SECOND, LINES_AT_ONCE, now, cost):
            budget.left_out += 1
            return False
        if budget.left_out:
            record.msg += f" ({budget.left_out} lines about jobs of this namespace were left out before)"
            budget.left_out = 0
        return True


def find_namespace(record: logging.LogRecord) -> str | None:
    """The namespace of the job, or of another object of a tenant, that a line is about; None if it is about neither."""
    if isinstance(record.msg, str) and record.msg.startswith(ABOUT_A_JOB) and isinstance(record.args, tuple):
        return str(record.args[0])
    namespace = getattr(record, "namespace", None)
    return str(namespace) if namespace else None
