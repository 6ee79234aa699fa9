"""Reads pods that should be gone by now, in case the watch has missed that: a few at a time, and later and later.

Most of them are not gone: a finalizer keeps them, or their node does not respond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from elasticjob_operator.apply import deletions
from elasticjob_operator.backoff import find_pause
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.plan.values import first

OVERDUE_SECONDS: Final = 2.0  # beyond its grace period, before a pod is read for the first time
PAUSE_SECONDS: Final = 5.0  # between two reads of pods; of the same pod, it doubles ...
LONGEST_PAUSE: Final = 300.0  # ... up to this
MOST_AT_ONCE: Final = 50


@dataclass(slots=True)
class OverduePods:
    """The overdue pods of one job. Times are in seconds since the epoch."""

    looks: dict[str, tuple[int, float]] = field(default_factory=dict)  # by UID: how many, and when the next one is due
    again_at: float = 0.0

    async def look(self, api: Api, cache: Cache, pods: Sequence[Pod], namespace: str, now: float) -> float | None:
        """Update the cache; return when to look next."""
        chosen = self.choose(pods, now)
        await asyncio.gather(*(deletions.look_again(api, cache, namespace, p.name, p.uid) for p in chosen))
        due = [self._due(pod, pod.deleting) for pod in pods if pod.deleting is not None]
        return max(first(*due) or 0.0, self.again_at) if due else None

    def choose(self, pods: Sequence[Pod], now: float) -> list[Pod]:
        """The pods to read now, which are not due again for a while."""
        due = {pod.uid: self._due(pod, pod.deleting) for pod in pods if pod.deleting is not None}
        self.looks = {uid: look for uid, look in self.looks.items() if uid in due}
        if now < self.again_at <= now + PAUSE_SECONDS:
            return []
        overdue = sorted((pod for pod in pods if pod.uid in due and due[pod.uid] <= now), key=lambda pod: due[pod.uid])
        chosen = overdue[:MOST_AT_ONCE]
        for pod in chosen:
            times = self.looks.get(pod.uid, (0, 0.0))[0] + 1
            self.looks[pod.uid] = times, now + find_pause(times, first=PAUSE_SECONDS, most=LONGEST_PAUSE)
        if chosen:
            self.again_at = now + PAUSE_SECONDS
        return chosen

    def _due(self, pod: Pod, deleting: float) -> float:
        known = self.looks.get(pod.uid)
        return known[1] if known is not None else deleting + OVERDUE_SECONDS
