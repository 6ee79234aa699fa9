"""Reads the events of pods that wait without a reason in their status: of one pod of a job, about twice a minute.

For each of these lists, the API server looks at all events of the namespace. Whoever makes many jobs whose pods wait,
and writes many events, would keep it busy for everybody: a namespace has a budget of such lists.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from elasticjob_operator.backoff import spread
from elasticjob_operator.failures import waiting
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.model.observe import Job, Pod
from elasticjob_operator.plan.values import first
from elasticjob_operator.ratelimit import Bucket
from elasticjob_operator.recent import Recent
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
_REFUSED_SECONDS = 600.0  # an operator whose role does not let it list events trains jobs all the same
LISTS_AT_ONCE, LISTS_PER_SECOND = 20.0, 1.0  # of one namespace
_NAMESPACES = 4096  # that are remembered
MOST_EVENTS = 50  # events of one pod ...
MOST_BYTES = 256 * 1024  # ... which whoever may write events there makes as large as he likes


class EventLists:
    """Of all jobs."""

    def __init__(self) -> None:
        self._budgets: Recent[str, Bucket] = Recent(_NAMESPACES)

    def may_read(self, namespace: str, now: float) -> bool:
        """Whether the events of a pod in this namespace may be read now, which then counts. `now` is monotonic."""
        if namespace not in self._budgets:
            self._budgets[namespace] = Bucket(LISTS_AT_ONCE, now)
        return self._budgets[namespace].take(LISTS_PER_SECOND, LISTS_AT_ONCE, now)


@dataclass(slots=True)
class QuietPods:
    """What is known about the quiet pods of one job."""

    said: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    again_at: float = 0.0  # monotonic

    async def look(
        self, api: Api, lists: EventLists, job: Job, pods: Sequence[Pod], nodes: Collection[str], now: float
    ) -> tuple[bool, float | None]:
        """Whether something else is known now, and when to look next. `nodes`: those that exist, of the pods'."""
        _, lost = waiting.find_lost(pods, nodes, now)
        pod, due = waiting.find_quiet(pods, waiting.WARN_SECONDS, now)
        _, told = waiting.find_quiet(pods, waiting.PATIENCE_SECONDS, now)
        before = self.said
        if pod is None:
            self.said = {}
            return before != self.said, first(due, lost)
        if self.again_at <= time.monotonic():
            self.again_at = time.monotonic() + spread(LOOK_SECONDS)  # so that many jobs do not come in the same order
            if lists.may_read(job.namespace, time.monotonic()):
                self.said = {pod.uid: await self._read(api, job, pod)}
        return before != self.said, first(due, told, lost, now + max(0.0, self.again_at - time.monotonic()))

    async def _read(self, api: Api, job: Job, pod: Pod) -> tuple[bool, str]:
        query = (("fieldSelector", f"involvedObject.uid={pod.uid}"), ("limit", str(MOST_EVENTS)))
        try:
            found = await api.request(
                *("GET", path_of("v1", "events", job.namespace)),
                query=query,
                urgency=Urgency.LATER,
                job=job.name,
                most_bytes=MOST_BYTES,
            )
        except ApiError as error:
            logger.info("%s/%s: cannot read the events of %s: %s", job.namespace, job.name, pod.name, error)
            if error.status == 403:
                self.again_at = time.monotonic() + _REFUSED_SECONDS
            return False, ""
        return waiting.read_events(found.get("items") or ())
