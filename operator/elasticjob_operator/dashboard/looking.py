"""Reads the pods and events of one job, and what the board does not keep of it, while somebody looks at it.

Never more often than the cluster can bear.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

from elasticjob_operator.client import Client, ClientError
from elasticjob_operator.client.model import summarize
from elasticjob_operator.dashboard.board import Board
from elasticjob_operator.dashboard.jobpage import Seen
from elasticjob_operator.kube.fair_queue import Slots

T = TypeVar("T")

MOST_LOOKS: Final = 4  # at the same time, for all pages: each holds a page of pods and one of events ...
MOST_LOOKS_OF_ONE: Final = 2  # ... and of one viewer, who may have a namespace in which there is much to read
_LEAST_PAUSE: Final = 2.0
_SHARE: Final = 10  # reading takes at most this part of the time


class Looker:
    def __init__(self, client: Client, namespace: str, name: str, turns: Slots, viewer: str, board: Board) -> None:
        """`turns`: of all that look, by viewer."""
        self.seen = Seen()
        self._board = board
        self._turns, self._who = turns, (viewer, f"{namespace}/{name}")
        self._client = client
        self._namespace = namespace
        self._name = name
        self._due = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next look is due."""
        return max(0.0, self._due - time.monotonic())

    async def look(self) -> None:
        """Read the pods and events, unless that was done a moment ago. What cannot be read is said in words."""
        if time.monotonic() < self._due:
            return
        await self._turns.acquire(self._who)
        begin = time.monotonic()
        try:
            self.seen = await self._read()
        finally:
            self._turns.release(self._who)
        took = time.monotonic() - begin
        self._due = time.monotonic() + max(_LEAST_PAUSE, took * _SHARE)

    async def _read(self) -> Seen:
        problems: dict[str, str] = {}

        async def read(what: str, found: Awaitable[T]) -> T | None:
            try:
                return await found
            except ClientError as error:
                problems[what] = str(error)
                return None

        known = self._board.find(self._namespace, self._name)
        is_short = known is not None and known.is_short
        pods, events, job = await asyncio.gather(
            read("pods", self._client.pods(self._name, self._namespace)),
            read("events", self._client.events(self._name, self._namespace)),
            read("job", self._client.get(self._name, self._namespace) if is_short else _nothing()),
        )
        return Seen(pods, events, problems, None if job is None else summarize(job))


async def _nothing() -> None:
    return None
