"""Leader election by a Lease (coordination.k8s.io/v1): of several operators one acts.

The holder renews it every `renew` seconds and gives it back when it ends, so that a rolling upgrade hands over at once.
It steps down by its own clock before anybody else may take over; followers judge by what they see change, never by
the clock of another machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elasticjob_operator.kube import Api, ApiError, path_of
from elasticjob_operator.turns import Urgency

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    duration: float = 10.0  # without a renewal for this long, others may take over
    renew: float = 2.0
    poll: float = 1.0

    @property
    def deadline(self) -> float:
        """The holder steps down this long after its last renewal: well before others may take over."""
        return self.duration * 0.7


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as last seen, and since when it looks like that (monotonic seconds)."""

    holder: str = ""
    renewed: str = ""
    since: float = 0.0


def is_free(sighting: Sighting, identity: str, timing: Timing, now: float) -> bool:
    """Whether this candidate may write its name: nobody holds it, it does, or the holder has been still too long."""
    return sighting.holder in ("", identity) or now - sighting.since >= timing.duration


class Election:
    """One candidate."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str, timing: Timing = Timing()) -> None:
        self._api = api
        self._path = path_of("coordination.k8s.io/v1", "leases", namespace)
        self._name = name
        self._namespace = namespace
        self.identity = identity
        self._timing = timing
        self._seen = Sighting()
        self._lease: dict[str, Any] = {}

    async def acquire(self) -> None:
        """Waits until this candidate holds the Lease."""
        while not await self._try(time.monotonic()):  # noqa: ASYNC110 - the Lease is looked at, nobody sets an event
            await asyncio.sleep(self._timing.poll)
        logger.info("leading as %s", self.identity)

    async def hold(self) -> None:
        """Renews until that fails for too long; returns when this candidate must stop acting."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < self._timing.deadline:
            await asyncio.sleep(self._timing.renew)
            now = time.monotonic()
            try:
                async with asyncio.timeout(self._timing.deadline - (now - renewed)):
                    if await self._try(now):
                        renewed = now
                    elif self._seen.holder != self.identity:
                        break
            except TimeoutError:
                break
        logger.warning("the Lease is lost; another operator acts")

    async def release(self) -> None:
        """Gives it back, so that the next one need not wait."""
        if self._lease.get("spec", {}).get("holderIdentity") != self.identity:
            return
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._api.request(
                "PUT",
                f"{self._path}/{self._name}",
                {**self._lease, "spec": spec},
                timeout=3.0,
                urgency=Urgency.NOW,
            )
        except ApiError as error:
            logger.info("the Lease could not be given back: %s", error)

    async def _try(self, now: float) -> bool:
        try:
            if not self._lease or self._seen.holder != self.identity:
                await self._look(now)
            if not is_free(self._seen, self.identity, self._timing, now):
                return False
            await self._write(now)
        except ApiError as error:
            self._lease = {}
            if error.status not in (404, 409):
                logger.warning("the Lease %s/%s: %s", self._namespace, self._name, error)
            return False
        return True

    async def _look(self, now: float) -> None:
        try:
            self._lease = await self._api.request(
                "GET",
                f"{self._path}/{self._name}",
                timeout=5.0,
                urgency=Urgency.NOW,
            )
        except ApiError as error:
            if error.status != 404:
                raise
            self._lease, self._seen = {}, Sighting()
            return
        spec = self._lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if (holder, renewed) != (self._seen.holder, self._seen.renewed):
            self._seen = Sighting(holder, renewed, now)

    async def _write(self, now: float) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = self._lease.get("spec") or {}
        took_over = old.get("holderIdentity") != self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, int(self._timing.duration)),
            "acquireTime": stamp if took_over else old.get("acquireTime", stamp),
            "renewTime": stamp,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (1 if took_over and old else 0),
        }
        if self._lease:
            body = {**self._lease, "spec": spec}
            self._lease = await self._api.request(
                "PUT",
                f"{self._path}/{self._name}",
                body,
                timeout=5.0,
                urgency=Urgency.NOW,
            )
        else:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": spec,
            }
            self._lease = await self._api.request(
                "POST",
                self._path,
                body,
                timeout=5.0,
                urgency=Urgency.NOW,
            )
        self._seen = Sighting(self.identity, stamp, now)
