"""Jobs that name an object which is not there, or that their namespace keeps out: what is told, and that they start
without a touch when it is mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.flags import parse_version
from operator_fixture import MERGE, Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

Mend = Callable[[Jobs, str], list[str]]  # returns what is to be deleted afterwards


def make(path: str, body: dict[str, Any]) -> Mend:
    def mend(jobs: Jobs, name: str) -> list[str]:
        jobs.kube.request("POST", path.format(jobs.namespace), {**body, "metadata": {"name": name}})
        return [] if "{}" in path else [f"{path}/{name}"]

    return mend


def find_refusal(jobs: Jobs) -> str:
    found = jobs.condition("job", "Degraded")
    return str(found["message"]) if found.get("reason") == "CreateForbidden" else ""


def raise_quota(jobs: Jobs, name: str) -> list[str]:
    path = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas/{name}"
    jobs.kube.request("PATCH", path, {"spec": {"hard": {"pods": "5"}}}, content_type=MERGE)
    return []


def test_a_namespace_with_restricted_pod_security_is_told(jobs: Jobs, cluster: Cluster) -> None:
    if parse_version(cluster.version) < (1, 25):
        pytest.skip("the API server enforces Pod Security from Kubernetes 1.25 on")
    path, enforce = f"/api/v1/namespaces/{jobs.namespace}", "pod-security.kubernetes.io/enforce"
    jobs.kube.request("PATCH", path, {"metadata": {"labels": {enforce: "restricted"}}}, content_type=MERGE)
    jobs.create("job", light_spec())
    told = wait_for(lambda: find_refusal(jobs), "the refusal is told", 30)
    assert "restricted" in told and '"worker"' in told, "the policy and the container"
    jobs.kube.request("PATCH", path, {"metadata": {"labels": {enforce: None}}}, content_type=MERGE)
    assert not jobs.await_world("job", 2, timeout=60)["restarts"].get("total")


@pytest.mark.parametrize(
    ("field", "mend"),
    [
        pytest.param("serviceAccountName", make("/api/v1/namespaces/{}/serviceaccounts", {}), id="service account"),
        pytest.param("priorityClassName", make("/apis/scheduling.k8s.io/v1/priorityclasses", {"value": 7}),
                     id="priority class"),
        pytest.param("runtimeClassName", make("/apis/node.k8s.io/v1/runtimeclasses", {"handler": "here"}),
                     id="runtime class"),
        pytest.param("", raise_quota, id="quota"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_and_may_come_later(jobs: Jobs, cluster: Cluster, field: str, mend: Mend) -> None:
    name = f"of-{jobs.namespace}"
    spec = light_spec()
    if field:
        spec["template"]["spec"][field] = name
    else:
        path = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
        jobs.kube.request("POST", path, {"metadata": {"name": name}, "spec": {"hard": {"pods": "0"}}})
        wait_for(lambda: (jobs.kube.get(f"{path}/{name}") or {}).get("status", {}).get("hard"), "the quota counts")
    jobs.create("job", spec)

    assert name in wait_for(lambda: find_refusal(jobs), "the refusal is told", 30)
    left = mend(jobs, name)
    try:
        status = jobs.await_world("job", 2, timeout=60)
        assert not status["restarts"].get("total") and not status["restarts"].get("infrastructure")
        wait_for(lambda: jobs.condition("job", "Degraded").get("status") == "False", "nothing is in the way any more")
    finally:
        for path in left:
            cluster.kube.request("DELETE", path)
