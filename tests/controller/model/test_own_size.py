"""A number in `spec.replicas` that nobody but the operator has written gives way to a change of the bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticjob_operator.model import observe
from elasticjob_operator.sizing import written
from elasticjob_operator.sizing.values import Size

TEMPLATE = {"spec": {"containers": [{"name": "worker", "image": "a:1"}]}}
DEFAULT, POOL = "elasticjob.dev/default-replicas", "elasticjob.dev/pool-replicas"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
METRICS = [{"type": "Pods"}]


def observed(
    replicas: int | None,
    *,
    annotations: dict[str, str] | None = None,
    writers: tuple[str, ...] = ("elasticjob-operator",),
    mode: str = "Manual",
    **policy: Any,
) -> observe.Job:
    spec: dict[str, Any] = {"elasticPolicy": policy, "template": TEMPLATE, "scaling": {"mode": mode}}
    if replicas is not None:
        spec["replicas"] = replicas
    fields = [{"manager": writer, "fieldsV1": {"f:spec": {"f:replicas": {}}}} for writer in writers]
    metadata = {"name": "digits", "namespace": "default", "uid": "j1", "managedFields": fields}
    return observe.observe_job({"metadata": {**metadata, "annotations": annotations or {}}, "spec": spec})


def applied(replicas: int | None) -> dict[str, str]:
    spec = {"replicas": replicas} if replicas else {}
    return {DEFAULT: "4", APPLIED: json.dumps({"spec": spec})}


@pytest.mark.parametrize(
    ("job", "wanted", "change"),
    [
        pytest.param(observed(None, maxReplicas=4), 4, 4, id="nobody has written one"),
        pytest.param(observed(4, annotations={DEFAULT: "4"}, maxReplicas=4), 4, None, id="the default"),
        pytest.param(observed(4, annotations={DEFAULT: "4"}, maxReplicas=8), 8, 8, id="a larger maximum"),
        pytest.param(observed(4, annotations={DEFAULT: "4"}, maxReplicas=2), 2, 2, id="a smaller one"),
        pytest.param(
            observed(4, annotations={DEFAULT: "4"}, minReplicas=6, maxReplicas=8), 8, 8, id="a larger minimum"
        ),
        pytest.param(observed(2, annotations={DEFAULT: "2"}, minReplicas=3), 3, 3, id="a minimum alone"),
        pytest.param(observed(4, maxReplicas=8), 4, None, id="a user's"),
        pytest.param(observed(3, annotations={DEFAULT: "4"}, maxReplicas=8), 3, None, id="one that was scaled"),
        pytest.param(
            observed(4, annotations={DEFAULT: "4"}, writers=("elasticjob-operator", "argocd"), maxReplicas=8),
            4,
            None,
            id="one that a file has too",
        ),
        pytest.param(
            observed(4, annotations={DEFAULT: "4"}, writers=("kube-controller-manager",), maxReplicas=8),
            4,
            None,
            id="one to which an autoscaler has come back",
        ),
        pytest.param(observed(4, annotations={DEFAULT: "4"}, writers=(), maxReplicas=8), 8, 8, id="no writer is known"),
        pytest.param(observed(4, annotations=applied(4), maxReplicas=8), 4, None, id="kubectl has applied it"),
        pytest.param(observed(4, annotations=applied(None), maxReplicas=8), 8, 8, id="kubectl has not applied it"),
        pytest.param(observed(4, annotations={POOL: "4"}, maxReplicas=8), 4, None, id="kept from the pool"),
        pytest.param(observed(3, writers=(), maxReplicas=8, metrics=METRICS), 3, None, id="an autoscaler's"),
        pytest.param(observed(6, writers=(), maxReplicas=4, metrics=METRICS), 4, 4, id="an autoscaler's, bounded"),
    ],
)
def test_what_a_job_wants_and_what_is_written(job: observe.Job, wanted: int, change: int | None) -> None:
    assert job.problems == ()
    assert job.spec is not None
    assert job.spec.wanted == wanted
    assert written.find_change(job, job.spec.wanted) == change


@pytest.mark.parametrize(
    ("annotations", "is_pinned"),
    [
        pytest.param({POOL: "6"}, False, id="the pool's"),
        pytest.param({DEFAULT: "6"}, False, id="the default, of a job that has joined the pool"),
        pytest.param({POOL: "5"}, True, id="a user's"),
    ],
)
def test_a_number_of_the_pool_is_bounded(annotations: dict[str, str], is_pinned: bool) -> None:
    job = observed(6, annotations=annotations, mode="Goodput", maxReplicas=3)
    assert job.spec is not None
    assert job.spec.replicas == 3
    assert job.is_pinned is is_pinned
    assert bool(job.problems) is is_pinned
    assert written.find_replicas(job, job.spec, Size(3, 3, 3)) == (None if is_pinned else 3)
