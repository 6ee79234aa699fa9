"""Limits the events of each object: a burst, then one per minute, with equal events combined. Pure.

Events that have to wait are stored by reason, with a count and the latest message, so that the memory per job is
bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from elasticjob_operator import text
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.ratelimit import Bucket

BURST = 50.0  # events of one object at once; a job that is rescaled by hand stays below
PER_SECOND = 1 / 60
REASONS = 20  # reasons that may wait, for one object
OBJECTS = 4096
LONGEST = 1024  # characters of a message: no more are written


@dataclass(frozen=True, slots=True)
class Told:
    """An event to write, possibly combined from several."""

    event: Event
    count: int
    first: float  # when the first of them happened

    @property
    def message(self) -> str:
        return self.event.message if self.count == 1 else f"{self.event.message} (the last of {self.count} such events)"


@dataclass(slots=True)
class _Source:
    bucket: Bucket
    held: dict[str, Told] = field(default_factory=dict)  # by reason, the oldest first


class SpamFilter:
    """Token buckets for the objects with the most recent events, by UID."""

    def __init__(self) -> None:
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    def offer(self, uid: str, event: Event, now: float) -> Told | None:
        """The event to write now; None if it has to wait."""
        source = self._sources.setdefault(uid, _Source(Bucket(BURST, now)))
        self._sources.move_to_end(uid)
        while len(self._sources) > OBJECTS:
            self._sources.popitem(last=False)
        before = source.held.pop(event.reason, None)
        told = Told(event, before.count + 1 if before else 1, before.first if before else now)
        if source.bucket.take(PER_SECOND, BURST, now):
            return told
        source.held[event.reason] = replace(told, event=replace(event, message=text.cut(event.message, LONGEST)))
        if len(source.held) > REASONS:
            del source.held[next(iter(source.held))]
        return None

    def release(self, uid: str, now: float) -> Told | None:
        """A waiting event that may be written now; None if there is none."""
        source = self._sources.get(uid)
        if source is None or not source.held or not source.bucket.take(PER_SECOND, BURST, now):
            return None
        return source.held.pop(next(iter(source.held)))

    def is_holding(self, uid: str) -> bool:
        source = self._sources.get(uid)
        return source is not None and bool(source.held)
