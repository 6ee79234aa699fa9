"""Whose turn it is where more is wanted than may be under way at once.

What is urgent goes first. Among equals namespaces take turns, and the jobs of a namespace among themselves: ten
thousand requests of one job hold up another job's only request by one. Slow answers for one namespace must not hold up
the others either, so no namespace has more than its share of the slots, and some are kept for what is urgent.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from enum import IntEnum
from typing import Generic, TypeVar

Owner = tuple[str, str]  # (namespace, job); "" where there is none

T = TypeVar("T")


class Urgency(IntEnum):
    """Who goes first where more requests are wanted than may be under way."""

    NOW = 0  # others wait for it: the Lease, what is remembered, what has to go
    NORMAL = 1
    LATER = 2  # nobody waits for it


class Turns(Generic[T]):
    """A queue for each job. Who has had a turn goes to the end: the job in its namespace, the namespace among all."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, deque[T]]] = {}  # both in the order of their next turn

    def push(self, owner: Owner, item: T) -> None:
        self._queues.setdefault(owner[0], {}).setdefault(owner[1], deque()).append(item)

    def pop(self, may_go: Callable[[str], bool]) -> tuple[Owner, T] | None:
        """The next one, of the namespaces that may go."""
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
    """`count` of them: the last `reserved` only for what is urgent, and for the rest `share` a namespace at most."""

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
            if turn.done() and not turn.cancelled():  # it was handed over in the same moment
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
