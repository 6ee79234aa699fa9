"""Objects with the operator's labels that it does not own, on a real API server: none of them is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator.api import names
from operator_fixture import MERGE, Jobs, OperatorProcess, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SLEEPER = {"containers": [{"name": "worker", "image": "a/b:1", "command": ["sleep", "600"]}]}
NETWORKING = "/apis/networking.k8s.io/v1"


def policy_root(jobs: Jobs) -> str:
    """Old servers have v1beta1 only."""
    return f"/apis/{jobs.kube.request('GET', '/apis/policy')['preferredVersion']['groupVersion']}"


def labels_of(job: dict[str, Any], index: int | None = None) -> dict[str, str]:
    """All that the operator's own objects carry."""
    found = {
        names.LABEL_APP: names.LABEL_APP_VALUE,
        names.LABEL_JOB: job["metadata"]["name"],
        names.LABEL_JOB_UID: job["metadata"]["uid"],
    }
    return found if index is None else {**found, names.LABEL_INDEX: str(index)}


def owner_of(job: dict[str, Any], **changes: Any) -> dict[str, Any]:
    metadata = job["metadata"]
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": metadata["name"], "uid": metadata["uid"]}
    return {**owner, "controller": True, "blockOwnerDeletion": False, **changes}


def make_strangers(jobs: Jobs, job: dict[str, Any]) -> list[str]:
    """One of every kind that the operator makes, and pods with all sorts of stolen papers; their paths."""
    core, labels = f"/api/v1/namespaces/{jobs.namespace}", labels_of(job)
    rules = {"podSelector": {}, "policyTypes": ["Ingress"]}
    selector = {"matchLabels": {"a": "b"}}
    budget = {"minAvailable": 1, "selector": selector}
    found = [
        (f"{core}/pods", {"metadata": {"name": "debug", "labels": labels_of(job, 7)}, "spec": SLEEPER}),
        (f"{core}/pods", {"metadata": {"name": "mine-worker-9", "labels": labels_of(job, 9)}, "spec": SLEEPER}),
        (
            f"{core}/pods",
            {
                "metadata": {"name": "a-b", "labels": labels_of(job, 8), "ownerReferences": [owner_of(job)]},
                "spec": SLEEPER,
            },
        ),
        (f"{core}/services", {"metadata": {"name": "s", "labels": labels}, "spec": {"ports": [{"port": 1}]}}),
        (f"{core}/configmaps", {"metadata": {"name": "c", "labels": labels}, "data": {"ca.crt": "theirs"}}),
        (f"{NETWORKING}/namespaces/{jobs.namespace}/networkpolicies", {"metadata": {"name": "n"}, "spec": rules}),
        (
            f"{policy_root(jobs)}/namespaces/{jobs.namespace}/poddisruptionbudgets",
            {"metadata": {"name": "b"}, "spec": budget},
        ),
    ]
    paths = []
    for path, body in found:
        body["metadata"].setdefault("labels", labels)  # type: ignore[attr-defined]
        jobs.kube.request("POST", path, body)
        paths.append(f"{path}/{body['metadata']['name']}")  # type: ignore[index]
    return paths


def test_objects_with_stolen_labels_are_left_alone_and_named(jobs: Jobs, operator: OperatorProcess) -> None:
    job = jobs.create("mine", light_spec(replicas=1))
    before = jobs.await_world("mine", 1)
    paths = make_strangers(jobs, job)
    uids = {path: jobs.kube.request("GET", path)["metadata"]["uid"] for path in paths}

    def told() -> bool:
        said = [message for reason, message in jobs.events("mine") if reason == "ForeignObject"]
        return all(any(f" {path.rpartition('/')[2]} " in m for m in said) for path in paths)

    wait_for(told, "every one of them is named in an event")
    assert all(f" {path.rpartition('/')[2]} has the operator's label" in operator.log for path in paths)
    # The job shrinks and grows: what goes and what is made are its own pods.
    jobs.scale("mine", 2)
    grown = jobs.await_world("mine", 2, above=before["rendezvous"]["generation"])
    assert {m["pod"] for m in grown["rendezvous"]["members"]} == {"mine-worker-0", "mine-worker-1"}
    assert grown["replicas"] == 2
    jobs.scale("mine", 1)
    jobs.await_world("mine", 1, above=grown["rendezvous"]["generation"])
    jobs.delete("mine")
    wait_for(lambda: len(jobs.pods("mine")) <= 3, "its own pods are gone")
    # The pod that names the job as its owner goes with it: the cluster's garbage collector says so, and not we.
    for path in [p for p in paths if not p.endswith("a-b")]:
        found = jobs.kube.get(path) or {"metadata": {}}
        assert found["metadata"].get("uid") == uids[path], path
        assert "deletionTimestamp" not in found["metadata"], path


def test_a_worker_that_loses_the_operators_label_is_named_and_seen_again_with_it(jobs: Jobs) -> None:
    jobs.create("mine", light_spec(replicas=1))
    jobs.await_world("mine", 1)
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/mine-worker-0"
    uid = jobs.kube.request("GET", path)["metadata"]["uid"]

    def label(value: str | None) -> None:
        jobs.kube.request("PATCH", path, {"metadata": {"labels": {names.LABEL_APP: value}}}, content_type=MERGE)

    label(None)
    wait_for(lambda: jobs.condition("mine", "Degraded").get("reason") == "NameTaken", "the user is told")
    assert f"{names.LABEL_APP}={names.LABEL_APP_VALUE}" in jobs.condition("mine", "Degraded")["message"]
    label(names.LABEL_APP_VALUE)
    wait_for(lambda: jobs.condition("mine", "Degraded").get("status") != "True", "and told that it is well again")
    assert [m["uid"] for m in jobs.await_world("mine", 1)["rendezvous"]["members"]] == [uid]


@pytest.mark.parametrize(
    ("prefix", "plural", "name", "spec"),
    [
        pytest.param("/api/v1", "services", "mine-workers", {"ports": [{"port": 1}]}, id="Service"),
        pytest.param(NETWORKING, "networkpolicies", "mine-workers", {"podSelector": {}}, id="NetworkPolicy"),
        pytest.param("", "poddisruptionbudgets", "mine-workers", {"minAvailable": 1, "selector": {}}, id="budget"),
        pytest.param("/api/v1", "pods", "mine-worker-0", SLEEPER, id="Pod"),
    ],
)
def test_a_taken_name_is_an_error_and_not_taken_over(
    jobs: Jobs, prefix: str, plural: str, name: str, spec: dict[str, Any]
) -> None:
    """Even where the stranger wears our labels, those of the very job included, which can be copied at leisure."""
    path = f"{prefix or policy_root(jobs)}/namespaces/{jobs.namespace}/{plural}"
    job = jobs.create("mine", light_spec(replicas=1, network={"service": True}, runPolicy={"suspend": True}))
    theirs = jobs.kube.request("POST", path, {"metadata": {"name": name, "labels": labels_of(job, 0)}, "spec": spec})
    jobs.patch("mine", {"runPolicy": {"suspend": False}})
    wait_for(lambda: jobs.condition("mine", "Degraded").get("reason") == "NameTaken", "the user is told")
    assert name in jobs.condition("mine", "Degraded")["message"]
    found = jobs.kube.request("GET", f"{path}/{name}")
    assert found["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert "deletionTimestamp" not in found["metadata"]
    if plural != "pods":  # of which the scheduler writes the node into the spec
        assert found["spec"] == theirs["spec"]
        assert names.ANNOTATION_DIGEST not in found["metadata"].get("annotations", {})
    assert jobs.status("mine")["replicas"] <= 1


def test_a_loosened_policy_is_mended(jobs: Jobs) -> None:
    jobs.create("mine", light_spec(replicas=1))
    jobs.await_world("mine", 1)
    path = f"{NETWORKING}/namespaces/{jobs.namespace}/networkpolicies/mine-workers"
    before = jobs.kube.request("GET", path)["spec"]
    loose = {"ingress": [{}], "podSelector": {"matchLabels": {"nobody": "has"}}}
    jobs.kube.request("PATCH", path, {"spec": loose}, content_type=MERGE)
    wait_for(lambda: jobs.kube.request("GET", path)["spec"] == before, "it is as it was")


def test_failed_pods_that_finalizers_hold_are_replaced(jobs: Jobs, tmp_path: Path) -> None:
    command = ["sh", "-c", f"until [ -e {tmp_path}/$HOSTNAME ]; do sleep 0.1; done; exit 3"]
    worker = {"name": "worker", "image": "a/b:1", "command": command}
    elastic = {"minReplicas": 1, "maxReplicas": 2, "maxRestarts": 5}
    jobs.create("held", {"replicas": 2, "elasticPolicy": elastic, "template": {"spec": {"containers": [worker]}}})
    failed: list[str] = []

    def find_running() -> list[str] | None:
        running = [p["metadata"]["name"] for p in jobs.pods("held") if p.get("status", {}).get("phase") == "Running"]
        found = [name for name in running if name not in failed]
        return found if len(found) == 2 else None

    def is_going(name: str) -> bool:
        path = f"/api/v1/namespaces/{jobs.namespace}/pods/{name}"
        return "deletionTimestamp" in jobs.kube.request("GET", path)["metadata"]

    try:
        for _ in range(2):
            name = max(wait_for(find_running, "two pods run"))
            failed.append(name)
            keep_pod(jobs, name, ["example.com/keep"])
            (tmp_path / name).touch()
            wait_for(lambda name=name: is_going(name), "the operator deletes it")  # type: ignore[misc]
        wait_for(find_running, "others take their places", timeout=30)
    finally:
        for name in failed:
            keep_pod(jobs, name, None)


def keep_pod(jobs: Jobs, name: str, finalizers: list[str] | None) -> None:
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{name}"
    jobs.kube.request("PATCH", path, {"metadata": {"finalizers": finalizers}}, content_type=MERGE)
