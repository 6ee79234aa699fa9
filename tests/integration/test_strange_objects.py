"""Objects that parsers reject, on a real API server: each affects only itself, and other jobs continue to train."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import MERGE, Jobs, OperatorProcess, install_crd, light_spec, wait_for

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.elasticjob.dev"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def deep_json() -> Iterator[None]:
    """This process writes and reads what is nested as deep as an API server stores it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture
def operator(operator_factory: Callable[..., OperatorProcess], namespace: str) -> Iterator[OperatorProcess]:
    operator = operator_factory(("--namespace", namespace))
    yield operator
    operator.stop()


@pytest.fixture
def newer_crd(cluster: Cluster) -> Iterator[None]:
    """The CRD of a version to come: more fields in the status, and another phase."""
    install_crd(cluster)
    before = cluster.kube.request("GET", CRD)
    newer = copy.deepcopy(before)
    status = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status["weather"] = {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    status["rendezvous"]["properties"]["topology"] = {"type": "string"}
    status["phase"]["enum"].append("Dreaming")
    cluster.kube.request("PATCH", CRD, {"spec": newer["spec"]}, content_type=MERGE)
    yield
    cluster.kube.request("PATCH", CRD, {"spec": before["spec"]}, content_type=MERGE)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def in_template(value: Any) -> dict[str, Any]:
    spec = {**light_spec()}
    spec["template"]["spec"]["x"] = value
    return spec


def list_jobs(cluster: Cluster, namespace: str) -> str:
    command = (sys.executable, "-m", "elasticjob_operator.cli", "list", "-n", namespace)
    done = subprocess.run(
        [*command, "--kubeconfig", str(cluster.kubeconfig)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


STRANGE: dict[str, tuple[dict[str, Any], str]] = {
    "deep": (in_template(nested(600)), "spec.template: is nested 603 levels deep"),
    "deepest": (in_template(nested(9000)), "spec.template: is nested 9003 levels deep"),
    "wide": (in_template([0] * 500_000), "spec.template: has more than 20000 values"),
    "big": (in_template("x" * 1_200_000), "bytes; the limit is 262144"),
    "many": (light_spec(elasticPolicy={"maxReplicas": 90_000}, replicas=90_000), "asks for 90000 pods"),
}


def test_a_strange_job_fails_alone(
    cluster: Cluster, operator: OperatorProcess, namespace: str, deep_json: None
) -> None:
    jobs = Jobs(cluster, namespace)
    jobs.create("good", light_spec())
    jobs.await_world("good", 2)
    try:
        for name, (spec, _) in STRANGE.items():
            jobs.create(name, spec)
        for name, (_, told) in STRANGE.items():
            assert told in jobs.await_condition(name, "Failed", poll=0.5)["message"]  # each look reads a megabyte
        told = list_jobs(cluster, namespace)
        assert {"good", *STRANGE} <= {line.split()[0] for line in told.splitlines() if line.strip()}
        operator.stop()  # what it knows from a watch it has to read from a list as well
        operator.start()
        jobs.scale("good", 3)
        jobs.await_world("good", 3)
        assert operator.process is not None
        assert operator.process.poll() is None
        assert "Traceback" not in operator.log
    finally:
        for name in STRANGE:
            with contextlib.suppress(KubeError):
                jobs.delete(name)


def test_what_a_newer_operator_wrote_survives(
    cluster: Cluster, operator: OperatorProcess, namespace: str, newer_crd: None
) -> None:
    jobs = Jobs(cluster, namespace)
    jobs.create("good", light_spec())
    generation = jobs.await_world("good", 2)["rendezvous"]["generation"]
    newer = {"weather": [{"what": "formed"}], "rendezvous": {"topology": "ring"}, "phase": "Dreaming"}

    def write() -> bool:
        answer = jobs.kube.request("PATCH", f"{jobs.path}/good/status", {"status": newer}, content_type=MERGE)
        return "weather" in answer["status"]

    wait_for(write, "the newer schema is served")
    wait_for(lambda: jobs.status("good")["phase"] == "Running", "what is not understood and decides nothing is mended")
    # The condition is True for no longer than the one pass that mends it; what was mended is told by the event.
    told = wait_for(lambda: dict(jobs.events("good")).get("StatusNotUnderstood"), "an event names the field")
    assert "status.phase" in told
    assert jobs.status("good")["rendezvous"].items() >= {"generation": generation, "topology": "ring"}.items()
    jobs.scale("good", 3)
    assert jobs.await_world("good", 3)["weather"] == newer["weather"]


def test_what_cannot_change_while_the_job_runs(cluster: Cluster, operator: OperatorProcess, namespace: str) -> None:
    jobs = Jobs(cluster, namespace)
    jobs.create("good", light_spec())
    generation = jobs.await_world("good", 2)["rendezvous"]["generation"]
    crd = cluster.kube.request("GET", CRD)
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    change = {"nprocPerNode": 3, "rendezvous": {"backend": "c10d"}}
    if "x-kubernetes-validations" in spec:
        with pytest.raises(Exception, match="nprocPerNode cannot change while the job runs"):
            jobs.patch("good", change)
    else:
        jobs.patch("good", change)
        told = jobs.await_condition("good", "Warning")
        assert told["reason"] == "ChangeWaits"
        assert "nprocPerNode (now 1), rendezvous.backend (now operator)" in told["message"]
        status = jobs.status("good")
        assert (status["nprocPerNode"], status["rendezvous"]["generation"]) == (1, generation)
        jobs.scale("good", 3)
        assert jobs.await_world("good", 3)["rendezvous"]["processes"] == 3
    jobs.patch("good", {"runPolicy": {"suspend": True}})
    jobs.await_condition("good", "Suspended")
    jobs.patch("good", {"nprocPerNode": 3, "rendezvous": {"backend": "operator"}, "runPolicy": {"suspend": False}})
    wait_for(lambda: jobs.status("good").get("nprocPerNode") == 3, "the change is in force")
    assert jobs.condition("good", "Warning").get("status") != "True"


def test_a_dropped_field_is_told(cluster: Cluster, operator: OperatorProcess, namespace: str) -> None:
    """As `kubectl apply` without validation leaves it: the server drops the field, the annotation remembers it."""
    jobs, spec = Jobs(cluster, namespace), {**light_spec(), "replica": 3}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": spec})}
    body = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "typo", "annotations": annotations},
        "spec": spec,
    }
    made = jobs.kube.request("POST", jobs.path, body)
    assert "replica" not in made["spec"]
    told = jobs.await_condition("typo", "Warning")
    assert (told["reason"], "did you mean spec.replicas?" in told["message"]) == ("FieldDropped", True)
    wait_for(lambda: "FieldDropped" in dict(jobs.events("typo")), "an event tells it too")


def test_a_finalizer_of_the_library_that_watches_jobs_stays(
    cluster: Cluster, operator: OperatorProcess, namespace: str
) -> None:
    """kopf would remove one of its own, past the check that only the leader writes."""
    jobs, theirs = Jobs(cluster, namespace), ["kopf.zalando.org/KopfFinalizerMarker"]
    made = jobs.create("kept", light_spec(runPolicy={"suspend": True}))
    try:
        jobs.kube.request("PATCH", f"{jobs.path}/kept", {"metadata": {"finalizers": theirs}}, content_type=MERGE)
        for again in ("once", "twice"):  # a job's events are handled one after the other
            change = {"metadata": {"annotations": {"again": again}}, "spec": {"elasticPolicy": {"minReplicas": 2}}}
            jobs.kube.request("PATCH", f"{jobs.path}/kept", change, content_type=MERGE)
            jobs.await_condition("kept", "Suspended")
        jobs.delete("kept")
        wait_for(lambda: "deletionTimestamp" in jobs.get("kept").get("metadata", {"deletionTimestamp": ""}), "it goes")
        jobs.create("next", light_spec(runPolicy={"suspend": True}))
        jobs.await_condition("next", "Suspended")
        left = jobs.get("kept").get("metadata", {})
        assert (left.get("uid"), left.get("finalizers")) == (made["metadata"]["uid"], theirs)
    finally:
        with contextlib.suppress(KubeError):
            jobs.kube.request("PATCH", f"{jobs.path}/kept", {"metadata": {"finalizers": []}}, content_type=MERGE)
