"""Reads the pods and events of one job while somebody looks at it, and never more often than the cluster can bear."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

from elasticjob_operator.client import Client, ClientError
from elasticjob_operator.dashboard.jobpage import Seen

T = TypeVar("T")

_LEAST_PAUSE: Final = 2.0
_SHARE: Final = 10  # reading takes at most this part of the time


class Looker:
    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self.seen = Seen()
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
        begin = time.monotonic()
        if begin < self._due:
            return
        problems: dict[str, str] = {}

        async def read(what: str, found: Awaitable[T]) -> T | None:
            try:
                return await found
            except ClientError as error:
                problems[what] = str(error)
                return None

        pods, events = await asyncio.gather(
            read("pods", self._client.pods(self._name, self._namespace)),
            read("events", self._client.events(self._name, self._namespace)),
        )
        self.seen = Seen(pods, events, problems)
        took = time.monotonic() - begin
        self._due = time.monotonic() + max(_LEAST_PAUSE, took * _SHARE)
