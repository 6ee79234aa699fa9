"""The pool loop: decides the sizes of the jobs that share a pool whenever something changes. Leader only.

It passes what the agents report to `elasticjob_operator.pool` and keeps the decisions. A reconcile pass reads the
decision for its job and writes it as `kubectl scale` does. Nothing here writes, so a leader that dies loses nothing:
its successor finds the sizes in the specs and the models in the statuses. While no job is in the mode Goodput, the
loop sleeps without requests and timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from elasticjob_operator import api, turn
from elasticjob_operator.api import names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.listing import Listing
from elasticjob_operator.model import claims
from elasticjob_operator.model.observe import Job
from elasticjob_operator.pool import capacity, rounds
from elasticjob_operator.pool.capacity import Held, Pool
from elasticjob_operator.pool.reasons import describe_no_pool
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.run.options import Options
from elasticjob_operator.sizing.values import PoolDecision

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 10.0  # between rounds if nothing changes
COALESCE_SECONDS: Final = 0.2  # changes within this time are decided together
OTHERS_SECONDS: Final = 30.0  # between lists of the pods of others
LINGER_SECONDS: Final = 30.0  # a pod that is deleted for longer holds its devices; before, others wait for it
NOT_OURS: Final = f"{names.LABEL_APP}!={names.LABEL_APP_VALUE}"
PLACED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(slots=True)
class _Memory:
    """What is remembered of one job between rounds."""

    uid: str
    model: Model
    step: int | None = None  # of the last report that the model has learned from
    behind: float = 0.0
    spent: float = 0.0
    mark: tuple[object, ...] = ()
    decision: PoolDecision = field(default_factory=PoolDecision)


class PoolLoop:
    """Runs until it is cancelled; `notice` wakes it."""

    def __init__(
        self,
        client: Api,
        cache: Cache,
        hub: Hub,
        intake: Intake,
        wake: Callable[[JobKey], None],
        options: Options,
    ) -> None:
        self._api, self._cache, self._hub, self._intake, self._wake = client, cache, hub, intake, wake
        self._pools, self._objective = options.pools, options.pool_objective
        self._namespaces, self._release = options.namespaces, options.release
        self._memories: dict[JobKey, _Memory] = {}
        self._noticed: set[JobKey] = set()
        self._changed = asyncio.Event()
        self._held: Held = {}
        self._leaving: dict[str, float] = {}  # pods that are deleted or whose trainer has ended, by UID: since when
        self._held_at = self._last = float("-inf")

    def notice(self, key: JobKey) -> None:
        """Something about this job has changed. Reports alone wait for the next round."""
        if key in self._memories or self._find_sharing(key) is not None:
            self._noticed.add(key)
            self._changed.set()

    def notice_many(self, keys: Collection[JobKey]) -> None:
        """The same of these jobs, whether they share a pool or not."""
        self._noticed.update(keys)
        self._changed.set()

    async def _has_changed(self) -> bool:
        """Whether a round would see something else of the jobs that were noticed since the last look."""
        noticed, self._noticed = self._noticed, set()
        for key in noticed:
            found, memory = self._find_sharing(key), self._memories.get(key)
            mark = self._mark(found[0]) if found is not None else ()
            if mark != (memory.mark if memory is not None else ()):
                return True
            await turn.pause()
        return False

    def _mark(self, job: Job) -> tuple[object, ...]:
        """What a round depends on, except for the reports."""
        status = job.status
        placed = sum(1 for pod in self._cache.pods(job.key) if pod.node and pod.live)
        degraded = status.condition("Degraded")  # as its API server refuses pods of it
        told = None if degraded is None else (degraded.status, degraded.reason)
        world = status.rendezvous.world_size
        return (job.uid, job.generation, status.goodput.training, world, status.capacity, placed, told)

    def find_decision(self, key: JobKey) -> PoolDecision | None:
        """The last decision for this job; None if it shares no pool."""
        memory = self._memories.get(key)
        return memory.decision if memory is not None else None

    async def run(self) -> None:
        async for key in turn.one_by_one(list(self._cache.jobs)):
            self.notice(key)
        rest, due = COALESCE_SECONDS, time.monotonic() + ROUND_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - time.monotonic()) if self._memories else None):
                    await self._changed.wait()
            await asyncio.sleep(rest)
            self._changed.clear()
            began = time.monotonic()
            if not await self._has_changed() and began < due:
                continue
            await self.decide()
            ended = time.monotonic()
            rest, due = max(COALESCE_SECONDS, 2 * (ended - began)), ended + ROUND_SECONDS  # leaves time for other work

    def _find_sharing(self, key: JobKey) -> tuple[Job, api.Spec] | None:
        """The job and its spec; None if it shares no pool or has finished."""
        known = self._cache.jobs.get(key)
        if known is None:
            return None
        job, spec = known[0], known[0].spec
        if spec is None or not spec.is_pooled or job.deleting or job.status.finished or spec.run_policy.suspend:
            return None
        is_ours = spec.is_ours and not claims.is_of_another(job.status.operator, self._release)
        return (job, spec) if is_ours else None

    async def decide(self) -> None:
        """One round over all pools."""
        now = self._api.clock()
        keys = turn.one_by_one(list(self._cache.jobs))
        sharing = {key: found async for key in keys if (found := self._find_sharing(key)) is not None}
        for key in self._memories.keys() - sharing.keys():
            del self._memories[key]
        if not sharing:
            return
        if now - self._held_at >= OTHERS_SECONDS:
            await self._list_others()
            self._held_at = now
        groups: dict[str, list[rounds.PooledJob]] = {}
        for key, (job, spec) in sharing.items():
            try:
                self._look(job, spec, groups, now)
            except Exception:  # of one job, which must not keep the others from their sizes
                logger.exception("%s/%s: cannot share the pool; this is a bug", *key)
            await turn.pause()
        seconds = min(now - self._last, 3 * ROUND_SECONDS) if self._last > float("-inf") else 0.0
        self._last = now
        await self._note_leaving(now)
        for pool in self._pools:
            if pool.name in groups:
                await self._share(pool, groups[pool.name], seconds, now)

    def _look(self, job: Job, spec: api.Spec, groups: dict[str, list[rounds.PooledJob]], now: float) -> None:
        """Add the job to those that share its pool."""
        memory = self._remember(job, now)
        memory.mark = self._mark(job)
        pool = capacity.find_pool(self._pools, spec.template)
        if pool is None:
            self._decide_job(job.key, PoolDecision(reason=describe_no_pool(self._pools)))
        else:
            groups.setdefault(pool.name, []).append(self._observe(job, spec, pool, memory))

    async def _share(self, pool: Pool, jobs: Sequence[rounds.PooledJob], seconds: float, now: float) -> None:
        held = await self._count_held(pool, {one.job.key: one.job.uid for one in jobs}, now)
        devices = capacity.count_capacity(pool, self._cache.nodes.values(), held)
        # In a thread: frozen values in, frozen values out. How long it takes depends on what tenants write.
        verdicts = await asyncio.to_thread(rounds.share, jobs, devices, self._objective, seconds=seconds, now=now)
        for one in jobs:
            verdict, memory = verdicts[one.job.key], self._memories.get(one.job.key)
            if memory is None or memory.uid != one.job.uid:
                continue  # it has gone meanwhile
            decision, error = PoolDecision(reason=rounds.UNCOMPUTED, pool=pool.name), verdict.error
            if error is None:
                try:
                    decision = self._keep(one, verdict, memory, pool)
                except Exception as caught:  # of one job, which must not keep the others from their sizes
                    error = caught
            if error is not None:
                logger.error("%s/%s: cannot share the pool; this is a bug", *one.job.key, exc_info=error)
            self._decide_job(one.job.key, decision)
            await turn.pause()

    def _keep(self, one: rounds.PooledJob, verdict: rounds.Verdict, memory: _Memory, pool: Pool) -> PoolDecision:
        """Remember what a round says of a job."""
        memory.behind = verdict.behind
        cost = None
        if verdict.cost is not None:
            memory.spent, cost = verdict.cost.spent, rounds.keep_cost(verdict.cost)
        gain = verdict.gain if verdict.size not in (0, one.size) else memory.decision.expected_gain
        speeds, noise = rounds.keep(memory.model), rounds.keep_noise(memory.model)
        return PoolDecision(verdict.size, verdict.reason, pool.name, gain, speeds, cost, noise)

    def _decide_job(self, key: JobKey, decision: PoolDecision) -> None:
        """Keep the decision, and wake the job unless only its measurements have changed."""
        memory = self._memories[key]
        before, memory.decision = memory.decision, decision
        if (before.size, before.reason, before.pool) != (decision.size, decision.reason, decision.pool):
            logger.info("%s/%s: pool size %s: %s", *key, decision.size or "unchanged", decision.reason)
            self._wake(key)

    # What is observed.

    def _remember(self, job: Job, now: float) -> _Memory:
        """The job's memory, including what the agents have reported since the last round."""
        memory = self._memories.get(job.key)
        if memory is None or memory.uid != job.uid:
            memory = self._memories[job.key] = _Memory(
                job.uid, rounds.recall(job.status), spent=rounds.recall_spent(job.status)
            )
        report = rounds.find_report(job.status, self._hub.agents(job.key), now)
        if report is not None and report.step != memory.step:
            memory.step = report.step
            memory.model = report.teach(memory.model, now)
        return memory

    def _observe(self, job: Job, spec: api.Spec, pool: Pool, memory: _Memory) -> rounds.PooledJob:
        known = self._cache.nodes
        pods = [p for p in self._cache.pods(job.key) if p.job_uid == job.uid and p.node in known and p.live]
        here = [known[pod.node].share for pod in pods]
        # Whoever may create pods puts one on a node, whatever it asks for: it gets what the node has at most, and
        # nothing of the pool on a node of another one.
        taken = [
            min(capacity.count_held(pod, pool.resource), share.devices)
            for pod, share in zip(pods, here, strict=True)
            if share.pool == pool.name
        ]
        wanted = capacity.count_devices(spec.template.get("spec") or {}, pool.resource)
        if pods or job.status.rendezvous.members:  # it has its size, whatever its template has become
            wanted = min(wanted, capacity.find_largest(pool, known.values()))
        devices = max(taken) if any(taken) else max(1, wanted)  # a node has none while its device plugin begins again
        rates = [share.device_rate for share in here]
        return rounds.PooledJob(
            job,
            spec,
            devices,
            len(pods),
            memory.model,
            memory.behind,
            is_paid=bool(pool.rates),
            per_hour=devices * sum(rates),
            spent=memory.spent,
        )

    async def _note_leaving(self, now: float) -> None:
        """Note since when pods are on their way out. What a job has given up is free in a moment, if its pods end."""
        before, self._leaving = self._leaving, {}
        for key in self._cache.keys_of_pods():
            for pod in self._cache.pods(key):
                if pod.deleting is not None or pod.lingers:
                    self._leaving[pod.uid] = before.get(pod.uid, now)
            await turn.pause()

    async def _count_held(self, pool: Pool, sharing: Mapping[JobKey, str], now: float) -> dict[str, int]:
        """Devices by node that cannot be given out: of pods of jobs outside of the pool or that are gone, of pods of no
        job, and of those that were deleted, or whose trainer has ended, and stay.

        `sharing`: the UIDs of the jobs that share the pool.
        """
        held = Counter(self._held.get(pool.name, {}))
        for key in self._cache.keys_of_pods():
            for pod in self._cache.pods(key):
                stays = now - self._leaving.get(pod.uid, now) > LINGER_SECONDS
                if pod.node and pod.holds_resources and (stays or pod.job_uid != sharing.get(key)):
                    held[pod.node] += capacity.count_held(pod, pool.resource)
            await turn.pause()
        for stranger in self._cache.strangers():
            held[stranger.node] += capacity.count_held(stranger, pool.resource)
            await turn.pause()
        return held

    async def _list_others(self) -> None:
        """List the pods that are not the operator's. Pods that it has no right to see hold nothing."""
        held: Held = {}
        try:
            for namespace in self._namespaces or ("",):
                listing = Listing(
                    self._api, path_of("v1", "pods", namespace), self._intake, NOT_OURS, fields=PLACED, key=""
                )
                await listing.read(functools.partial(self._add_held, held))
        except ApiError as error:
            logger.warning("cannot count the devices that other pods hold, so jobs may be promised too many: %s", error)
            return
        self._held = held

    def _add_held(self, held: Held, raw: Mapping[str, Any]) -> None:
        self._intake.take("pods", raw, lambda: capacity.add_held(held, self._pools, raw["spec"]))
