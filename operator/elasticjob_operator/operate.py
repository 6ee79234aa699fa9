"""Puts the parts together and runs them: watches → cache → controller → API, agents ↔ hub, health and metrics.

Every replica keeps its cache warm; only the holder of the Lease takes agents and acts. Losing the Lease ends the
process: a fresh one with nothing in memory is the safest follower.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from elasticjob_operator import __version__ as version
from elasticjob_operator import auth, bounds, descriptors, front, limits, metrics, names, objects
from elasticjob_operator.apply import Applier
from elasticjob_operator.cache import Cache, Stranger
from elasticjob_operator.controller import Controller
from elasticjob_operator.http import HttpServer
from elasticjob_operator.hub import Hub
from elasticjob_operator.intake import Intake
from elasticjob_operator.jobwatch import JobWatch
from elasticjob_operator.kube import Api, ApiError, path_of
from elasticjob_operator.lease import Election, Timing
from elasticjob_operator.options import Options, UsageError
from elasticjob_operator.plan import Config, Kind, Plan
from elasticjob_operator.pulse import Pulse
from elasticjob_operator.report import Event
from elasticjob_operator.serving import Serving
from elasticjob_operator.supervise import insist, keep_going
from elasticjob_operator.watch import Watch

__all__ = ["Operator", "Options", "UsageError"]

logger = logging.getLogger(__name__)

WARNINGS, WARNINGS_PER_SECOND = 20.0, 0.02  # of objects that are not ours, for each namespace
WARNED_NAMESPACES = 1000  # of which it is remembered how much was said


class Operator:
    """One replica. `run` returns when the Lease is lost or `stop` was called."""

    def __init__(self, options: Options, api: Api) -> None:
        self.options = options
        self.api = api
        self.metrics = metrics.Metrics(version=version)
        api.observer = self.metrics.count_request
        most = bounds.Limits(replicas=options.max_replicas_per_job, template_bytes=options.max_template_bytes)
        self.cache = Cache(self._wake, self._meet, most)
        self.intake = Intake(lambda kind, trouble: self.metrics.skipped.labels(kind, trouble).inc())
        authenticate = auth.TokenAuthenticator(auth.review_with(api.client), self.cache.find_pod)
        wanted = limits.HubSettings(timeout_min=options.heartbeat_timeout)
        shares, hub_limits = descriptors.take_all(options.parallel, wanted)
        self.hub = Hub(authenticate=authenticate, wake=self._wake, settings=hub_limits)
        self.hub.on_restart = self._count_restart
        self.metrics.watch_hub(self.hub)
        self.http = HttpServer(self.metrics, self._why_not_ready, capacity=shares.http)
        self.pulse = Pulse(self.metrics)
        self.applier = Applier(api, self.cache, self.hub, objects.Settings(hub_url=""), options.identity)
        config = Config(membership=options.settings, stable_seconds=options.stable_seconds)
        self.controller = Controller(api, self.cache, self.hub, self.applier, config)
        self.controller.observer = self._observe_pass
        self.controller.on_forget = self.metrics.forget_job
        self.controller.on_error = self.metrics.pass_errors.inc
        self.controller.on_wait = self.metrics.queue_seconds.observe
        self._watches: list[Watch] = []
        self._warnings: dict[str, limits.Bucket] = {}
        self._crd = False
        self.lost_lease = False
        self._stopped = asyncio.Event()
        self.jobs = JobWatch(api, self.cache, options.identity, options.namespaces, self._stopped, self.intake)
        self.serving = Serving(options, api, self.hub, self._trust)
        self.http_port = 0

    @property
    def hub_port(self) -> int:
        return self.serving.port

    def _wake(self, key: tuple[str, str]) -> None:
        self.controller.wake(key)

    def _meet(self, stranger: Stranger) -> None:
        """Somebody else's object carries our label: told once, and left alone."""
        self.metrics.foreign_objects.labels(stranger.kind).inc()
        text = f"{stranger.kind} {stranger.name} carries the operator's label and is left alone: {stranger.why}"
        now = time.time()
        warnings = self._warnings.setdefault(stranger.namespace, limits.Bucket(WARNINGS, now))
        if len(self._warnings) > WARNED_NAMESPACES:
            del self._warnings[next(iter(self._warnings))]
        if warnings.take(WARNINGS_PER_SECOND, WARNINGS, now):
            logger.warning("%s: %s", stranger.namespace, text)
        known = self.cache.jobs.get((stranger.namespace, stranger.job))
        if known is not None and self.hub.leader:
            self.applier.teller.tell(known[0], [Event("ForeignObject", text, warning=True)], now)

    def _observe_pass(self, key: tuple[str, str], plan: Plan, seconds: float) -> None:
        self.metrics.pass_seconds.observe(seconds)
        self.metrics.update_job(key, plan.status)

    def _why_not_ready(self) -> str:
        if not self._crd:
            return f"the CustomResourceDefinition {names.PLURAL}.{names.GROUP} is not installed: apply crds/"
        missing = [w for w in self._watches if not w.synced.is_set()]
        return "the caches are being filled" if missing or not self._watches else ""

    def stop(self) -> None:
        self._stopped.set()

    # Life.

    async def run(self) -> None:
        """From start to the loss of the Lease or a stop. Any other end is an error, of which UsageError is expected."""
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
        await self._await_crd()

    async def _live(self, election: Election) -> None:
        """Watches, waits for the Lease, acts until it is lost. Nothing that fails in the background ends it."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, work in self._watching():
                    group.create_task(self._keep_going(name, work))
                group.create_task(self._keep_going("the certificate", self.serving.keep_fresh))
                await asyncio.gather(*(w.synced.wait() for w in self._watches))
                await self.jobs.catch_up()
                await self._elect(election)
                group.create_task(self._keep_going("the start of leading", self._lead))
                await self._stay(election)
        except* UsageError as errors:
            raise errors.exceptions[0] from None

    def _keep_going(self, name: str, work: Callable[[], Awaitable[None]]) -> Coroutine[Any, Any, None]:
        return keep_going(name, work, self._count_restart)

    def _count_restart(self, task: str) -> None:
        self.metrics.background_restarts.labels(task).inc()

    async def _elect(self, election: Election) -> None:
        """Returns with the right to write."""
        if self.options.leader_election:
            await election.acquire()
        else:
            self.api.leadership.lend(math.inf)

    async def _lead(self) -> None:
        """Begins to act; only to be called with the right to write."""
        await self.serving.refresh()
        self.applier.settings = objects.Settings(
            hub_url=self.serving.url,
            tls=bool(self.options.tls_secret),
            runtime_image=self.options.runtime_image,
            worker_image=self.options.worker_image,
            image_pull_policy=self.options.image_pull_policy,
        )
        self.hub.started_at = time.time()
        self.hub.leader = True
        self.metrics.leader.set(1)
        self.controller.start()
        service, address = self.serving.service, self.options.pod_address
        if front.is_ours_to_point(service, address):
            await front.point_service(self.api, service, address, self.serving.port)

    async def _stay(self, election: Election) -> None:
        """Until the Lease is lost, or for ever where there is none."""
        if not self.options.leader_election:
            await self._stopped.wait()
            return
        await election.hold()
        self.lost_lease = True
        self.hub.leader = False  # whoever leads now has to be found by the agents
        self.stop()

    def _trust(self, ca_pem: str) -> None:
        """The CAs of the hub have changed: every job's pods are told."""
        self.controller.config = replace(self.controller.config, ca_pem=ca_pem)
        self.controller.wake_all()

    # Watches.

    def _watching(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        scopes = self.options.namespaces or ("",)
        selector = f"{names.LABEL_APP}={names.LABEL_APP_VALUE}"
        cache = self.cache
        for namespace in scopes:
            self._watches.append(
                Watch(
                    self.api,
                    path_of("v1", "pods", namespace),
                    replace=lambda items, ns=namespace: cache.replace_pods(list(items), ns),  # type: ignore[misc]
                    apply=cache.apply_pod,
                    selector=selector,
                    intake=self.intake,
                )
            )
            for kind, group_version, plural in self._child_kinds():
                self._watches.append(self._child_watch(kind, group_version, plural, namespace, selector))
        nodes = Watch(
            self.api,
            path_of("v1", "nodes"),
            replace=cache.replace_nodes,
            apply=cache.apply_node,
            required=False,
            intake=self.intake,
        )
        self._watches.append(nodes)
        return [*((f"the watch of {w.path}", w.run) for w in self._watches), ("the watch of jobs", self._watch_jobs)]

    def _child_kinds(self) -> list[tuple[Kind, str, str]]:
        kinds = [Kind.SERVICE, Kind.NETWORK_POLICY, Kind.CONFIG_MAP]
        found = [(k, *_group_and_plural(k)) for k in kinds]
        return [*found, (Kind.DISRUPTION_BUDGET, self.applier.policy_version, "poddisruptionbudgets")]

    def _child_watch(self, kind: Kind, group_version: str, plural: str, namespace: str, selector: str) -> Watch:
        return Watch(
            self.api,
            path_of(group_version, plural, namespace),
            replace=lambda items: self.cache.replace_children(kind.value, list(items), namespace),
            apply=lambda event, raw: self.cache.apply_child(kind.value, event, raw),
            selector=selector,
            is_metadata_enough=True,
            intake=self.intake,
        )

    async def _watch_jobs(self) -> None:
        await self.jobs.run()
        self.stop()  # kopf takes the signals while it runs, and ends

    # What this cluster has.

    async def _discover(self) -> None:
        """Which version of PodDisruptionBudgets is served."""
        groups = await insist(lambda: self.api.request("GET", "/apis"))
        served = {g["name"]: [v["groupVersion"] for v in g["versions"]] for g in groups.get("groups", [])}
        versions = served.get("policy", [])
        self.applier.policy_version = "policy/v1" if "policy/v1" in versions or not versions else versions[0]

    async def _await_crd(self) -> None:
        """Waits for the CRD: the operator may be installed first."""
        scope = self.options.namespaces[0] if self.options.namespaces else ""
        while True:
            try:
                await self.api.request("GET", path_of(names.API_VERSION, names.PLURAL, scope), query={"limit": "1"})
                self._crd = True
                return
            except ApiError as error:
                if error.status == 404:
                    logger.warning(self._why_not_ready())
                else:
                    logger.warning("the API server: %s", error)
                await asyncio.sleep(1.0)


def _group_and_plural(kind: Kind) -> tuple[str, str]:
    resource = objects.RESOURCES[kind]
    return resource.group_version, resource.plural
