"""Puts the parts together and runs them: watches → cache → controller → API, agents ↔ hub, health and metrics.

Every replica keeps its cache warm; only the holder of the Lease takes agents and acts. Losing the Lease ends the
process: a fresh one with nothing in memory is the safest follower.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from elasticjob_operator import __version__ as version
from elasticjob_operator import auth, certificates, front, limits, metrics, names, objects, standing
from elasticjob_operator.apply import Applier
from elasticjob_operator.cache import Cache
from elasticjob_operator.controller import Controller
from elasticjob_operator.http import HttpServer
from elasticjob_operator.hub import Hub
from elasticjob_operator.jobwatch import JobWatch
from elasticjob_operator.kube import Api, ApiError, path_of
from elasticjob_operator.lease import Election, Timing
from elasticjob_operator.plan import Config, Kind, Plan
from elasticjob_operator.watch import Watch

logger = logging.getLogger(__name__)

ROTATION_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, parsed."""

    namespaces: tuple[str, ...] = ()  # empty: the whole cluster
    kubeconfig: str | None = None
    context: str | None = None
    operator_namespace: str = "default"
    hub_host: str = "0.0.0.0"  # noqa: S104 - pods reach the hub from everywhere
    hub_port: int = 8443
    hub_url: str = ""  # what pods are told; empty: from hub_service, else this machine's own address
    hub_service: str = ""
    pod_address: str = ""  # where the Service is to lead while this replica leads
    tls_secret: str = ""
    http_host: str = "0.0.0.0"  # noqa: S104
    http_port: int = 8080
    leader_election: bool = True
    lease_name: str = "elasticjob-operator"
    lease_seconds: float = 10.0
    identity: str = ""
    runtime_image: str = ""
    worker_image: str = ""
    image_pull_policy: str = "IfNotPresent"
    heartbeat_timeout: float = 5.0
    stable_seconds: float = 60.0
    parallel: int = 32
    settings: standing.Settings = field(default_factory=standing.Settings)


class UsageError(Exception):
    """The operator cannot run as asked; the message says what to change."""


class Operator:
    """One replica. `run` returns when the Lease is lost or `stop` was called."""

    def __init__(self, options: Options, api: Api) -> None:
        self.options = options
        self.api = api
        self.metrics = metrics.Metrics(version=version)
        api.observer = self.metrics.count_request
        self.cache = Cache(self._wake)
        authenticate = auth.TokenAuthenticator(auth.review_with(api.client), self.cache.find_pod)
        hub_limits = limits.HubSettings(timeout_min=options.heartbeat_timeout)
        self.hub = Hub(authenticate=authenticate, wake=self._wake, settings=hub_limits)
        self.metrics.watch_hub(self.hub)
        self.http = HttpServer(self.metrics, self._why_not_ready)
        self.applier = Applier(api, self.cache, self.hub, objects.Settings(hub_url=""), options.identity)
        config = Config(membership=options.settings, stable_seconds=options.stable_seconds)
        self.controller = Controller(api, self.cache, self.hub, self.applier, config)
        self.controller.observer = self._observe_pass
        self.controller.on_forget = self.metrics.forget_job
        self._watches: list[Watch] = []
        self._crd = False
        self.lost_lease = False
        self._stopped = asyncio.Event()
        self.jobs = JobWatch(api, self.cache, options.identity, options.namespaces, self._stopped)
        self.hub_port = 0
        self.http_port = 0

    def _wake(self, key: tuple[str, str]) -> None:
        self.controller.wake(key)

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
        """From start to the loss of the Lease or a stop. Any other end is an error."""
        election = Election(
            self.api,
            self.options.operator_namespace,
            self.options.lease_name,
            self.options.identity,
            Timing(duration=self.options.lease_seconds),
        )
        self.http_port = await self.http.start(self.options.http_host, self.options.http_port)
        try:
            await self._until_stopped(self._prepare())
            await self._until_stopped(self._lead(election))
        finally:
            await self.controller.stop()
            if self.options.leader_election:
                await election.release()
            await self.hub.stop()
            await self.http.stop()

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
        context = await self._certify()
        self.hub_port = await self.hub.start(self.options.hub_host, self.options.hub_port, context)
        url = self._hub_url()
        self.applier.settings = objects.Settings(
            hub_url=url,
            tls=bool(self.options.tls_secret),
            runtime_image=self.options.runtime_image,
            worker_image=self.options.worker_image,
            image_pull_policy=self.options.image_pull_policy,
        )
        logger.info("the hub listens on %s:%d; agents are told %s", self.options.hub_host, self.hub_port, url)
        await self._await_crd()

    async def _lead(self, election: Election) -> None:
        """Watches, waits for the Lease, acts. The first task that ends, ends all."""
        async with asyncio.TaskGroup() as group:
            for work in self._watching():
                group.create_task(work)
            group.create_task(self._rotate())
            await asyncio.gather(*(w.synced.wait() for w in self._watches))
            await self.jobs.catch_up()
            if self.options.leader_election:
                await election.acquire()
            self.hub.started_at = time.time()
            self.hub.leader = True
            self.metrics.leader.set(1)
            self.controller.start()
            if front.is_ours_to_point(self._service, self.options.pod_address):
                group.create_task(front.point_service(self.api, self._service, self.options.pod_address, self.hub_port))
            if self.options.leader_election:
                await election.hold()
                self.lost_lease = True
                self.hub.leader = False  # whoever leads now has to be found by the agents
                self.stop()
            else:
                await self._stopped.wait()

    # Watches.

    def _watching(self) -> list[Coroutine[Any, Any, None]]:
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
                )
            )
            for kind, group_version, plural in self._child_kinds():
                self._watches.append(self._child_watch(kind, group_version, plural, namespace, selector))
        nodes = Watch(
            self.api, path_of("v1", "nodes"), replace=cache.replace_nodes, apply=cache.apply_node, required=False
        )
        self._watches.append(nodes)
        return [*(w.run() for w in self._watches), self._watch_jobs()]

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
        )

    async def _watch_jobs(self) -> None:
        await self.jobs.run()
        self.stop()  # kopf takes the signals while it runs, and ends

    # What this cluster has.

    async def _discover(self) -> None:
        """Which version of PodDisruptionBudgets is served."""
        groups = await self._again(lambda: self.api.request("GET", "/apis"))
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

    async def _again(self, call: Any) -> Any:
        delay = 0.2
        while True:
            try:
                return await call()
            except ApiError as error:
                if error.status in (401, 403):
                    raise UsageError(f"the API server refuses the operator's credentials: {error}") from None
                logger.warning("the API server: %s; again in %.1f s", error, delay)
                await asyncio.sleep(delay)
                delay = min(10.0, delay * 2)

    # The hub's address and certificate.

    def _hub_url(self) -> str:
        if self.options.hub_url:
            url = self.options.hub_url
            return url.replace(":0", f":{self.hub_port}") if url.endswith(":0") else url
        scheme = "wss" if self.options.tls_secret else "ws"
        host = self._service_address or "127.0.0.1"
        port = self._service_port or self.hub_port
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    _service: Mapping[str, Any] = MappingProxyType({"spec": MappingProxyType({"selector": "none"})})
    _service_address = ""
    _service_port = 0

    async def _certify(self) -> ssl.SSLContext | None:
        await self._find_service()
        if not self.options.tls_secret:
            return None
        bundle = await self._bundle()
        return certificates.server_context(bundle)

    async def _find_service(self) -> None:
        """Workers may have no cluster DNS, so they are given the Service's address."""
        if not self.options.hub_service:
            return
        namespace, _, name = self.options.hub_service.rpartition("/")
        namespace = namespace or self.options.operator_namespace
        service = await self._again(lambda: self.api.request("GET", path_of("v1", "services", namespace, name)))
        self._service = service
        self._service_address = service["spec"].get("clusterIP", "")
        ports = service["spec"]["ports"]
        self._service_port = next((p["port"] for p in ports if p.get("name") == "hub"), ports[0]["port"])
        if self._service_address in ("", "None"):
            raise UsageError(f"service {namespace}/{name} has no cluster IP: agents could not reach the hub by it")

    def _sans(self) -> list[str]:
        found = ["localhost", "127.0.0.1"]
        host = self.options.hub_url.partition("://")[2].rpartition(":")[0].strip("[]")
        if self.options.hub_service:
            namespace, _, name = self.options.hub_service.rpartition("/")
            namespace = namespace or self.options.operator_namespace
            found += [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]
        return [*found, *(h for h in (self._service_address, host) if h and h not in found)]

    async def _bundle(self) -> certificates.Bundle:
        bundle = await certificates.ensure_certificates(
            self.api.client,
            self.options.operator_namespace,
            self.options.tls_secret,
            self._sans(),
            datetime.now(UTC),
        )
        self.controller.config = replace(self.controller.config, ca_pem=bundle.trust.decode())
        return bundle

    async def _rotate(self) -> None:
        """Renews the certificate long before it ends; connections that exist stay."""
        while self.options.tls_secret:
            await asyncio.sleep(ROTATION_SECONDS)
            try:
                self.hub.use_certificate(certificates.server_context(await self._bundle()))
                self.controller.start()
            except Exception:
                logger.exception("the hub's certificate could not be renewed; trying again in an hour")


def _group_and_plural(kind: Kind) -> tuple[str, str]:
    resource = objects.RESOURCES[kind]
    return resource.group_version, resource.plural
