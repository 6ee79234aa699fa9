"""Wires the parts together and runs them: watches → cache → controller → API, agents ↔ hub, health and metrics.

Every replica keeps its cache up to date; only the holder of the Lease accepts agents and writes. Losing the Lease ends
the process, because a fresh process is the safest follower.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from elasticjob_operator import __version__ as version
from elasticjob_operator import ratelimit
from elasticjob_operator.api import bounds, names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.apply import Applier
from elasticjob_operator.errors import UsageError
from elasticjob_operator.hub import auth, endpoint, limits
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.integrations.kueue.integration import Kueue
from elasticjob_operator.kube.cache import Cache, UnownedObject
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.jobwatch import JobWatch
from elasticjob_operator.kube.lease import Election, Timing
from elasticjob_operator.kube.supervise import keep_going
from elasticjob_operator.kube.watch import Watch
from elasticjob_operator.model.observe import Job, identify_job
from elasticjob_operator.plan.plan import Config, Plan
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.pool import capacity
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.run import contact, file_limits, metrics
from elasticjob_operator.run.cluster import NO_CRD, await_crd, build_watches, discover
from elasticjob_operator.run.controller import Controller
from elasticjob_operator.run.http import HttpServer
from elasticjob_operator.run.loop_lag import Pulse
from elasticjob_operator.run.node_memory import NodeCondition, NodeMark, NodeMarks, NodeTaint
from elasticjob_operator.run.options import Options
from elasticjob_operator.run.others import Others
from elasticjob_operator.run.otlp import Exporter
from elasticjob_operator.run.pooling import PoolLoop
from elasticjob_operator.run.serving import Serving
from elasticjob_operator.run.templates import Templates
from elasticjob_operator.run.tracing import Tracer
from elasticjob_operator.start_times import StartTimes

__all__ = ["Operator", "Options", "UsageError"]

logger = logging.getLogger(__name__)

KUEUE_SECONDS = 30.0  # that leading waits for a Kueue whose API does not answer
WARNINGS, WARNINGS_PER_SECOND = 20.0, 0.02  # warnings about objects of others, per namespace
WARNED_NAMESPACES = 1000  # namespaces with a rate limit for warnings


class Operator:
    """One replica. `run` returns when the Lease is lost or `stop` was called."""

    def __init__(self, options: Options, api: Api) -> None:
        self.options = options
        self.api = api
        self.lost_lease = False
        self.http_port = 0
        self._stopped = asyncio.Event()
        self._crd = False  # whether the CRD was found
        self._watches: list[Watch] = []  # created once it is known which kinds the cluster serves
        self._warnings: dict[str, ratelimit.Bucket] = {}
        # Metrics.
        self.times = StartTimes()
        self.times.end("imports")
        self.metrics = metrics.Metrics(version=version)
        api.observer = self.metrics.count_request
        self.pulse = Pulse(self.metrics)
        # Inputs: the cluster and the agents.
        most = bounds.Limits(options.max_replicas_per_job, options.max_template_bytes, options.max_pool_weight)
        self.cache = Cache(
            self._wake,
            self._meet,
            most,
            functools.partial(capacity.find_share, options.pools),
            functools.partial(capacity.find_devices, options.pools),
            self._wake_many,
        )
        self.intake = Intake(lambda kind, problem: self.metrics.skipped.labels(kind, problem).inc(), self._tell_skipped)
        self.jobs = JobWatch(api, self.cache, options.identity, options.namespaces, self._stopped, self.intake)
        wanted = limits.HubSettings(timeout_min=options.heartbeat_timeout)
        shares, hub_limits = file_limits.take_all(options.parallel, wanted)
        self.hub = Hub(
            authenticate=auth.TokenAuthenticator(auth.review_with(api.client), self.cache.find_pod, clock=api.clock),
            wake=self._wake,
            clock=api.clock,
            settings=hub_limits,
            on_restart=self._count_restart,
            expected=self.cache.count_pods,
        )
        self.metrics.watch_hub(self.hub)
        self.http = HttpServer(self.metrics, self._why_not_ready, clock=api.clock, capacity=shares.http)
        # Outputs.
        self.tracer: Tracer | None = None
        if options.otlp_url:
            self.tracer = Tracer(Exporter(options.otlp_url, options.otlp_headers), api.clock)
        self.pool = PoolLoop(api, self.cache, self.hub, self.intake, self._wake, options)
        self.applier = Applier(api, self.cache, self.hub, manifests.Settings(hub_url=""), options.identity)
        self.others = Others(options.release, options.lease_seconds)
        self.applier.on_pruned = self.others.note_pruned
        self.metrics.jobs_of_others.set_function(self.others.count)
        self.kueue = self._make_kueue() if "kueue" in options.integrations else None
        self.controller = Controller(
            api,
            self.cache,
            self.hub,
            self.applier,
            Config(
                membership=options.settings,
                stable_seconds=options.stable_seconds,
                has_kueue=self.kueue is not None,
            ),
            observer=self._observe_pass,
            find_pool_decision=self.pool.find_decision,
            on_forget=self._forget,
            on_error=self.metrics.pass_errors.inc,
            on_wait=self.metrics.queue_seconds.observe,
            queue=self.kueue,
            find_template=Templates(api, options.operator_namespace).find,
            others=self.others,
        )
        self.serving = Serving(options, api, self.hub, self._trust)

    def _make_kueue(self) -> Kueue:
        return Kueue(
            self.api,
            self.options.namespaces,
            self.intake,
            wake=self._wake,
            wake_all=self._wake_all,
            settings=lambda: self.applier.settings,
        )

    @property
    def hub_port(self) -> int:
        return self.serving.port

    def _wake(self, key: JobKey) -> None:
        self.controller.notice(key)
        self.pool.notice(key)

    def _wake_many(self, keys: Collection[JobKey]) -> None:
        self.controller.notice_many(keys)
        self.pool.notice_many(keys)

    def _wake_all(self) -> None:
        self.controller.wake_all()

    def _meet(self, unowned: UnownedObject) -> None:
        """Warn once about an object of others that has the operator's label; it is left alone."""
        self.metrics.foreign_objects.labels(unowned.kind).inc()
        text = f"{unowned.kind} {unowned.name} has the operator's label, but is not managed by it: {unowned.why}"
        now = self.api.clock()
        warnings = self._warnings.setdefault(unowned.namespace, ratelimit.Bucket(WARNINGS, now))
        if len(self._warnings) > WARNED_NAMESPACES:
            del self._warnings[next(iter(self._warnings))]
        if warnings.take(WARNINGS_PER_SECOND, WARNINGS, now):
            logger.warning("%s: %s", unowned.namespace, text)
        known = self.cache.jobs.get((unowned.namespace, unowned.job))
        if known is not None and self.hub.leader:
            self.applier.recorder.record(known[0], [Event("ForeignObject", text, warning=True)], now)

    def _tell_skipped(self, kind: str, raw: Mapping[str, Any], why: str) -> None:
        """An event for whoever wrote a job that cannot be processed: its status cannot be written either."""
        job = identify_job(raw) if kind == names.PLURAL and self.hub.leader else None
        if job is not None:
            text = f"the operator cannot process this object, and leaves it alone: {why}"
            self.applier.recorder.record(job, [Event("Skipped", text, warning=True)], self.api.clock())

    def _observe_pass(self, job: Job, plan: Plan, seconds: float) -> None:
        self.times.count_pass(job.key)
        self.metrics.pass_seconds.observe(seconds)
        checkpoints = None if job.spec is None else job.spec.checkpoints
        self.metrics.update_job(job.key, plan.status, None if checkpoints is None else checkpoints.archive)
        if self.tracer is not None:
            self.tracer.observe(job, plan)

    def _forget(self, key: JobKey) -> None:
        self.metrics.forget_job(key)
        if self.tracer is not None:
            self.tracer.forget(key)

    def _why_not_ready(self) -> str:
        if not self._crd:
            return NO_CRD
        missing = [w for w in self._watches if not w.synced.is_set()]
        if missing or not self._watches:
            return "the caches are being filled"
        failing = [contact.Failing(w.path, *w.failing) for w in self._watches if w.failing]
        return contact.find_blindness(self.api.heard, failing, time.monotonic())

    async def _keep_contact(self) -> None:
        """Ask the API server for something small while nothing is heard of it."""
        while True:
            await asyncio.sleep(contact.PROBE_SECONDS)
            if time.monotonic() - self.api.heard >= contact.PROBE_SECONDS:
                with contextlib.suppress(ApiError):
                    await self.api.request("GET", "/version", timeout=contact.PROBE_SECONDS)

    def stop(self) -> None:
        self._stopped.set()

    # Life.

    async def run(self) -> None:
        """Run until the Lease is lost or `stop` is called. Raises UsageError if it cannot run as configured."""
        election = Election(
            self.api,
            self.options.operator_namespace,
            self.options.lease_name,
            self.options.identity,
            Timing(duration=self.options.lease_seconds),
        )
        self.pulse.start()
        self.http_port = await self.http.start(
            self.options.http_host, self.options.http_port, metrics_address=self.options.metrics_address
        )
        try:
            await self._until_stopped(self._prepare())
            await self._until_stopped(self._live(election))
        finally:
            await self.controller.stop()
            if self.tracer is not None:
                await self.tracer.exporter.finish()
            if self.options.leader_election:
                await election.release()
            await self.hub.stop()
            await self.http.stop()
            self.pulse.stop()

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped.is_set():
            work.close()
            return
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stopped.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _prepare(self) -> None:
        await self._discover()
        await self.serving.prepare()
        await await_crd(self.api, self.options.namespaces)
        self._crd = True
        self.times.end("connected")

    async def _live(self, election: Election) -> None:
        """Watch, wait for the Lease, and act until it is lost. Failures of background tasks do not end it."""
        self._watches = build_watches(self.api, self.cache, self.intake, self.options.namespaces, self.applier.served)
        try:
            async with asyncio.TaskGroup() as group:
                for watch in self._watches:
                    group.create_task(self._keep_going(f"the watch of {watch.path}", watch.run))
                group.create_task(self._keep_going("the contact with the API server", self._keep_contact))
                group.create_task(self._keep_going("the certificate", self.serving.keep_fresh))
                if self.kueue is not None:
                    group.create_task(self._keep_going("the integration of Kueue", self.kueue.follower.run))
                    with contextlib.suppress(TimeoutError):  # until then, jobs keep the pods that they have
                        async with asyncio.timeout(KUEUE_SECONDS):
                            await self.kueue.follower.has_looked.wait()
                await asyncio.gather(self._list_jobs(), *(w.synced.wait() for w in self._watches))
                await self.cache.know_jobs()
                self.times.end("pods and all other objects")
                group.create_task(self._keep_going("the watch of jobs", self._watch_jobs))
                group.create_task(self._keep_going("the comparison of jobs", self.jobs.compare))
                await self._elect(election)
                group.create_task(self._keep_going("the start of leading", self._lead))
                group.create_task(self._keep_going("the pool", self.pool.run))
                if self.tracer is not None:
                    group.create_task(self._keep_going("the export of traces", self.tracer.exporter.run))
                if marks := self._choose_marks():
                    keeper = NodeMarks(self.api, self.cache, marks)
                    group.create_task(self._keep_going("the marks of faulty nodes", keeper.run))
                await self._stay(election)
        except* UsageError as errors:
            raise errors.exceptions[0] from None

    def _choose_marks(self) -> list[NodeMark]:
        allowed = ((self.options.taint_faulty_nodes, NodeTaint()), (self.options.report_faulty_nodes, NodeCondition()))
        return [mark for is_allowed, mark in allowed if is_allowed]

    def _keep_going(self, name: str, work: Callable[[], Awaitable[None]]) -> Coroutine[Any, Any, None]:
        return keep_going(name, work, self._count_restart)

    def _count_restart(self, task: str) -> None:
        self.metrics.background_restarts.labels(task).inc()

    async def _elect(self, election: Election) -> None:
        """Wait until this replica is the leader."""
        if self.options.leader_election:
            await election.acquire()
        else:
            self.api.leadership.lend(math.inf)

    async def _lead(self) -> None:
        """Start to act. Call it only as the leader."""
        await self.serving.refresh()
        self.applier.settings = manifests.Settings(
            hub_url=self.serving.url,
            tls=bool(self.options.tls_secret),
            runtime_image=self.options.runtime_image,
            worker_image=self.options.worker_image,
            is_runtime_volume=self.applier.served.has_image_volumes,
            image_pull_policy=self.options.image_pull_policy,
            pools=self.options.pools,
            release=self.options.release,
            is_traced=self.tracer is not None,
        )
        self.hub.started_at = self.api.clock()
        self.hub.leader = True
        self.metrics.leader.set(1)
        self.times.lead(self.cache.jobs)
        self.controller.start()
        service, address = self.serving.service, self.options.pod_address
        if endpoint.is_ours_to_point(service, address):
            await endpoint.point_service(self.api, service, address, self.serving.port)

    async def _stay(self, election: Election) -> None:
        """Wait until the Lease is lost, or for ever without leader election."""
        if not self.options.leader_election:
            await self._stopped.wait()
            return
        await election.hold()
        self.lost_lease = True
        self.hub.leader = False  # agents must now connect to the new leader
        self.stop()

    def _trust(self, ca_pem: str) -> None:
        """The CAs of the hub have changed: update the CA ConfigMap of every job."""
        self.controller.config = replace(self.controller.config, ca_pem=ca_pem)
        self.controller.wake_all()

    async def _list_jobs(self) -> None:
        await self.jobs.catch_up()
        self.times.end("jobs")

    async def _watch_jobs(self) -> None:
        await self.jobs.run()
        self.stop()

    # Discovery.

    async def _discover(self) -> None:
        gangs, volumes = "gangs" in self.options.integrations, self.options.runtime_as_volume
        served = self.applier.served = await discover(self.api, with_gangs=gangs, with_image_volumes=volumes)
        self.controller.config = replace(self.controller.config, has_native_gangs=served.has("PodGroup"))
