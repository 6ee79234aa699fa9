"""The pool loop: sizes for the jobs that share a pool, decided anew whenever something happens. Leader only.

It learns from the agents' reports, asks `elasticjob_operator.pool`, and keeps the answers; a pass over the job reads
its answer and writes it the way `kubectl scale` does. So nothing here writes, and a leader that dies leaves nothing
behind: its successor finds the sizes in the specs and the models in the statuses. While no job asks for Goodput the
loop sleeps: no request, no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.model.observe import Agent, Job, parse_time
from elasticjob_operator.pool import places, round
from elasticjob_operator.pool.places import Ground, Place
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.run.options import Options
from elasticjob_operator.sizing.values import PoolSays

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0  # between rounds in which nothing happened
REST_SECONDS: Final = 0.2  # in which what happens together is answered together
OTHERS_SECONDS: Final = 30.0  # between looks at the pods of others
SETTLE_SECONDS: Final = 5.0  # of a new world, in which its steps are not typical
PAGE: Final = 500
NOT_OURS: Final = f"{names.LABEL_APP}!={names.LABEL_APP_VALUE}"
PLACED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(slots=True)
class _Memory:
    """What is remembered of one job between rounds."""

    uid: str
    model: Model
    step: int | None = None  # that the last report told of
    behind: float = 0.0
    mark: tuple[object, ...] = ()
    says: PoolSays = field(default_factory=PoolSays)


class PoolLoop:
    """Runs until it is cancelled; `notice` wakes it."""

    def __init__(
        self,
        client: Api,
        cache: Cache,
        hub: Hub,
        wake: Callable[[JobKey], None],
        options: Options,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._cache, self._hub, self._wake = client, cache, hub, wake
        self._places, self._objective = options.pools, options.pool_objective
        self._namespaces, self._clock = options.namespaces, clock
        self._memories: dict[JobKey, _Memory] = {}
        self._happened = asyncio.Event()
        self._held: Mapping[str, Mapping[str, int]] = {}  # by pool and node: devices that others hold
        self._held_at = self._last = float("-inf")

    def notice(self, key: JobKey) -> None:
        """Something about this job has changed. Its reports wait for the next look, as jobs that share nothing do."""
        found = self._sharing(key)
        memory = self._memories.get(key)
        mark = self._mark(found[0]) if found is not None else ()
        if mark != (memory.mark if memory is not None else ()):
            self._happened.set()

    def _mark(self, job: Job) -> tuple[object, ...]:
        """What a round depends on, but for the reports."""
        status = job.status
        placed = sum(1 for pod in self._cache.pods(job.key) if pod.node and pod.live)
        return (job.uid, job.generation, status.goodput.training, status.rendezvous.world_size, status.capacity, placed)

    def says(self, key: JobKey) -> PoolSays | None:
        memory = self._memories.get(key)
        return memory.says if memory is not None else None

    async def run(self) -> None:
        for key in self._cache.jobs:
            self.notice(key)
        rest = REST_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._happened.wait(), LOOK_SECONDS if self._memories else None)
            await asyncio.sleep(rest)
            self._happened.clear()
            began = time.monotonic()
            await self.decide()
            rest = max(REST_SECONDS, 2 * (time.monotonic() - began))  # a large pool leaves time for everything else

    def _sharing(self, key: JobKey) -> tuple[Job, api.Spec] | None:
        """The job where it shares a pool and has not ended."""
        known = self._cache.jobs.get(key)
        if known is None:
            return None
        job, spec = known[0], known[0].spec
        if spec is None or not spec.is_pooled or job.deleting or job.status.finished or spec.run_policy.suspend:
            return None
        return (job, spec) if spec.manager in ("", names.MANAGED_BY) else None

    async def decide(self) -> None:
        """One round over all pools."""
        now = self._clock()
        sharing = {key: found for key in self._cache.jobs if (found := self._sharing(key)) is not None}
        for key in self._memories.keys() - sharing.keys():
            del self._memories[key]
        if not sharing:
            return
        if now - self._held_at >= OTHERS_SECONDS:
            await self._look_at_others()
            self._held_at = now
        groups: dict[str, list[round.Sharer]] = {}
        for key, (job, spec) in sharing.items():
            memory = self._remember(job, now)
            memory.mark = self._mark(job)
            place = places.find_place(self._places, spec.template)
            if place is None:
                self._tell(key, PoolSays(reason=self._why_no_pool()))
            else:
                groups.setdefault(place.name, []).append(self._see(job, spec, place, memory))
            await asyncio.sleep(0)
        seconds = min(now - self._last, 3 * LOOK_SECONDS) if self._last > float("-inf") else 0.0
        self._last = now
        for place in self._places:
            if place.name in groups:
                self._share(place, groups[place.name], seconds, now)

    def _share(self, place: Place, sharers: Sequence[round.Sharer], seconds: float, now: float) -> None:
        capacity = places.count_capacity(self._ground(place), self._count_held(place, {s.job.key for s in sharers}))
        verdicts = round.share(sharers, capacity, self._objective, seconds=seconds, now=now)
        for one in sharers:
            verdict, memory = verdicts[one.job.key], self._memories[one.job.key]
            memory.behind = verdict.behind
            gain = verdict.gain if verdict.size not in (0, one.size) else memory.says.expected_gain
            self._tell(one.job.key, PoolSays(verdict.size, verdict.reason, place.name, gain, round.keep(memory.model)))

    def _tell(self, key: JobKey, says: PoolSays) -> None:
        """A pass reads it; only what it would write at once wakes one."""
        memory = self._memories[key]
        before, memory.says = memory.says, says
        if replace(before, speeds=(), expected_gain=0.0) != replace(says, speeds=(), expected_gain=0.0):
            logger.info("%s/%s: the pool says %s: %s", *key, says.size or "nothing", says.reason)
            self._wake(key)

    def _why_no_pool(self) -> str:
        known = ", ".join(f"{place.name} ({place.resource})" for place in self._places) or "none"
        return f"no pool has what its pods ask for; the operator's pools are: {known}"

    # What is seen.

    def _remember(self, job: Job, now: float) -> _Memory:
        """With what the agents have reported since the last round."""
        memory = self._memories.get(job.key)
        if memory is None or memory.uid != job.uid:
            memory = self._memories[job.key] = _Memory(job.uid, round.recall(job.status))
        status, world = job.status, job.status.rendezvous
        formed = parse_time(world.formed_time)
        if not status.goodput.training or formed is None or now - formed < SETTLE_SECONDS:
            return memory
        report = _find_report(self._hub.agents(job.key), world.generation)
        if report is not None and report[0] != memory.step:
            memory.step = report[0]
            memory.model = memory.model.learn(world.world_size, report[1], now)
        return memory

    def _see(self, job: Job, spec: api.Spec, place: Place, memory: _Memory) -> round.Sharer:
        pods = [pod for pod in self._cache.pods(job.key) if pod.job_uid == job.uid and pod.node and pod.live]
        devices = max(1, places.count_devices(spec.template.get("spec") or {}, place.resource))
        return round.Sharer(job, spec, devices, len(pods), memory.model, memory.behind)

    def _ground(self, place: Place) -> list[Ground]:
        """Cordoned nodes and those that are about to go are no capacity, though what trains there still trains."""
        return [
            Ground(node.name, node.devices, node.ready and not node.cordoned and not node.leaving)
            for node in self._cache.nodes.values()
            if node.pool == place.name
        ]

    def _count_held(self, place: Place, sharing: set[JobKey]) -> Mapping[str, int]:
        """Devices by node that pods of others hold: those of jobs that share nothing, and those of no job."""
        held = dict(self._held.get(place.name, {}))
        for key, (job, _) in self._cache.jobs.items():
            if key in sharing or job.spec is None:
                continue
            devices = places.count_devices(job.spec.template.get("spec") or {}, place.resource)
            for pod in self._cache.pods(key):
                if devices and pod.node and not pod.terminal:
                    held[pod.node] = held.get(pod.node, 0) + devices
        return held

    async def _look_at_others(self) -> None:
        """The pods that are none of ours, as far as they may be listed; what cannot be seen holds nothing."""
        held: dict[str, dict[str, int]] = {place.name: {} for place in self._places}
        try:
            for namespace in self._namespaces or ("",):
                query = {"labelSelector": NOT_OURS, "fieldSelector": PLACED, "limit": str(PAGE)}
                while True:
                    page = await self._api.request("GET", path_of("v1", "pods", namespace), query=query)
                    for raw in page.get("items") or ():
                        self._add(held, raw["spec"])
                    token = (page.get("metadata") or {}).get("continue")
                    if not token:
                        break
                    query = {**query, "continue": token}
        except ApiError as error:
            logger.warning("pods of others are not counted, which may promise jobs devices that are taken: %s", error)
            return
        self._held = held

    def _add(self, held: Mapping[str, dict[str, int]], spec: Mapping[str, Any]) -> None:
        for place in self._places:
            devices = places.count_devices(spec, place.resource)
            if devices:
                node = str(spec.get("nodeName") or "")
                held[place.name][node] = held[place.name].get(node, 0) + devices


def _find_report(agents: Mapping[str, Agent], generation: int) -> tuple[int, float] | None:
    """(step, seconds of a step) that the furthest rank of this world tells of."""
    reports = [a.progress for a in agents.values() if a.progress is not None and a.progress.generation == generation]
    found = [(r.step, r.step_seconds) for r in reports if r.step is not None and r.step_seconds]
    return max(found, default=None)
