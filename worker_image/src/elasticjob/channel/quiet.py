"""The quiet watch: detects workers that neither communicate nor compute, for scripts that do not report steps.

Every few seconds the agent looks at each worker: how many collectives it has entered, how often its main thread was
scheduled, how much processor time it has used, how much it has read and written. There are three judgements:

- *active*: it entered a collective, or does some work, or a lot of it. A rank that evaluates uses the processor, and
  one that saves a checkpoint writes.
- *beside*: its main thread was not scheduled, but something else goes on a little: a thread that samples the system, a
  chatty log, or a system call that waits for a disk. It may be work (an upload that the main thread waits for) or not.
- *quiet*: nothing at all. A rank that waits in a collective does nothing, and a stuck rank that holds it up neither. A
  session that waits for a device polls it; it tells that its device does not go on (`completion`).

A world hangs when all workers of all pods are quiet for long; one agent alone cannot know, and only reports it. Where
something goes on beside, the agent soon tells where its workers are, and calls them quiet much later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from elasticjob.channel import completion, hang
from elasticjob.channel.completion import Told
from elasticjob.channel.work import Work

LOOK_SECONDS = 10.0
MIN_MOVES = 3  # looks that found more collectives, from which on it is known how long this script is usually quiet
EARLY_SECONDS = 300.0  # the automatic limit before
BESIDE_SECONDS = 1800.0  # the shortest automatic limit if something goes on beside
_BESIDE_FACTOR = 5.0  # ... and how many times the limit
_STARTING_FACTOR = 3.0  # of a limit of the user's, before the first collective: workers start, and fetch their data
_FACTOR = 3.0  # times the longest time that the workers were quiet before
_TICKS = 100  # a second
_BYTES = 1 << 20
_LITTLE, _MUCH = 0.03, 0.25  # of a processor
_MUCH_BYTES = 1 << 20  # a second
_STILL = 1.0  # how often a second a main thread may be scheduled that only waits


class Activity(IntEnum):
    """What a worker has done between two looks."""

    QUIET = 0
    BESIDE = 1
    ACTIVE = 2


@dataclass(frozen=True)
class Look:
    """One worker at one moment: what it has done since it started."""

    done: Work = field(default_factory=Work)  # with its children
    collectives: int | None = None  # entered; None if it did not say
    step: Told | None = None  # of a session on a device: how far it is


def has_moved(before: Look, after: Look) -> bool:
    """Whether this worker has entered a collective since the look before."""
    return None not in (before.collectives, after.collectives) and before.collectives != after.collectives


def judge(before: Look, after: Look, seconds: float) -> Activity:
    """What this worker has done between two looks that are `seconds` apart."""
    if has_moved(before, after):
        return Activity.ACTIVE
    if completion.has_stayed(before.step, after.step):
        return Activity.QUIET  # what uses the processor polls the device
    seconds = max(seconds, 0.1)
    share = (after.done.ticks - before.done.ticks) / _TICKS / seconds
    count = after.done.bytes - before.done.bytes
    if share > _MUCH or count > max(_BYTES, _MUCH_BYTES * seconds):
        return Activity.ACTIVE
    if share <= _LITTLE and count <= _BYTES and not after.done.waits_for_disk:
        return Activity.QUIET
    return Activity.BESIDE if _is_still(before.done, after.done, seconds) else Activity.ACTIVE


def _is_still(before: Work, after: Work, seconds: float) -> bool:
    if before.switches is None or after.switches is None:
        return False
    return after.switches - before.switches <= 1 + _STILL * seconds


@dataclass
class Watch:
    """What was seen of the workers of this generation. Times are in seconds of a monotonic clock."""

    limit: float | None  # seconds; None: derive it; 0: off
    looked: float | None = None
    active: float = 0.0  # when a worker was active last
    stirred: float = 0.0  # ... or something went on beside
    moves: int = 0
    has_entered: bool = False  # a collective, in this world
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
        self.has_entered = self.has_entered or any(look.collectives for look in looks.values())
        judged = [judge(before[pid], look, seconds) for pid, look in looks.items()] if known else [Activity.ACTIVE]
        found = max(judged, default=Activity.QUIET)
        if found is Activity.ACTIVE:
            if self.moves:
                self.longest = max(self.longest, now - self.active)
            self.active = now
        if found is not Activity.QUIET:
            self.stirred = now
        self.looked, self.looks = now, looks

    def quiet_seconds(self, now: float) -> float:
        """For how long no worker has been active."""
        return now - self.active if self.looks else 0.0

    def find_limit(self) -> float | None:
        """Seconds without any activity that count as a hang; None if none do."""
        if self.limit == 0 or not self.looks:
            return None
        if self.limit is not None:
            return self.limit * (1.0 if self.has_entered else _STARTING_FACTOR)
        if self.moves >= MIN_MOVES:
            return max(hang.LEAST_SECONDS, _FACTOR * self.longest)
        return EARLY_SECONDS if self.has_entered else None  # a script that does not communicate may do nothing

    def is_quiet(self, now: float) -> bool:
        """Whether all workers have been quiet for longer than this script ever was while it trained."""
        limit = self.find_limit()
        if limit is None:
            return False
        beside = _BESIDE_FACTOR * limit if self.limit else max(BESIDE_SECONDS, _BESIDE_FACTOR * limit)
        return now - self.stirred > limit or now - self.active > beside

    def is_suspicious(self, now: float) -> bool:
        """Whether no worker has been active for so long, though something may go on beside."""
        limit = self.find_limit()
        return limit is not None and now - self.active > limit
