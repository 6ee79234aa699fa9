"""A real HorizontalPodAutoscaler with a metric: it sizes jobs, beside GitOps, and where a size does not work."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest

from elasticjob_devcluster import Cluster, KubeError
from elasticjob_operator.sizing import retreat
from operator_fixture import MERGE, Jobs, is_served, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

METRICS = "/apis/external.metrics.k8s.io/v1beta1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def names(plural: str, kind: str) -> dict[str, str]:
    return {"plural": plural, "singular": plural, "kind": kind, "listKind": f"{kind}List"}


@pytest.fixture
def backlog(cluster: Cluster, jobs: Jobs) -> str:
    """The path of an external metric. What an adapter would compute are objects here, which a test writes."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "backlog.external.metrics.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": "external.metrics.k8s.io",
            "scope": "Namespaced",
            "names": names("backlog", "ExternalMetricValue"),
            "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    try:
        cluster.kube.request("POST", CRDS, body)
    except KubeError as error:
        if error.status != 409:
            raise
    path = f"{METRICS}/namespaces/{jobs.namespace}/backlog"
    wait_for(lambda: is_served(cluster, path), "the metric is served")
    return path


def say(jobs: Jobs, path: str, value: int) -> None:
    """What the metric is from now on."""
    body = {
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "kind": "ExternalMetricValue",
        "metadata": {"name": "now"},
        "metricName": "backlog",
        "metricLabels": {},
        "timestamp": "2026-01-01T00:00:00Z",
        "value": str(value),
    }
    if jobs.kube.get(f"{path}/now") is None:
        jobs.kube.request("POST", path, body)
    else:
        jobs.kube.request("PATCH", f"{path}/now", {"value": str(value)}, content_type=MERGE)


def scaled(**changes: Any) -> dict[str, Any]:
    """A spec without a size, whose autoscaler wants a pod for each ten of the backlog."""
    metric = {"metric": {"name": "backlog"}, "target": {"type": "AverageValue", "averageValue": "10"}}
    policy = {"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "External", "external": metric}]}
    spec = light_spec(elasticPolicy=policy, **changes)
    del spec["replicas"]
    return spec


def find_autoscaler(jobs: Jobs, name: str) -> dict[str, Any]:
    for version in ("v2", "v2beta2"):
        path = f"/apis/autoscaling/{version}/namespaces/{jobs.namespace}/horizontalpodautoscalers/{name}"
        found = jobs.kube.get(path)
        if found is not None:
            return found
    return {}


def hurry(jobs: Jobs, name: str) -> None:
    """Let it shrink at once: the default is after five minutes. A `behavior` is the user's and stays."""
    made = wait_for(lambda: find_autoscaler(jobs, name), "the operator makes an autoscaler")
    version = made["apiVersion"]
    path = f"/apis/{version}/namespaces/{jobs.namespace}/horizontalpodautoscalers/{name}"
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    jobs.kube.request("PATCH", path, {"spec": {"behavior": behavior}}, content_type=MERGE)


def has_seen(jobs: Jobs, name: str, load: int, *, pods: int, wants: int) -> bool:
    """Whether it wants this size since it has seen that the load of each pod is what it is now."""
    status = find_autoscaler(jobs, name)["status"]
    of_a_pod = status["currentMetrics"][0]["external"]["current"]["averageValue"]
    return bool(status["desiredReplicas"] == wants and of_a_pod == f"{load * 1000 // pods}m")


def test_a_metric_sizes_a_job_and_applying_it_again_takes_nothing_back(jobs: Jobs, backlog: str) -> None:
    spec = scaled()
    say(jobs, backlog, 20)
    jobs.apply("sized", spec)
    hurry(jobs, "sized")
    jobs.await_world("sized", 2)
    for load, size in ((35, 4), (10, 1), (25, 3)):
        say(jobs, backlog, load)
        generation = jobs.await_world("sized", size)["rendezvous"]["generation"]
        jobs.apply("sized", spec)
        wait_for(lambda: jobs.differs("sized", spec) == {}, "there is no difference")
        after = jobs.status("sized")
        assert (after["rendezvous"]["generation"], jobs.get("sized")["spec"]["replicas"]) == (generation, size)
    assert not [message for reason, message in jobs.events("sized") if reason == "SizeContested"]
    assert jobs.condition("sized", "Degraded").get("status") == "False"


def test_a_size_that_does_not_work_is_left_out_however_often_the_autoscaler_asks_for_it(
    jobs: Jobs, backlog: str
) -> None:
    say(jobs, backlog, 20)
    spec = scaled()
    spec["template"] = light_spec("--fail-with", "3")["template"]
    spec["elasticPolicy"]["maxRestarts"] = 2
    jobs.create("uneven", spec)
    hurry(jobs, "uneven")
    world = jobs.await_world("uneven", 2)["rendezvous"]["generation"]
    time.sleep(retreat.LEAST_SECONDS)  # for so long a world has to train that is to be gone back to
    say(jobs, backlog, 30)
    wait_for(lambda: jobs.status("uneven").get("capacity", {}).get("failedSizes") == [3], "it is left out")
    back = jobs.await_world("uneven", 2, above=world)["rendezvous"]["generation"]
    for load in (29, 27):  # two metrics that mean the same size, so it has looked at least once in between
        say(jobs, backlog, load)
        look = functools.partial(has_seen, jobs, "uneven", load, pods=2, wants=3)
        wait_for(look, "the autoscaler still asks for it")
    status = jobs.status("uneven")
    assert (status["rendezvous"]["generation"], status["restarts"]["user"]) == (back, 0)
    assert jobs.condition("uneven", "Degraded")["reason"] == "SizeFailed"
    say(jobs, backlog, 40)
    jobs.await_world("uneven", 4)
    assert jobs.condition("uneven", "Degraded").get("status") == "False"
