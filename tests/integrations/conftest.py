"""Queues for jobs: admitted by a small stand-in, and by Kueue itself where it is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pytest

from elasticjob_devcluster import Cluster, KubeError
from integrations import kueue_kinds
from integrations.kueue_kinds import ROOT
from integrations.kueue_manager import Manager, find_missing
from integrations.kueue_standin import StandIn, count, is_true
from operator_fixture import MERGE, Jobs, OperatorProcess, light_spec, wait_for
from side_by_side import MAKERS

MILLI = 10  # of a CPU that a light agent asks for


class Admitter(Protocol):
    errors: list[str]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wait_for_pods(self, seconds: float | None, requeues: int | None = None) -> None: ...


class Queues:
    """The queues of one test, and the jobs in them."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.kube = jobs.kube
        self.made: list[str] = []
        self.workloads_path = f"{ROOT}/namespaces/{jobs.namespace}/workloads"

    def make(self, name: str, pods: int, checks: Sequence[str] = ()) -> None:
        """A LocalQueue of this name with quota for so many pods, in a ClusterQueue of its own."""
        own = f"{self.jobs.namespace}-{name}"
        flavor = {"name": "default", "resources": [{"name": "cpu", "nominalQuota": f"{pods * MILLI}m"}]}
        spec: dict[str, Any] = {
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}],
        }
        if checks:
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
        self._post(f"{ROOT}/clusterqueues", "ClusterQueue", own, {"spec": spec})
        local = {"spec": {"clusterQueue": own}}
        self._post(f"{ROOT}/namespaces/{self.jobs.namespace}/localqueues", "LocalQueue", name, local)
        self.made.append(own)

    def resize(self, name: str, pods: int) -> None:
        own = f"{ROOT}/clusterqueues/{self.jobs.namespace}-{name}"
        groups = self.kube.request("GET", own)["spec"]["resourceGroups"]
        groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = f"{pods * MILLI}m"
        self.kube.request("PATCH", own, {"spec": {"resourceGroups": groups}}, content_type=MERGE)

    def submit(self, name: str, queue: str, *, priority: str = "", growth: str = "", **spec: Any) -> None:
        labels = {"kueue.x-k8s.io/queue-name": queue} | (
            {"kueue.x-k8s.io/priority-class": priority} if priority else {}
        )
        annotations = {"elasticjob.dev/growth-priority-class": growth} if growth else {}
        body = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {field: value for field, value in light_spec(**spec).items() if value is not None},
        }
        self.kube.request("POST", self.jobs.path, body)

    def workloads(self, job: str = "") -> list[dict[str, Any]]:
        """Those of this job that are not on their way out, by the first index that they cover."""
        items = (self.kube.get(self.workloads_path) or {"items": []})["items"]
        mine = [w for w in items if not job or w["metadata"]["labels"]["elasticjob.dev/job-name"] == job]
        return sorted(mine, key=lambda w: int(w["metadata"]["annotations"]["elasticjob.dev/first-index"]))

    def admitted(self, job: str) -> int:
        """Pods of this job that may run."""
        return sum(count(w) for w in self.workloads(job) if is_true(w, "Admitted") and not is_true(w, "Evicted"))

    def condition(self, job: str) -> tuple[str, str]:
        """Status and reason of `Admitted`."""
        found = self.jobs.condition(job, "Admitted")
        return found.get("status", ""), found.get("reason", "")

    @contextlib.contextmanager
    def cordoned(self, *nodes: str) -> Iterator[None]:
        """Nobody places a pod on these nodes."""
        try:
            for node in nodes:
                self._cordon(node, is_cordoned=True)
            yield
        finally:
            for node in nodes:
                self._cordon(node, is_cordoned=False)

    def _cordon(self, node: str, *, is_cordoned: bool) -> None:
        body = {"spec": {"unschedulable": is_cordoned or None}}
        self.kube.request("PATCH", f"/api/v1/nodes/{node}", body, content_type=MERGE)

    def delete_pod(self, pod: dict[str, Any]) -> None:
        """Unless the operator has done so, because its node is cordoned."""
        with contextlib.suppress(KubeError):
            path = f"/api/v1/namespaces/{self.jobs.namespace}/pods/{pod['metadata']['name']}"
            self.kube.request("DELETE", path)

    def clean(self) -> None:
        with contextlib.suppress(KubeError):
            self.kube.request("DELETE", self.jobs.path)
        wait_for(lambda: not self.kube.request("GET", self.jobs.path)["items"], "no job is left")
        with contextlib.suppress(KubeError):  # the garbage collector looks for new kinds only every 30 seconds
            self.kube.request("DELETE", self.workloads_path)
        wait_for(
            lambda: not self.workloads(), f"no Workload is left: {[w['metadata']['name'] for w in self.workloads()]}"
        )
        for name in self.made:
            self.kube.request("DELETE", f"{ROOT}/clusterqueues/{name}")

    def _post(self, path: str, kind: str, name: str, body: dict[str, Any]) -> None:
        make_object(self.kube, path, kind, name, body)


def make_object(kube: Any, path: str, kind: str, name: str, body: dict[str, Any]) -> None:
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}
    kube.request("POST", path, {**head, **body})


PRIORITIES = {"low": -10, "high": 10}


@pytest.fixture(scope="module", params=["stand-in", pytest.param("kueue", marks=pytest.mark.kueue)])
def kueue(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Admitter]:
    """Whoever admits Workloads, with one flavor and two classes of priority."""
    missing = find_missing() if request.param == "kueue" else ""
    if missing:
        pytest.skip(missing)
    definitions = kueue_kinds.find_own() or kueue_kinds.build()
    kueue_kinds.install(cluster, definitions)
    make_object(cluster.kube, f"{ROOT}/resourceflavors", "ResourceFlavor", "default", {"spec": {}})
    for name, value in PRIORITIES.items():
        make_object(
            cluster.kube,
            f"{ROOT}/workloadpriorityclasses",
            "WorkloadPriorityClass",
            name,
            {"value": value, "description": ""},
        )
    admitter: Admitter = (
        StandIn(cluster) if request.param == "stand-in" else Manager(cluster, tmp_path_factory.mktemp("kueue"))
    )
    admitter.start()
    yield admitter
    admitter.stop()
    strip_finalizers(cluster)
    kueue_kinds.remove(cluster, definitions)
    assert not admitter.errors


def strip_finalizers(cluster: Cluster) -> None:
    """Kueue keeps what is in use, and is not there any more to say that it is not."""
    for plural in ("clusterqueues", "resourceflavors"):
        for item in (cluster.kube.get(f"{ROOT}/{plural}") or {"items": []})["items"]:
            path = f"{ROOT}/{plural}/{item['metadata']['name']}"
            with contextlib.suppress(KubeError):
                cluster.kube.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)


@pytest.fixture(scope="module")
def queue_operator(kueue: Admitter, operator_factory: Callable[..., OperatorProcess]) -> Iterator[OperatorProcess]:
    started = operator_factory(["--stable-seconds", "1", "--integrations", "kueue"])
    yield started
    started.stop()


@contextlib.contextmanager
def make_queues(queue_operator: OperatorProcess, cluster: Cluster, namespace: str) -> Iterator[Queues]:
    starts, before = queue_operator.starts, len(queue_operator.log)
    found = Queues(Jobs(cluster, namespace))
    try:
        yield found
    finally:
        if queue_operator.process is None:
            queue_operator.start()
        found.clean()
        said = queue_operator.log[before if queue_operator.starts == starts else 0 :]
        print(f"the operator of this test said:\n{said[-8000:]}")  # pytest shows it where the test failed
        assert "this is a bug" not in said, said[-4000:]


MAKERS.update(queues=make_queues)


@pytest.fixture
def queues(queue_operator: OperatorProcess, cluster: Cluster, namespace: str) -> Iterator[Queues]:
    with make_queues(queue_operator, cluster, namespace) as made:
        yield made
