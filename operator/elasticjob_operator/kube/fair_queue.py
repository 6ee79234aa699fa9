"""Decides which request is next when more are waiting than may run concurrently.

Urgent requests go first. Otherwise namespaces take turns, and the jobs of a namespace among themselves: ten thousand
requests of one job delay another job's only request by one. Slow responses for one namespace must not delay the others
either, so no namespace gets more than its share of the slots, neither for what is urgent nor for the rest. Some slots
are reserved for urgent requests, and as many for the others: a tenant may have something urgent waiting all the time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum
from typing import Generic, TypeVar

Owner = tuple[str, str]  # (namespace, job); "" for none

T = TypeVar("T")


class Urgency(IntEnum):
    """The priority of a request when more requests wait than may run."""

    NOW = 0  # others wait for it: the status of a job that has a world, deletions
    NORMAL = 1
    LATER = 2  # nothing waits for it


class Turns(Generic[T]):
    """A queue per job. After a turn, the job goes to the end of its namespace, and the namespace to the end of all."""

    def __init__(self) -> None:
        # Both in order of their next turn. The first key of a plain dictionary is looked for behind all that have gone.
        self._queues: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()

    def push(self, owner: Owner, item: T) -> None:
        self._queues.setdefault(owner[0], OrderedDict()).setdefault(owner[1], deque()).append(item)

    def pop(self, may_go: Callable[[str], bool]) -> tuple[Owner, T] | None:
        """The next item of the namespaces for which `may_go` holds."""
        namespace = next((n for n in self._queues if may_go(n)), None)
        if namespace is None:
            return None
        jobs = self._queues.pop(namespace)
        job, queue = jobs.popitem(last=False)
        item = queue.popleft()
        if queue:
            jobs[job] = queue
        if jobs:
            self._queues[namespace] = jobs
        return (namespace, job), item


class Slots:
    """`count` slots: `reserved` are for urgent requests, and as many for others, while both wait.

    A namespace may use `share` at most, and no more than are free: two namespaces have a third each, and one that has
    none finds one. Its urgent requests are counted apart from the others, for which they do not wait.
    """

    def __init__(self, count: int, *, reserved: int = 0, share: int | None = None) -> None:
        self._free = count
        self._most = count - reserved  # of the urgent requests, and of the others
        self._share = share
        self._held: Counter[str] = Counter()  # by namespace, for what is not urgent
        self._urgent: Counter[str] = Counter()  # those of urgent requests
        self._waiting: dict[Urgency, Turns[asyncio.Future[None]]] = {urgency: Turns() for urgency in Urgency}

    async def acquire(self, owner: Owner, urgency: Urgency = Urgency.NORMAL) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[urgency].push(owner, turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was granted at the same moment
                self.release(owner, urgency)
            raise

    def release(self, owner: Owner, urgency: Urgency = Urgency.NORMAL) -> None:
        self._free += 1
        held = self._urgent if urgency is Urgency.NOW else self._held
        held[owner[0]] -= 1
        if not held[owner[0]]:
            del held[owner[0]]
        self._serve()

    def _serve(self) -> None:
        while self._free > 0:
            found = self._next()
            if found is None:
                return
            urgency, owner, turn = found
            if not turn.done():
                self._free -= 1
                (self._urgent if urgency is Urgency.NOW else self._held)[owner[0]] += 1
                turn.set_result(None)

    def _next(self) -> tuple[Urgency, Owner, asyncio.Future[None]] | None:
        if self._urgent.total() < self._most and (found := self._pop(Urgency.NOW)) is not None:
            return found
        if self._held.total() < self._most:
            for urgency in (Urgency.NORMAL, Urgency.LATER):
                if (found := self._pop(urgency)) is not None:
                    return found
        return self._pop(Urgency.NOW)

    def _pop(self, urgency: Urgency) -> tuple[Urgency, Owner, asyncio.Future[None]] | None:
        held = self._urgent if urgency is Urgency.NOW else self._held

        def may_go(namespace: str) -> bool:
            return self._share is None or held[namespace] < min(self._share, self._free)

        found = self._waiting[urgency].pop(may_go)
        return None if found is None else (urgency, *found)
