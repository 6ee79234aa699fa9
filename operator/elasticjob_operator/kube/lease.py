"""Leader election with a Lease (coordination.k8s.io/v1): only one of several operators acts.

The holder renews it several times in its duration and gives it back when it ends, so that a rolling upgrade hands over
at once. With the Lease it has the right to write (`leadership`), and loses it by its own clock before anybody else may
take over. Followers judge by what they see change, never by the clock of another machine, and grant a holder the
duration that it wrote into the Lease, or their own where that is longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.kube.leadership import read_clock
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of

logger = logging.getLogger(__name__)

RELEASED_SECONDS = 1  # the duration in a Lease that was given back; one that is empty otherwise may still be held
LONGEST_SECONDS = 300.0  # that a holder is granted: one that was written for seventy years by mistake ends
MOST_TRANSITIONS = 2**31 - 1  # what the API server can store
SHORTEST_SECONDS = 3.0  # below it, a pause of the machine would cost the Lease


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    duration: float = 10.0  # without a renewal for this long, others may take over

    @property
    def renew(self) -> float:
        """How often the holder renews: a second and a third try fit in before the deadline."""
        return self.duration * 0.2

    @property
    def poll(self) -> float:
        """How often others look, and how soon a renewal that failed is tried again."""
        return self.duration * 0.1

    @property
    def deadline(self) -> float:
        """The holder steps down this long after it sent its last renewal: well before others may take over."""
        return self.duration * 0.7

    @property
    def patience(self) -> float:
        """For one request."""
        return self.duration * 0.4


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as last seen, and since when it looks like that (seconds of `read_clock`).

    Where it was deleted or emptied, its holder is still the one that was seen last: that one has not heard of it yet.
    """

    holder: str = ""
    renewed: str = ""
    since: float = 0.0
    duration: float = 0.0  # what its holder says of it


def is_free(sighting: Sighting, identity: str, timing: Timing, now: float) -> bool:
    """Whether this candidate may write its name: nobody holds it, it does, or the holder has been still too long."""
    if sighting.holder in ("", identity):
        return True
    granted = min(sighting.duration, LONGEST_SECONDS)
    return now - sighting.since >= max(timing.duration, granted)


class Election:
    """One candidate for the right to write by this `Api`."""

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
        self._until = 0.0  # when it is lost at the latest, unless it is renewed

    async def acquire(self) -> None:
        """Waits until this candidate holds the Lease, and with it the right to write."""
        while not (await self._try() and self._leadership.is_held):  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(self._timing.poll)
        logger.info("leading as %s", self.identity)

    async def hold(self) -> None:
        """Renews until that fails for too long, or another has it; returns when the right to write is gone."""
        pause = self._timing.renew
        while (left := self._until - read_clock()) > 0:
            renewed = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await asyncio.sleep(pause)
                    renewed = await self._try()
                    if not renewed and not self._leadership.is_held:
                        renewed = await self._try()  # somebody else has written into it: look whose it is
            if not renewed and self._seen.holder not in ("", self.identity):
                break
            pause = self._timing.renew if renewed else self._timing.poll
        self._leadership.end()
        logger.warning("lost the Lease; another replica takes over")

    async def release(self) -> None:
        """Gives it back, so that the next one need not wait. Nothing is written from here on."""
        self._leadership.end()
        if self._lease.get("spec", {}).get("holderIdentity") != self.identity:
            return
        try:
            await self._put({**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": RELEASED_SECONDS})
        except ApiError as error:
            logger.info("could not release the Lease: %s", error)

    async def _try(self) -> bool:
        """Whether it is this candidate's now."""
        try:
            if not self._lease or self._seen.holder != self.identity:
                await self._look()
            if not is_free(self._seen, self.identity, self._timing, read_clock()):
                return False
            await self._write()
        except ApiError as error:
            self._lease = {}
            if error.status in (404, 409):
                self._leadership.end()  # it may be another's by now
            else:
                logger.warning("the Lease %s/%s: %s", self._namespace, self._name, error)
            return False
        return True

    async def _look(self) -> None:
        path = f"{self._path}/{self._name}"
        try:
            self._lease = await self._api.request("GET", path, timeout=self._timing.patience, urgency=Urgency.NOW)
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
            # From now on, not from when it was asked for: its holder may have renewed it in between.
            self._seen = Sighting(holder, renewed, read_clock(), float(spec.get("leaseDurationSeconds") or 0))

    async def _write(self) -> None:
        sent = read_clock()
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = self._lease.get("spec") or {}
        took_over = old.get("holderIdentity") != self.identity
        transitions = int(old.get("leaseTransitions") or 0) + (1 if took_over and old else 0)
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
        self._until = sent + self._timing.deadline
        self._leadership.lend(self._until)

    async def _put(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The Lease with this spec; refused with 409 where somebody else has written since it was read."""
        if self._lease:
            method, path, body = "PUT", f"{self._path}/{self._name}", {**self._lease, "spec": spec}
        else:
            metadata = {"name": self._name, "namespace": self._namespace}
            method, path = "POST", self._path
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        made: dict[str, Any] = await self._api.request(
            method, path, body, timeout=self._timing.patience, urgency=Urgency.NOW
        )
        return made
