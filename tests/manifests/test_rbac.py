"""The chart's RBAC is exactly what the operator uses.

The real operator runs with the token of the chart's service account and the arguments of the chart's Deployment, while
jobs go through their life cycle. The API server's audit log shows every request. A forbidden request means that a rule
is missing; a rule that no request needs is superfluous. Both fail the test.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import helm_python
import pytest

from chart_fixture import CHART, container, render
from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster, Kube, KubeError
from elasticjob_operator.times import format_time
from manifests.test_chart_release import await_no_crds, remove_crds
from operator_fixture import MERGE, Jobs, Process, light_spec, start_operator, stop_process, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

Object = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "elasticjob"
PODS_METRIC = {"metric": {"name": "samples"}, "target": {"type": "AverageValue", "averageValue": "1k"}}
METRICS = [{"type": "Pods", "pods": PODS_METRIC}]


@dataclass(frozen=True)
class Grant:
    """One verb on one resource, as one rule of one role gives it."""

    role: str
    namespace: str  # empty: everywhere
    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()

    def allows(self, request: Request) -> bool:
        return (
            (self.group, self.resource, self.verb) == (request.group, request.resource, request.verb)
            and self.namespace in ("", request.namespace)
            and (not self.names or request.name in self.names)
        )


@dataclass(frozen=True)
class Request:
    namespace: str
    group: str
    resource: str
    verb: str
    name: str
    allowed: bool


class Audit:
    """What this user asked for; what belongs to no resource (discovery) is everybody's."""

    def __init__(self, cluster: Cluster, user: str) -> None:
        self._path = cluster.directory / "audit.log"
        self._user = user
        self._offset = 0  # the log is of megabytes, and tests look again and again
        self._found: set[Request] = set()

    def read(self) -> set[Request]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(end)
        for line in whole.split(b"\n"):
            if self._user.encode() in line:
                self._take(json.loads(line))
        return set(self._found)

    def _take(self, event: dict[str, Any]) -> None:
        target = event.get("objectRef")
        if event["user"]["username"] != self._user or target is None:
            return
        resource = "/".join(part for part in (target.get("resource", ""), target.get("subresource", "")) if part)
        allowed = event["annotations"].get("authorization.k8s.io/decision") == "allow"
        name = target.get("name", "") if event["verb"] != "create" else ""
        place = target.get("namespace", "")
        self._found.add(Request(place, target.get("apiGroup", ""), resource, event["verb"], name, allowed))


def read_grants(cluster: Cluster, user: str) -> list[Grant]:
    """All that the roles bound to this user give, as the API server has them."""
    kube, found = cluster.kube, []
    _, _, namespace, name = user.split(":")
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    for kind in ("clusterrolebindings", "rolebindings"):
        for binding in kube.request("GET", f"{RBAC}/{kind}")["items"]:
            if subject not in [{k: s.get(k) for k in subject} for s in binding.get("subjects") or ()]:
                continue
            place = binding["metadata"].get("namespace", "")
            role = binding["roleRef"]["name"]
            path = f"{RBAC}/namespaces/{place}/roles/{role}" if place else f"{RBAC}/clusterroles/{role}"
            for rule in kube.request("GET", path)["rules"]:
                names = tuple(rule.get("resourceNames") or ())
                found += [
                    Grant(role, place, group, resource, verb, names)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                ]
    return found


class ChartOperator:
    """The operator as the chart would run it, but for the addresses."""

    def __init__(self, cluster: Cluster, namespace: str, values: Object, directory: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
        self.requests = Audit(cluster, self.user).read
        self.directory = directory
        self.arguments: list[str] = container(render(values, namespace=namespace))["args"]
        self.process: Process | None = None
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]

    def _kubeconfig(self) -> Path:
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{ACCOUNT}/token"
        spec = {"expirationSeconds": 3600}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.cluster.kube.request("POST", path, body)["status"]["token"]
        config = json.loads(self.cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        target = self.directory / "kubeconfig"
        target.write_text(json.dumps(config))
        return target

    def start(self, address: str) -> None:
        arguments = [
            *(*self.arguments, "--kubeconfig", str(self._kubeconfig()), "--http-host", "127.0.0.1", "--http-port", "0"),
            *("--hub-port", str(self.port), "--hub-url", f"wss://{address}:{self.port}"),
            *("--stable-seconds", "1", "--log-format", "human"),
        ]
        variables = {"POD_NAMESPACE": self.namespace, "POD_NAME": "by-hand", "POD_IP": "10.9.8.7"}
        with (self.directory / "operator.log").open("ab") as log:
            self.process = start_operator(arguments, log, **variables)

    def stop(self) -> None:
        if self.process is not None:
            stop_process(self.process)

    def await_request(self, resource: str, verb: str, act: Callable[[], object] = lambda: None) -> None:
        """Acts again and again until the operator has made such a request."""

        def look() -> bool:
            act()
            return any((r.resource, r.verb) == (resource, verb) for r in self.requests())

        try:
            wait_for(look, f"{verb} {resource}", timeout=60, poll=0.3)
        except AssertionError as error:
            log = (self.directory / "operator.log").read_text()[-4000:]
            seen = sorted(f"{r.verb} {r.resource}" for r in self.requests())
            raise AssertionError(f"{error}; seen: {', '.join(seen)}\n{log}") from None


@pytest.fixture
def work(audited: Cluster) -> Iterator[str]:
    remove_crds(audited)  # another test's: Helm takes over none that is not its own
    audited.make_namespace("work")
    yield "work"
    remove_namespace(audited, "work")
    wait_for(lambda: audited.kube.get("/api/v1/namespaces/work") is None, "the namespace is gone")


def is_gone(kube: Kube, path: str) -> bool:
    return kube.get(path) is None


def live(operator: ChartOperator, jobs: Jobs) -> None:
    """All that can happen to jobs, in an order that ends."""
    kube, place = operator.cluster.kube, jobs.namespace
    pods = f"/api/v1/namespaces/{place}/pods"
    stray = {"metadata": {"name": "life-worker-2"}, "spec": {"containers": [{"name": "c", "image": "a/b:1"}]}}
    kube.request("POST", pods, stray)  # a name that the job will want: the operator looks whose it is
    spec = light_spec(
        "--step-seconds",
        "0.1",
        elasticPolicy={"minReplicas": 1, "maxReplicas": 2, "metrics": METRICS},
        network={"service": True},
    )
    del spec["replicas"]  # the operator fills it in
    jobs.create("life", spec)
    jobs.await_world("life", 2)
    jobs.patch("life", {"elasticPolicy": {"maxReplicas": 3}})
    scaler = f"/apis/autoscaling/v1/namespaces/{place}/horizontalpodautoscalers/life"
    # With its old limit, the autoscaler would take back the number that follows.
    wait_for(
        lambda: (kube.get(scaler) or {}).get("spec", {}).get("maxReplicas") == 3,
        "the autoscaler has the new limit",
        timeout=30,
    )
    jobs.scale("life", 3)
    operator.await_request("pods", "get")
    kube.request("DELETE", f"{pods}/life-worker-2", {"gracePeriodSeconds": 0})
    jobs.await_world("life", 3, timeout=90)
    before = jobs.status("life")["rendezvous"]["generation"]
    operator.cluster.kill_pod(place, "life-worker-1")
    jobs.await_world("life", 3, above=before)

    # More CPU for pods that run; an API server that cannot do that says so.
    template = spec["template"]
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "11m"
    jobs.patch("life", {"template": template})
    operator.await_request("pods/resize", "patch")

    # A node on which jobs of two namespaces have failed is tainted for everybody.
    world = jobs.status("life")["rendezvous"]
    fault = {"node": world["members"][0]["node"], "count": 2, "lastTime": format_time(time.time())}
    others = jobs.path.replace(f"/namespaces/{place}/", "/namespaces/default/")
    paused = {"spec": spec | {"runPolicy": {"suspend": True}}, "metadata": {"name": "witness"}}
    kube.request("POST", others, {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob"} | paused)
    try:
        for path in (f"{jobs.path}/life", f"{others}/witness"):
            kube.request("PATCH", f"{path}/status", {"status": {"nodeFaults": [fault]}}, content_type=MERGE)
        operator.await_request("nodes", "patch")
        operator.await_request("nodes/status", "patch")
    finally:
        kube.request("DELETE", f"{others}/witness")

    # Written by another version of the operator: everything that is not a pod is brought up to date.
    changes = {
        "services": f"/api/v1/namespaces/{place}/services/life-workers",
        "configmaps": f"/api/v1/namespaces/{place}/configmaps/life-elasticjob-ca",
        "networkpolicies": f"/apis/networking.k8s.io/v1/namespaces/{place}/networkpolicies/life-workers",
        "poddisruptionbudgets": f"/apis/policy/v1beta1/namespaces/{place}/poddisruptionbudgets/life-workers",
        "horizontalpodautoscalers": f"/apis/autoscaling/v1/namespaces/{place}/horizontalpodautoscalers/life",
    }
    if kube.get(changes["poddisruptionbudgets"]) is None:
        changes["poddisruptionbudgets"] = changes["poddisruptionbudgets"].replace("v1beta1", "v1")
    older = {"metadata": {"annotations": {"elasticjob.dev/digest": "older"}}}
    for resource, path in changes.items():
        kube.request("PATCH", path, older, content_type=MERGE)
        operator.await_request(resource, "patch")

    # What the job no longer wants goes.
    jobs.patch("life", {"network": {"service": False, "policy": False}, "elasticPolicy": {"metrics": None}})
    for resource in ("services", "networkpolicies", "horizontalpodautoscalers"):
        operator.await_request(resource, "delete")
        wait_for(partial(is_gone, kube, changes[resource]), f"{resource}: gone")

    # Somebody else writes all the time: what the operator writes is refused, and it looks again.
    def disturb() -> None:
        for _ in range(20):
            body = {"metadata": {"annotations": {"note": str(time.monotonic())}}}
            kube.request("PATCH", f"{jobs.path}/life", body, content_type=MERGE)
        jobs.scale("life", 5 - int(jobs.get("life")["spec"]["replicas"]))

    operator.await_request("elasticjobs", "get", disturb)
    jobs.patch("life", {"runPolicy": {"suspend": True}})
    wait_for(lambda: jobs.pods("life") == [], "a suspended job has no pods")
    jobs.patch("life", {"runPolicy": {"suspend": False}})
    wait_for(lambda: jobs.pods("life"), "a resumed job has pods")
    jobs.delete("life")
    # A pod that waits without a word: the operator reads its events.
    waits = light_spec(replicas=1)
    waits["template"]["spec"]["volumes"] = [{"name": "gone", "configMap": {"name": "gone"}}]
    waits["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "gone", "mountPath": "/gone"}]
    jobs.create("waits", waits)
    operator.await_request("events", "list")
    jobs.delete("waits")
    # A template that is in neither namespace, and then in that of all.
    short = light_spec("--steps", "3", runPolicy={"ttlSecondsAfterFinished": 1})
    jobs.create("short", {"templateRef": {"name": "light"}})
    jobs.await_condition("short", "Degraded")
    template = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJobTemplate",
        "metadata": {"name": "light"},
        "spec": {name: value for name, value in short.items() if name != "replicas"},
    }
    kube.request("POST", f"/apis/elasticjob.dev/v1alpha1/namespaces/{operator.namespace}/elasticjobtemplates", template)
    operator.await_request("elasticjobs", "delete")
    operator.await_request("poddisruptionbudgets", "delete")


@pytest.mark.parametrize("mode", ["cluster-wide", pytest.param("namespaced", marks=pytest.mark.long)])
def test_every_rule_is_used_and_none_is_missing(audited: Cluster, work: str, mode: str, tmp_path: Path) -> None:
    values: Object = {
        "replicas": 0,
        "watchNamespaces": [work] if mode == "namespaced" else [],
        "crds": {"keep": False},
        "operator": {"taintFaultyNodes": True, "reportFaultyNodes": True},
        "images": {"runtime": {"enabled": False}},  # nodes that run processes have no images
    }
    namespace = f"system-{mode}"
    with helm_python.Config(kubeconfig_path=audited.kubeconfig, namespace=namespace) as helm:
        helm.install(CHART, "elasticjob", values, namespace=namespace, create_namespace=True)
        operator = ChartOperator(audited, namespace, values, tmp_path)
        try:
            operator.start("127.0.0.1")
            live(operator, Jobs(audited, work))
            operator.stop()
            operator.start("127.0.0.2")  # another address: the certificate has to name it
            operator.await_request("secrets", "update")
            operator.await_request("endpointslices", "update")  # that the first one has created
        finally:
            operator.stop()
            grants = read_grants(audited, operator.user)
            helm.uninstall("elasticjob")
            await_no_crds(audited)
            with contextlib.suppress(KubeError):
                audited.kube.request("DELETE", f"/api/v1/namespaces/{namespace}")
    # Watches are in the log when they have ended.
    with contextlib.suppress(AssertionError):
        wait_for(lambda: find_unused(grants, operator.requests()) == [], "every rule is used", timeout=20)
    requests = operator.requests()
    assert [r for r in requests if not r.allowed] == [], "a rule is missing"
    assert len(grants) > 20, "the roles were read"
    assert find_unused(grants, requests) == [], "a rule is unused"


def find_unused(grants: list[Grant], requests: set[Request]) -> list[Grant]:
    return [g for g in grants if not any(g.allows(r) for r in requests)]


def test_the_comparison_sees_an_unused_rule() -> None:
    request = Request("a", "", "pods", "get", "p", True)
    assert Grant("r", "a", "", "pods", "get").allows(request)
    assert Grant("r", "", "", "pods", "get", ("p",)).allows(request)
    assert not Grant("r", "b", "", "pods", "get").allows(request)
    assert not Grant("r", "a", "", "pods", "list").allows(request)
    assert not Grant("r", "a", "", "pods", "get", ("q",)).allows(request)
    assert not Grant("r", "a", "apps", "pods", "get").allows(request)
