"""The hang watch's decisions: whether a world that reports steps has stopped, and which of its ranks holds it up.

Most ranks of such a world wait in a collective; a rank that is somewhere else blocks them. `stacks` collects what the
ranks do. Scripts that report no steps are watched by `quiet`.

The limit adapts to the observed step time: a step may take many times longer than usual (a checkpoint, an evaluation)
before it counts as a hang.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elasticjob.channel import work
from elasticjob.channel.stacks import Place, find_places

LEAST_SECONDS = 120.0  # the shortest automatic limit; an explicit limit may be shorter
FACTOR = 30.0
MIN_STEPS = 3  # reports before the watch starts: the first steps compile and warm up


@dataclass
class Watch:
    """What the workers of this generation have reported, and when."""

    limit: float | None  # seconds; None: derive it from the step time; 0: off
    reports: int = 0
    last: float = 0.0
    step: int | None = None
    intervals: list[float] = field(default_factory=list)

    def report(self, now: float, step: int | None) -> None:
        """Record a worker's progress report."""
        if step is None or step == self.step:
            return
        if self.step is not None:
            self.intervals = [*self.intervals[-99:], now - self.last]
        self.reports, self.last, self.step = self.reports + 1, now, step


def find_limit(watch: Watch) -> float | None:
    """Seconds without a step that count as a hang; None if the watch is off."""
    if watch.limit == 0 or watch.reports < MIN_STEPS:
        return None
    if watch.limit is not None:
        return watch.limit
    usual = sorted(watch.intervals)[len(watch.intervals) // 2]
    return max(LEAST_SECONDS, FACTOR * usual, 3 * max(watch.intervals))


def is_hung(watch: Watch, now: float) -> bool:
    limit = find_limit(watch)
    return limit is not None and now - watch.last > limit


REPORT = "elasticjob: hang report of generation {}: {}"
REPORT_END = "elasticjob: end of the hang report"


def format_report(generation: int, summary: str, text: str) -> str:
    """The lines for the pod's log, between the marks by which `kubectl elasticjob diagnose` finds them."""
    return f"{REPORT.format(generation, summary)}\n{text}\n{REPORT_END}"


# Functions that return only once the other ranks have called them too.
_WAITING = (
    "/torch/distributed/",
    "/torch/autograd/",
    "/torch/nn/parallel/",
    "/torch/cuda/__init__.py",
    "/torch/cuda/streams.py",
)
_OWN = str(Path(__file__).parents[1]) + os.sep


def is_waiting(places: Sequence[Place]) -> bool:
    """Whether this rank waits for others: it is in a collective, or in a backward pass that reduces gradients."""
    return bool(places) and (any(part in places[0].file for part in _WAITING) or places[0].file.startswith(_OWN))


BLOCKED_SECONDS = 1.0  # between two looks
BLOCKED_LOOKS = 4  # An agent takes up to two seconds to withdraw what it said, so what counts must have lasted longer.


@dataclass(frozen=True)
class Look:
    """The workers of a pod at one moment, by local rank. A worker that did not answer has no stack."""

    stacks: Mapping[int, str]  # of the main threads
    done: Mapping[int, work.Work]  # so far, by all threads and children
    polls: bool = False  # all of them wait for a device, for much longer than usual


def is_blocked(looks: Sequence[Look]) -> bool:
    """Whether all workers are blocked in a collective: the latest looks see the same calls, and no work between them.

    A slow collective copies data, and whoever writes a checkpoint works or waits for the disk: neither is blocked.
    """
    looks = looks[-BLOCKED_LOOKS:]
    return len(looks) == BLOCKED_LOOKS and all(_has_stayed(*pair) for pair in itertools.pairwise(looks))


def _has_stayed(before: Look, after: Look) -> bool:
    if not after.done or before.done.keys() != after.done.keys() or before.stacks != after.stacks:
        return False
    if before.polls and after.polls:
        return True
    waits = all(is_waiting(find_places(after.stacks.get(rank, ""))) for rank in after.done)
    return waits and all(work.is_idle(before.done[rank], done) for rank, done in after.done.items())


def find_own_place(places: Sequence[Place]) -> Place | None:
    """The innermost call in the user's code, which is more useful than a position in a library."""
    own = (p for p in places if "/site-packages/" not in p.file and "/lib/python3" not in p.file)
    return next((p for p in own if not p.file.startswith((_OWN, "<"))), places[0] if places else None)
