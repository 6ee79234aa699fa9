"""Leader election with a Lease (coordination.k8s.io/v1): only one of several operators acts.

The holder renews the Lease several times in its duration and releases it on shutdown, so that a rolling upgrade hands
over at once. The Lease gives it leadership (`leadership`), which it loses by its own clock before another replica may
take over. Followers rely on observed changes, never on the clock of another machine, and grant a holder the duration
that it wrote to the Lease, or their own if that is longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elasticjob_operator import numerals
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.leadership import read_clock
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.text import clean

logger = logging.getLogger(__name__)

RELEASED_SECONDS = 1  # the duration in a released Lease; an empty Lease without it may still be held
LONGEST_SECONDS = 300.0  # the longest granted duration, so that a duration of years, written by mistake, ends
MOST_TRANSITIONS = 2**31 - 1  # the API server's limit
SHORTEST_SECONDS = 3.0  # with less, a pause of the machine would lose the Lease


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    duration: float = 10.0  # seconds without a renewal after which others may take over

    @property
    def renew(self) -> float:
        """From one renewal to the next, however long its answer takes."""
        return self.duration * 0.2

    @property
    def poll(self) -> float:
        """The followers' polling interval, and the interval of attempts after one that failed."""
        return self.duration * 0.1

    @property
    def deadline(self) -> float:
        """The holder steps down this long after it sent its last renewal, well before others may take over."""
        return self.duration * 0.7

    @property
    def patience(self) -> float:
        """The timeout of one request: after one without an answer, another attempt fits in before the deadline."""
        return self.duration * 0.3


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as last observed, and since when it is unchanged (seconds of `read_clock`).

    If it was deleted or emptied, the last observed holder still counts: it does not know that yet.
    """

    holder: str = ""
    renewed: str = ""
    since: float = 0.0
    duration: float = 0.0  # as written by its holder


def is_free(sighting: Sighting, identity: str, timing: Timing, now: float) -> bool:
    """Whether this candidate may take the Lease: no holder, it is the holder, or the holder has been silent
    too long.
    """
    if sighting.holder in ("", identity):
        return True
    granted = min(sighting.duration, LONGEST_SECONDS)
    return now - sighting.since >= max(timing.duration, granted)


class Election:
    """A candidate for leadership with this `Api`."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str, timing: Timing = Timing()) -> None:
        self._api = api
        self._leadership = api.leadership
        self._path = path_of("coordination.k8s.io/v1", "leases", namespace)
        self._name = name
        self._namespace = namespace
        self.identity = identity
        self._timing = timing
        self._seen = Sighting()
        self._lease: dict[str, Any] = {}
        self._sent = 0.0  # when the last renewal was, to which there was an answer
        self._until = 0.0  # when leadership ends unless it is renewed

    async def acquire(self) -> None:
        """Wait until this candidate holds the Lease, and with it leadership."""
        while not (await self._try() and self._leadership.is_held):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(self._timing.poll)
        logger.info("leading as %s", self.identity)

    async def hold(self) -> None:
        """Renew until that fails for too long or another candidate has the Lease; returns once leadership has ended."""
        due = self._sent + self._timing.renew
        while (left := self._until - read_clock()) > 0:
            renewed = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await asyncio.sleep(due - read_clock())
                    due = read_clock()
                    renewed = await self._try()
                    if not renewed and not self._leadership.is_held:
                        renewed = await self._try()  # a concurrent write: read who holds it
            if not renewed and self._seen.holder not in ("", self.identity):
                break
            due = self._sent + self._timing.renew if renewed else due + self._timing.poll
        self._leadership.end()
        held = self._seen.holder not in ("", self.identity)
        logger.warning(
            "lost the Lease %.1f s after the last renewal that was answered%s; another replica takes over",
            read_clock() - self._sent,
            f": {clean(self._seen.holder)} has it" if held else "",
        )

    async def release(self) -> None:
        """Release the Lease, so that the next leader need not wait. Nothing is written afterwards."""
        self._leadership.end()
        if self._lease.get("spec", {}).get("holderIdentity") != self.identity:
            return
        try:
            await self._put({**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": RELEASED_SECONDS})
        except ApiError as error:
            logger.info("could not release the Lease: %s", error)

    async def _try(self) -> bool:
        """Whether the Lease is this candidate's now."""
        try:
            if not self._lease or self._seen.holder != self.identity:
                await self._look()
            if not is_free(self._seen, self.identity, self._timing, read_clock()):
                return False
            await self._write()
        except ApiError as error:
            self._lease = {}
            if error.status in (404, 409):
                self._leadership.end()  # another candidate may hold it by now
            else:
                logger.warning("the Lease %s/%s: %s", self._namespace, self._name, error)
            return False
        return True

    async def _look(self) -> None:
        path = f"{self._path}/{self._name}"
        try:
            self._lease = await self._api.request("GET", path, timeout=self._timing.patience, urgency=None)
        except ApiError as error:
            if error.status != 404:
                raise
            self._lease = {}
            return
        spec = self._lease.get("spec") or {}
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        if not holder and spec.get("leaseDurationSeconds") != RELEASED_SECONDS:
            return
        if (holder, renewed) != (self._seen.holder, self._seen.renewed):
            # Count from now, not from the request: the holder may have renewed it in between.
            self._seen = Sighting(
                holder, renewed, read_clock(), float(numerals.read_count(spec.get("leaseDurationSeconds")) or 0)
            )

    async def _write(self) -> None:
        sent = read_clock()
        stamp = datetime.fromtimestamp(self._api.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = self._lease.get("spec") or {}
        took_over = old.get("holderIdentity") != self.identity
        transitions = (numerals.read_count(old.get("leaseTransitions")) or 0) + (1 if took_over and old else 0)
        self._lease = await self._put(
            {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": math.ceil(self._timing.duration),
                "acquireTime": stamp if took_over else old.get("acquireTime", stamp),
                "renewTime": stamp,
                "leaseTransitions": min(MOST_TRANSITIONS, transitions),
            }
        )
        self._seen = Sighting(self.identity, stamp, sent)
        self._sent, self._until = sent, sent + self._timing.deadline
        self._leadership.lend(self._until)

    async def _put(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Write the Lease with this spec; fails with 409 if it was changed since it was read."""
        if self._lease:
            method, path, body = "PUT", f"{self._path}/{self._name}", {**self._lease, "spec": spec}
        else:
            metadata = {"name": self._name, "namespace": self._namespace}
            method, path = "POST", self._path
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        made: dict[str, Any] = await self._api.request(method, path, body, timeout=self._timing.patience, urgency=None)
        return made
