"""The quiet watch: detects workers that neither communicate nor compute, for scripts that do not report steps.

Every few seconds the agent looks at each worker: how many collectives it has entered, how much processor time it has
used, how much it has read and written. A rank that waits in a collective does nothing of this, and a stuck rank that
holds it up does neither. A rank that evaluates uses the processor, and one that saves a checkpoint writes. So a world
hangs when all workers of all pods are quiet for long; one agent alone cannot know, and only reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticjob.channel import hang
from elasticjob.channel.work import Work

LOOK_SECONDS = 10.0
MIN_MOVES = 3  # looks that found more collectives, before the watch starts
_FACTOR = 3.0  # times the longest time that the workers were quiet before
_BUSY_SHARE = 0.03  # of a processor
_TICKS = 100  # a second
_BYTES = 1 << 20


@dataclass(frozen=True)
class Look:
    """One worker at one moment: what it has done since it started."""

    done: Work = field(default_factory=Work)  # with its children
    collectives: int | None = None  # entered; None if it did not say


def has_moved(before: Look, after: Look) -> bool:
    """Whether this worker has entered a collective since the look before."""
    return None not in (before.collectives, after.collectives) and before.collectives != after.collectives


def is_active(before: Look, after: Look, seconds: float) -> bool:
    """Whether this worker has done anything between two looks that are `seconds` apart."""
    if has_moved(before, after) or after.done.waits_for_disk:
        return True
    share = (after.done.ticks - before.done.ticks) / _TICKS / max(seconds, 0.1)
    return share > _BUSY_SHARE or after.done.bytes - before.done.bytes > _BYTES


@dataclass
class Watch:
    """What was seen of the workers of this generation. Times are in seconds of a monotonic clock."""

    limit: float | None  # seconds; None: derive it; 0: off
    looked: float | None = None
    active: float = 0.0  # when a worker was active last
    moves: int = 0
    longest: float = 0.0  # the longest time without activity, before there was some again
    looks: Mapping[int, Look] = field(default_factory=dict)  # by pid

    def is_due(self, now: float) -> bool:
        """Whether to look again."""
        every = LOOK_SECONDS if not self.limit else min(LOOK_SECONDS, self.limit / 4)
        return self.limit != 0 and (self.looked is None or now - self.looked >= every)

    def note(self, now: float, looks: Mapping[int, Look]) -> None:
        """Record a look at all workers, by pid."""
        before, seconds = self.looks, now - (self.looked or now)
        known = looks.keys() == before.keys()
        self.moves += known and any(has_moved(before[pid], look) for pid, look in looks.items())
        if not known or any(is_active(before[pid], look, seconds) for pid, look in looks.items()):
            if self.moves:
                self.longest = max(self.longest, now - self.active)
            self.active = now
        self.looked, self.looks = now, looks

    def quiet_seconds(self, now: float) -> float:
        return now - self.active if self.looks else 0.0

    def is_quiet(self, now: float) -> bool:
        """Whether all workers have been quiet for longer than this script ever was while it trained."""
        if self.limit == 0 or self.moves < MIN_MOVES or not self.looks:
            return False
        limit = self.limit or max(hang.LEAST_SECONDS, _FACTOR * self.longest)
        return self.quiet_seconds(now) > limit
