"""Policies of the cluster that change the pods of a job: what its conditions say, and how it recovers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.api.kube import KubeError
from elasticjob_operator.api import names
from operator_fixture import Jobs, is_served, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolic"
ENV = 'value: [Object.spec.containers.env{name: "ONLY", value: "x"}]'  # an API server of 1.36 breaks off at this


@contextlib.contextmanager
def policy(jobs: Jobs, cluster: Cluster, patch: str) -> Iterator[None]:
    """A MutatingAdmissionPolicy that applies this JSON patch, in CEL, to each new pod of the namespace."""
    if not is_served(cluster, f"{ROOT}ies"):
        pytest.skip("the API server has MutatingAdmissionPolicies from Kubernetes 1.36 on")
    name = jobs.namespace
    matches = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": f"[JSONPatch{{{patch}}}]"}}
    spec = {"matchConstraints": matches, "reinvocationPolicy": "Never", "mutations": [mutation]}
    jobs.kube.request("POST", f"{ROOT}ies", {"metadata": {"name": name}, "spec": spec})
    jobs.kube.request("POST", f"{ROOT}ybindings", {"metadata": {"name": name}, "spec": {"policyName": name}})
    try:
        wait_for(lambda: is_applied(jobs, patch), "the policy is in force")
        yield
    finally:
        jobs.kube.request("DELETE", f"{ROOT}ybindings/{name}")
        jobs.kube.request("DELETE", f"{ROOT}ies/{name}")


def is_applied(jobs: Jobs, patch: str) -> bool:
    """Whether a pod is changed, without storing it: policies are in force some time after they are stored."""
    container = {"name": "a", "image": "a/b:1", "env": [{"name": "A", "value": "a"}]}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "a"}
    labels = {names.LABEL_JOB_UID: "u"}
    sent: dict[str, Any] = {
        "metadata": {"name": "probe", "labels": labels, "ownerReferences": [owner]},
        "spec": {"containers": [container]},
    }
    try:
        made = jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/pods?dryRun=All", sent)
    except KubeError:
        return False  # the namespace has no service account yet
    except (HTTPException, OSError):
        return True  # no answer
    return (
        made["metadata"].get("labels") != labels
        or not made["metadata"].get("ownerReferences")
        or "activeDeadlineSeconds" in made["spec"]
        or "livenessProbe" in made["spec"]["containers"][0]
    )


def await_words(jobs: Jobs, name: str, *words: str) -> str:
    """The message of the condition `Degraded`, once it contains these."""

    def look() -> str | None:
        found = jobs.condition(name, "Degraded")
        said = str(found.get("message")) if found.get("status") == "True" else ""
        return said if all(word in said for word in words) else None

    return wait_for(look, f"{name} is told of {words}")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/metadata/labels/elasticjob.dev~1job-uid", f"metadata.labels[{names.LABEL_JOB_UID}]"),
        ("/metadata/ownerReferences", "metadata.ownerReferences"),
    ],
    ids=["label", "owner"],
)
@together
def test_a_policy_that_makes_a_pod_a_strangers_is_told(jobs: Jobs, cluster: Cluster, path: str, field: str) -> None:
    with policy(jobs, cluster, f'op: "remove", path: "{path}"'):
        jobs.create("altered", light_spec())
        told = await_words(jobs, "altered", field, "an admission webhook or a policy")
        assert "rename the job" not in told, "which would not help"
        pods = f"/api/v1/namespaces/{jobs.namespace}/pods"
        wait_for(lambda: not jobs.kube.request("GET", pods)["items"], "no such pod keeps its devices")
    assert not jobs.await_world("altered", 2, timeout=120)["restarts"].get("total"), "it recovers without a touch"


@together
def test_a_policy_at_which_the_api_server_breaks_off_is_told(jobs: Jobs, cluster: Cluster) -> None:
    with policy(jobs, cluster, f'op: "replace", path: "/spec/containers/0/env", {ENV}'):
        jobs.create("unanswered", light_spec())
        await_words(jobs, "unanswered", "the API server does not take what the operator writes", "/pods")
    assert not jobs.await_world("unanswered", 2, timeout=120)["restarts"].get("total"), "it recovers without a touch"


@together
def test_a_probe_that_a_policy_gives_the_pods_is_thought_of(jobs: Jobs, cluster: Cluster) -> None:
    probe = "Object.spec.containers.livenessProbe"
    fails = f'{probe}{{exec: {probe}.exec{{command: ["false"]}}, periodSeconds: 1, failureThreshold: 1}}'
    with policy(jobs, cluster, f'op: "add", path: "/spec/containers/0/livenessProbe", value: {fails}'):
        jobs.create("probed", light_spec())
        await_words(jobs, "probed", "it was killed (SIGTERM)", "a probe", "a webhook or a policy has added")
    assert not jobs.await_world("probed", 2, timeout=120)["restarts"].get("user"), "nothing of this is the job's"


@together
def test_a_deadline_that_a_policy_gives_the_pods_is_not_the_jobs(jobs: Jobs, cluster: Cluster) -> None:
    """It is told before it passes, charged to nobody, and tried less and less often."""
    made: set[str] = set()

    def is_told() -> bool:
        made.update(pod["metadata"]["uid"] for pod in jobs.pods("dated"))
        found = jobs.condition("dated", "Degraded")
        return found.get("reason") == "BackOff" and "activeDeadlineSeconds (2) has passed" in found["message"]

    with policy(jobs, cluster, 'op: "add", path: "/spec/activeDeadlineSeconds", value: 2'):
        jobs.create("dated", light_spec(replicas=1, elasticPolicy={"maxRestarts": 0}))
        told = jobs.await_condition("dated", "Warning")
        assert told["reason"] == "PodDeadline"
        assert "activeDeadlineSeconds (2) will end this pod, and spec.template.spec does not set it" in told["message"]
        assert "an admission webhook or a policy does" in told["message"]
        wait_for(is_told, "a pod is waited for", timeout=90)
    assert len(made) <= 10
    status = jobs.await_world("dated", 1, timeout=120)
    assert not status["restarts"].get("user"), "nothing of this is the job's"
    assert not status.get("nodeFaults"), "nor a node's"
