"""Decides which request is next when more are waiting than may run concurrently.

Urgent requests go first. Otherwise namespaces take turns, and the jobs of a namespace among themselves: ten thousand
requests of one job delay another job's only request by one. Slow responses for one namespace must not delay the others
either, so no namespace gets more than its share of the slots, and some slots are reserved for urgent requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from enum import IntEnum
from typing import Generic, TypeVar

Owner = tuple[str, str]  # (namespace, job); "" for none

T = TypeVar("T")


class Urgency(IntEnum):
    """The priority of a request when more requests wait than may run."""

    NOW = 0  # others wait for it: the Lease, the status of a job that has a world, deletions
    NORMAL = 1
    LATER = 2  # nothing waits for it


class Turns(Generic[T]):
    """A queue per job. After a turn, the job goes to the end of its namespace, and the namespace to the end of all."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, deque[T]]] = {}  # both in order of their next turn

    def push(self, owner: Owner, item: T) -> None:
        self._queues.setdefault(owner[0], {}).setdefault(owner[1], deque()).append(item)

    def pop(self, may_go: Callable[[str], bool]) -> tuple[Owner, T] | None:
        """The next item of the namespaces for which `may_go` holds."""
        namespace = next((n for n in self._queues if may_go(n)), None)
        if namespace is None:
            return None
        jobs = self._queues.pop(namespace)
        job = next(iter(jobs))
        queue = jobs.pop(job)
        item = queue.popleft()
        if queue:
            jobs[job] = queue
        if jobs:
            self._queues[namespace] = jobs
        return (namespace, job), item


class Slots:
    """`count` slots: the last `reserved` are for urgent requests; others may use `share` per namespace at most."""

    def __init__(self, count: int, *, reserved: int = 0, share: int | None = None) -> None:
        self._free = count
        self._reserved = reserved
        self._share = share or count
        self._held: Counter[str] = Counter()  # by namespace
        self._waiting: dict[Urgency, Turns[asyncio.Future[None]]] = {urgency: Turns() for urgency in Urgency}

    async def acquire(self, owner: Owner, urgency: Urgency = Urgency.NORMAL) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[urgency].push(owner, turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was granted at the same moment
                self.release(owner)
            raise

    def release(self, owner: Owner) -> None:
        self._free += 1
        self._held[owner[0]] -= 1
        if not self._held[owner[0]]:
            del self._held[owner[0]]
        self._serve()

    def _serve(self) -> None:
        while self._free > 0:
            found = self._next()
            if found is None:
                return
            owner, turn = found
            if not turn.done():
                self._free -= 1
                self._held[owner[0]] += 1
                turn.set_result(None)

    def _next(self) -> tuple[Owner, asyncio.Future[None]] | None:
        urgent = self._waiting[Urgency.NOW].pop(lambda _: True)
        if urgent is not None or self._free <= self._reserved:
            return urgent
        for urgency in (Urgency.NORMAL, Urgency.LATER):
            found = self._waiting[urgency].pop(lambda namespace: self._held[namespace] < self._share)
            if found is not None:
                return found
        return None
