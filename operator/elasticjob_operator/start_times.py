"""When the phases of a start ended, for two lines of the log: a slow start is then seen without a measurement."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Final

from elasticjob_operator import numerals

logger = logging.getLogger(__name__)

_STARTED: Final = 19  # the field of /proc/self/stat, counted from the one after the program's name


def find_age() -> float:
    """Seconds since this process started; its CPU time if that is unknown here."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = (numerals.read_count(fields[_STARTED]) or 0) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


class StartTimes:
    """`end` names what has just been completed. Once every job has had its first pass, nothing is added."""

    def __init__(
        self, find_seconds: Callable[[], float] = find_age, find_cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._find_seconds, self._find_cpu = find_seconds, find_cpu
        self._ended: list[str] = []
        self._waiting: set[Hashable] | None = None  # jobs without a pass; None before the operator leads

    def end(self, phase: str) -> None:
        self._ended.append(f"{phase} {self._find_seconds():.2f} s (CPU {self._find_cpu():.2f} s)")

    def lead(self, jobs: Iterable[Hashable]) -> None:
        """These jobs get their first pass from now on."""
        self.end("leads")
        self._waiting = set(jobs)

    def count_pass(self, job: Hashable) -> None:
        """Log the times with the first pass, and when every job has had one."""
        if not self._waiting or job not in self._waiting:
            return
        if self._ended:
            self.end("first pass")
            logger.info("since the start of the process: %s", ", ".join(self._ended))
            self._ended.clear()
        self._waiting.discard(job)
        if not self._waiting:
            self.end("every job")
            logger.info("since the start of the process: %s", ", ".join(self._ended))
