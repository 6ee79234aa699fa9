"""Objects of one tenant must not delay the jobs of others, nor end an operator, running or starting."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import Jobs, OperatorProcess, light_spec

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

LABELS = {"app.kubernetes.io/managed-by": "elasticjob-operator", "elasticjob.dev/job-name": "none"}
LESS_THAN = "<" * 1_000_000  # the API server writes six bytes for each
PATIENTLY = "?timeout=58s"  # a busy server takes long for many labels, and gives up after 34 s unless it is asked
TENANTS = (f"hostile-{number}" for number in itertools.count())  # one for each test: a namespace is long in going


@pytest.fixture
def tenant(cluster: Cluster) -> Iterator[str]:
    name = next(TENANTS)
    cluster.make_namespace(name)
    yield name
    remove_namespace(cluster, name)


def post_nested_job(cluster: Cluster, namespace: str, name: str, depth: int) -> None:
    """As text: our own encoder gives up at a tenth of what the API server takes."""
    spec = light_spec()
    spec["template"]["spec"]["x"] = "HERE"
    body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}
    text = json.dumps(body).replace('"HERE"', "[" * depth + "]" * depth)
    cluster.kube.raw("POST", Jobs(cluster, namespace).path, text.encode())


def post_job_of_many_labels(cluster: Cluster, namespace: str) -> None:
    labels = {f"l{number}": "" for number in range(80_000)}
    metadata = {"name": "labelled", "labels": labels}
    body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": metadata, "spec": light_spec()}
    cluster.kube.request("POST", Jobs(cluster, namespace).path + PATIENTLY, body, timeout=120)


def create_what_hurts(cluster: Cluster, namespace: str) -> list[str]:
    """Returns what the API server took."""
    core, taken = f"/api/v1/namespaces/{namespace}", []
    metadata = {"labels": LABELS}
    image = {"name": "c", "image": "none"}
    plain = {
        "configmaps": {"metadata": {"name": "big", **metadata}, "data": {"x": LESS_THAN}},
        "pods": {
            "metadata": {"name": "big", **metadata},
            "spec": {"nodeSelector": {"no": "such-node"}, "containers": [{**image, "args": [LESS_THAN]}]},
        },
        "services": {
            "metadata": {"name": "big", "annotations": {"x": "<" * 200_000}, **metadata},
            "spec": {"ports": [{"port": 1}]},
        },
    }
    many = {**LABELS, **{f"l{number}": "" for number in range(80_000)}}
    for resource, more in (("configmaps", {}), ("services", {"spec": {"ports": [{"port": 1}]}})):
        labelled = {"metadata": {"name": "labelled", "labels": many}, **more}
        cluster.kube.request("POST", f"{core}/{resource}{PATIENTLY}", labelled, timeout=120)
        taken.append(f"labelled {resource}")
    post_job_of_many_labels(cluster, namespace)
    for resource, body in plain.items():
        cluster.kube.request("POST", f"{core}/{resource}", body)
        taken.append(resource)
    for depth in (600, 4000, 9900):
        try:
            post_nested_job(cluster, namespace, f"deep-{depth}", depth)
            taken.append(f"deep-{depth}")
        except KubeError as error:
            print(f"a job of depth {depth}: {error}")
    return taken


def test_a_tenant_hurts_nobody_else(cluster: Cluster, tenant: str, operator: OperatorProcess, jobs: Jobs) -> None:
    jobs.create("good", light_spec("--step-seconds", "0.1"))
    jobs.await_world("good", 2)
    first = operator.process
    assert first is not None

    taken = create_what_hurts(cluster, tenant)
    assert {"configmaps", "pods", "services", "deep-600"} <= set(taken), "they were created"
    jobs.scale("good", 3)
    jobs.await_world("good", 3)
    assert first.poll() is None, operator.log[-2000:]

    operator.kill()  # one that starts finds them all
    operator.start()
    jobs.scale("good", 2)
    jobs.await_world("good", 2)
    assert operator.process is not None and operator.process.poll() is None, operator.log[-2000:]
    assert "Traceback" not in operator.log


# Seconds in one piece, megabytes, an exception, or a number that no status can hold, where each would be worked out.
NUMBERS = ("1e999999", "1e9999999", "9" * 34, "9" * 5000)


def make_numerous_jobs() -> Iterator[tuple[str, dict[str, object]]]:
    """Small jobs whose numbers are not: (name, spec)."""
    for i, text in enumerate(NUMBERS):
        for resource in ("cpu", "memory", "nvidia.com/gpu"):
            spec = light_spec()
            spec["template"]["spec"]["containers"][0]["resources"] = {"limits": {resource: text}}
            yield f"{resource.rpartition('/')[2]}-{i}", spec
        if len(text) <= 32:  # the CRD's limit
            yield f"checkpoints-{i}", {**light_spec(), "checkpoints": {"path": "/c", "sizeLimit": text}}
        yield f"nproc-{i}", {**light_spec(), "nprocPerNode": text}


def test_numbers_out_of_range_fail_their_own_job(
    cluster: Cluster, tenant: str, operator: OperatorProcess, jobs: Jobs
) -> None:
    jobs.create("good", light_spec("--step-seconds", "0.1"))
    jobs.await_world("good", 2)
    first, theirs, made = operator.process, Jobs(cluster, tenant), []
    for name, spec in make_numerous_jobs():
        try:
            theirs.create(name, spec)
        except KubeError as error:  # the schema refuses it
            print(f"{name}: {error}")
        else:
            made.append(name)
    jobs.scale("good", 3)
    jobs.await_world("good", 3)
    for name in made:
        theirs.await_condition(name, "Failed")
    assert first is not None and first.poll() is None, operator.log[-2000:]
