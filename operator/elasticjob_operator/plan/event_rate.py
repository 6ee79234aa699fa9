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
OBJECTS = 4096  # that are remembered; of more, the namespace with the most loses its oldest
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
    """Token buckets for the objects with the most recent events, by namespace and UID."""

    def __init__(self) -> None:
        self._sources: dict[str, OrderedDict[str, _Source]] = {}
        self._count = 0

    def offer(self, namespace: str, uid: str, event: Event, now: float) -> Told | None:
        """The event to write now; None if it has to wait."""
        source = self._find(namespace, uid) or self._add(namespace, uid, now)
        self._sources[namespace].move_to_end(uid)
        before = source.held.pop(event.reason, None)
        told = Told(event, before.count + 1 if before else 1, before.first if before else now)
        if source.bucket.take(PER_SECOND, BURST, now):
            return told
        source.held[event.reason] = replace(told, event=replace(event, message=text.cut(event.message, LONGEST)))
        if len(source.held) > REASONS:
            del source.held[next(iter(source.held))]
        return None

    def release(self, namespace: str, uid: str, now: float) -> Told | None:
        """A waiting event that may be written now; None if there is none."""
        source = self._find(namespace, uid)
        if source is None or not source.held or not source.bucket.take(PER_SECOND, BURST, now):
            return None
        return source.held.pop(next(iter(source.held)))

    def is_holding(self, namespace: str, uid: str) -> bool:
        source = self._find(namespace, uid)
        return source is not None and bool(source.held)

    def _find(self, namespace: str, uid: str) -> _Source | None:
        of_namespace = self._sources.get(namespace)
        return None if of_namespace is None else of_namespace.get(uid)

    def _add(self, namespace: str, uid: str, now: float) -> _Source:
        if self._count >= OBJECTS:
            self._drop_oldest(max(self._sources, key=lambda one: len(self._sources[one])))
        self._count += 1
        source = self._sources.setdefault(namespace, OrderedDict())[uid] = _Source(Bucket(BURST, now))
        return source

    def _drop_oldest(self, namespace: str) -> None:
        self._sources[namespace].popitem(last=False)
        self._count -= 1
        if not self._sources[namespace]:
            del self._sources[namespace]
