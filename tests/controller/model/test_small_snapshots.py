"""What is kept of a pod, or of another object of a job, is small, whatever its author writes into it.

The operator keeps one for each of tens of thousands of objects, and its memory is that of all tenants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from elasticjob_operator.api import names
from elasticjob_operator.integrations.kueue import names as kueue
from elasticjob_operator.integrations.kueue.values import observe_workload
from elasticjob_operator.model import child_objects, observe, ownership

LONG = "x" * 250_000
MOST_BYTES = 96 * 1024
MOST_OF_A_WORKLOAD = 512 * 1024  # it is handed back as it was
MOST_TOLD = 32 * 1024


def measure(value: Any) -> int:
    """Bytes of a value with all that it refers to."""
    size = sys.getsizeof(value)
    if is_dataclass(value):
        return size + sum(measure(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return size + sum(measure(one) for pair in value.items() for one in pair)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return size + sum(map(measure, value))
    return size


def make_metadata(**more: Any) -> dict[str, Any]:
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "j", "uid": "u", "controller": True}
    labels = {names.LABEL_JOB: "j", names.LABEL_JOB_UID: "u", names.LABEL_INDEX: "0"}
    return {
        "name": names.pod_name("j", 0),
        "namespace": "t",
        "uid": "p",
        "resourceVersion": "7",
        "labels": labels,
        "ownerReferences": [owner],
        **more,
    }


def make_pod(status: Mapping[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    spec = {"nodeName": "n", "containers": [{"name": "w"}]}
    return {"metadata": make_metadata(**metadata), "spec": spec, "status": status or {}}


def with_requests(requests: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "w", "resources": {"requests": requests}}
    return {**make_pod(), "spec": {"nodeName": "n", "containers": [container]}}


def with_containers(count: int) -> dict[str, Any]:
    amounts = [{"cpu": f"{number}.5", "memory": f"{number}7"} for number in range(count)]
    containers = [{"name": f"c{n}", "resources": {"limits": a, "requests": a}} for n, a in enumerate(amounts)]
    return {**make_pod(), "spec": {"nodeName": "n", "containers": containers}}


def wait(**waiting: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "w", "state": {"waiting": waiting}}]}


def end(**ended: Any) -> dict[str, Any]:
    return {"phase": "Failed", "containerStatuses": [{"name": "w", "state": {"terminated": {"exitCode": 1, **ended}}}]}


GONE: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
PODS: Mapping[str, dict[str, Any]] = {
    "hash": make_pod(annotations={names.ANNOTATION_TEMPLATE_HASH: LONG}),
    "shape": make_pod(annotations={names.ANNOTATION_TEMPLATE_SHAPE: LONG}),
    "trainer": make_pod(annotations={names.ANNOTATION_TRAINER: LONG}),
    "other annotations": make_pod(annotations={f"{names.GROUP}/x": LONG}),
    "finalizers": make_pod(finalizers=[f"{LONG}/{number}" for number in range(5)], **GONE),
    "reason": make_pod({"phase": "Failed", "reason": LONG}),
    "message": make_pod({"phase": "Failed", "message": LONG}),
    "waits because of": make_pod(wait(reason=LONG)),
    "waits with a message": make_pod(wait(reason="ImagePullBackOff", message=LONG)),
    "ended because of": make_pod(end(reason=LONG)),
    "ended with a message": make_pod(end(message=LONG)),
    "unscheduled": make_pod(
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": LONG}]}
    ),
    "gated": make_pod({"conditions": [{"type": "PodScheduled", "status": "False", "reason": LONG, "message": LONG}]}),
    "disrupted": make_pod({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": LONG}]}),
    "conditions": make_pod({"conditions": [{"type": f"{n}{LONG[:9000]}", "status": LONG[:9000]} for n in range(500)]}),
    "requests": with_requests({f"{number:03}.{LONG[:240]}/{LONG[:63]}": "1" for number in range(4000)}),
    "amounts": with_containers(256),
    "address": make_pod({"podIP": LONG}),
    "resized": make_pod({"conditions": [{"type": "PodResizePending", "status": "True", "message": LONG}]}),
}


@pytest.mark.parametrize("raw", PODS.values(), ids=PODS.keys())
def test_the_snapshot_of_a_pod_is_small(raw: dict[str, Any]) -> None:
    pod = observe.observe_pod(raw)
    assert pod is not None
    assert measure(pod) < MOST_BYTES


OWNERS: Mapping[str, dict[str, Any]] = {"name": {"name": LONG}, "uid": {"uid": LONG}}


@pytest.mark.parametrize("field", OWNERS.values(), ids=OWNERS.keys())
def test_no_object_is_the_child_of_a_job_that_cannot_exist(field: dict[str, Any]) -> None:
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "j", "uid": "u", "controller": True, **field}
    job = owner["name"]
    labels = {names.LABEL_JOB: names.label(job), names.LABEL_JOB_UID: owner["uid"], names.LABEL_INDEX: "0"}
    pod = make_metadata(name=names.pod_name(job, 0), ownerReferences=[owner], labels=labels)
    assert ownership.why_no_worker(pod)
    policy = make_metadata(name=names.network_policy_name(job), ownerReferences=[owner])
    assert child_objects.why_no_child("NetworkPolicy", policy)


def test_the_record_of_a_child_is_small() -> None:
    metadata = make_metadata(annotations={names.ANNOTATION_DIGEST: LONG}, generation=1)
    assert measure(child_objects.observe_child(metadata, None, is_sound=True)) < MOST_BYTES


JOBS: Mapping[str, dict[str, Any]] = {
    "labels": {"labels": {f"label-{number}": "x" * 63 for number in range(15_000)}},
    "labels of Kueue": {"labels": {f"{names.KUEUE}/{number:05}": "x" * 63 for number in range(12_000)}},
    "annotations": {"annotations": {f"{names.GROUP}/{number:04}": "x" for number in range(9000)}},
    "an annotation": {"annotations": {f"{names.GROUP}/x": LONG}},
    "finalizers": {"finalizers": [f"x/{number}" for number in range(70_000)]},
    "sizes": {"annotations": {names.ANNOTATION_DEFAULT: LONG, names.ANNOTATION_POOL: LONG}},
}


@pytest.mark.parametrize("metadata", JOBS.values(), ids=JOBS.keys())
def test_what_is_kept_of_the_metadata_of_a_job_is_small(metadata: dict[str, Any]) -> None:
    specs: tuple[dict[str, Any], ...] = ({}, with_template({})["spec"])
    for spec in specs:
        job = observe.observe_job({"metadata": {"name": "j", "namespace": "t", "uid": "u", **metadata}, "spec": spec})
        assert measure(job) < MOST_BYTES


def make_workload(
    pod_set: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    metadata = make_metadata(name="w", annotations={kueue.ANNOTATION_FIRST: "0"})
    described = {"name": kueue.POD_SET, "count": 1, "template": {"spec": {}}, **(pod_set or {})}
    return {"metadata": metadata, "spec": {"podSets": [described], **(spec or {})}, "status": status}


def annotated(**metadata: Any) -> dict[str, Any]:
    made = make_workload()
    metadata["annotations"] = {**made["metadata"]["annotations"], **metadata.get("annotations", {})}
    return {**made, "metadata": {**made["metadata"], **metadata}}


def say(number: int, **more: str) -> dict[str, str]:
    return {"type": f"T{number}", "status": "True", **more}


ADMITTED = {"type": "Admitted", "status": "True"}
WORKLOADS: Mapping[str, dict[str, Any]] = {
    "messages": make_workload(conditions=[say(number, message="x" * 32_000) for number in range(40)]),
    "conditions": make_workload(conditions=[say(number) for number in range(30_000)]),
    "evicted because of": make_workload(conditions=[{"type": "Evicted", "status": "True", "reason": LONG}]),
    "placement": make_workload({"topologyRequest": {"required": LONG}}),
    "amounts": make_workload(
        {"template": {"spec": {"containers": [{"name": "w", "resources": {"requests": {LONG: "1"}}}]}}}
    ),
    "containers": make_workload({"template": {"spec": {"containers": [{"name": f"w{n}"} for n in range(50_000)]}}}),
    "flavors": make_workload(admission={"podSetAssignments": [{"flavors": {str(n): f"f{n}" for n in range(30_000)}}]}),
    "cluster queue": make_workload(admission={"clusterQueue": LONG}),
    "updates": make_workload(
        admission={"clusterQueue": "q"},
        admissionChecks=[{"podSetUpdates": [{"name": kueue.POD_SET, "labels": {f"l{n}": "" for n in range(60_000)}}]}],
    ),
    "deep updates": make_workload(
        admission={"clusterQueue": "q"},
        admissionChecks=[{"podSetUpdates": [{"name": kueue.POD_SET, "labels": {"x": [[[["y"] * 50_000]]]}}]}],
    ),
    "queue": make_workload(spec={"queueName": LONG}),
    "priority": make_workload(spec={"priorityClassRef": {"name": LONG}}),
    "cluster": make_workload(clusterName=LONG),
    "hash": annotated(annotations={kueue.ANNOTATION_TEMPLATE: LONG}),
    "finalizers": annotated(finalizers=[f"x/{number}" for number in range(70_000)]),
}


@pytest.mark.parametrize("raw", WORKLOADS.values(), ids=WORKLOADS.keys())
def test_the_snapshot_of_a_workload_is_small(raw: dict[str, Any]) -> None:
    workload = observe_workload(raw)
    assert workload is not None
    assert measure(workload) < MOST_OF_A_WORKLOAD


def test_a_workload_that_is_too_large_admits_nothing_and_says_so() -> None:
    """Otherwise a tenant would keep what Kueue has taken back."""
    said = [say(number) for number in range(30_000)]
    workload = observe_workload(
        make_workload(conditions=[{"type": "QuotaReserved", "status": "True"}, ADMITTED, *said])
    )
    assert workload is not None
    assert (workload.may_run, workload.reserves) == (False, True)
    assert "has more than 2048 values" in workload.message


FACE = "\U0001f600"  # with one of them, each character of a text takes four bytes


def with_template(pod: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    described = {"metadata": metadata} if metadata else {}
    spec = {"replicas": 1, "template": {**described, "spec": {"containers": [{"name": "w"}], **pod}}}
    return {"metadata": {"name": "j", "namespace": "t", "uid": "u", "generation": 1}, "spec": spec}


def with_container(**fields: Any) -> dict[str, Any]:
    return with_template({"containers": [{"name": "w", **fields}]})


LONGER = FACE + "x" * 200_000
TOLD: Mapping[str, dict[str, Any]] = {
    "arguments of a container with a long name": with_container(
        name="n" * 60_000, args=["torchrun", *["--standalone"] * 400]
    ),
    "arguments": with_container(args=["torchrun", *[f"{'-' * number}standalone" for number in range(2, 600)]]),
    "a policy": with_template({"restartPolicy": LONGER}),
    "a container that trains": with_template({}, annotations={names.ANNOTATION_TRAINER: LONGER}),
    "claims": with_container(resources={"claims": [{"name": FACE + "x" * 40_000} for _ in range(5)]}),
    "devices": with_container(resources={"limits": {f"{FACE}{n}{'x' * 40_000}/y": "1" for n in range(5)}}),
    "a mount": {
        **(mounted := with_container(volumeMounts=[{"name": "v", "mountPath": f"/c/{LONGER}"}])),
        "spec": {**mounted["spec"], "checkpoints": {"path": "/c"}},
    },
    "gangs of containers": with_template(
        {"containers": [{"name": f"{number}{'n' * 900}"} for number in range(200)]},
        annotations={names.ANNOTATION_TRAINER: "none"},
    ),
}


@pytest.mark.parametrize("raw", TOLD.values(), ids=TOLD.keys())
def test_what_is_told_of_a_job_is_short(raw: dict[str, Any]) -> None:
    """It is kept beside the spec, of a job whose spec is not kept, too; and one text may be told for each of many."""
    job = observe.observe_job(raw)
    assert job.notices or job.problems
    assert measure([[one.message for one in job.notices], [f"{one}" for one in job.problems]]) < MOST_TOLD


MARKS: Mapping[str, dict[str, Any]] = {
    "annotations": {f"{names.GROUP}/{number:063}": FACE + "x" * 252 for number in range(64)},
    "annotations that mean something": {kueue.PREBUILT: LONGER, kueue.ANNOTATION_GROWTH_PRIORITY: LONGER},
    "labels": {f"{names.KUEUE}/{number:063}": "x" * 63 for number in range(64)},
}


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS.keys())
def test_only_marks_that_mean_something_are_kept_of_a_job(marks: Mapping[str, str], field: str) -> None:
    """The operator says that a small job takes some kilobytes."""
    job = observe.observe_job(
        {**with_template({}), "metadata": {"name": "j", "namespace": "t", "uid": "u", field: marks}}
    )
    assert measure([job.labels, job.annotations]) < MOST_TOLD // 4
