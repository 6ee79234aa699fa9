"""Workloads as Kueue writes them → what may run, where, and what is told."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import TEMPLATE, make_job, make_pod, make_spec
from controller.counted_work import count_work
from elasticjob_operator.api import names as ours
from elasticjob_operator.apply import manifests as objects
from elasticjob_operator.integrations.kueue import manifests, names
from elasticjob_operator.integrations.kueue.asking import Create, Set, Wish, decide
from elasticjob_operator.integrations.kueue.quota import read_quota
from elasticjob_operator.integrations.kueue.values import Flavor, Workload, observe_flavor, observe_workload
from elasticjob_operator.model.quota import Placement, Quota, Share
from elasticjob_operator.plan.values import NewPod

SPEC = make_spec(2, 4)
JOB = make_job(SPEC)
SETTINGS = objects.Settings(hub_url="ws://hub:1")
TOLERATION = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
FLAVORS = {
    "on-demand": Flavor({"pool": "on-demand"}),
    "spot": observe_flavor({"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [TOLERATION]}}),
}


def write(first: int = 0, count: int = 2, *, job: Any = JOB, **status: Any) -> dict[str, Any]:
    """The Workload that we would make, as the API server returns it with this status."""
    raw = manifests.build_workload(job, job.spec, Create(first, count), "gpus", SETTINGS, None)
    raw["metadata"] |= {"uid": f"w{first}", "resourceVersion": "7", "generation": 1}
    return {**raw, "status": status}


def condition(type: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, Any]:
    when = "2026-11-01T00:00:00Z"
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": when}


def admit(first: int = 0, count: int = 2, flavor: str = "on-demand", *more: Any, **fields: Any) -> Workload:
    assignment = {"name": names.POD_SET, "flavors": {"cpu": flavor}, "count": count, **fields.pop("assignment", {})}
    raw = write(
        first,
        count,
        conditions=[condition("QuotaReserved"), condition("Admitted"), *more],
        admission={"clusterQueue": "team", "podSetAssignments": [assignment]},
        **fields,
    )
    return see(raw)


def see(raw: dict[str, Any]) -> Workload:
    found = observe_workload(raw)
    assert found is not None
    return found


def read(*workloads: Workload) -> Quota:
    return read_quota(workloads, FLAVORS, SPEC.template_hash, "gpus")


@pytest.mark.parametrize(
    ("workloads", "reason", "message"),
    [
        pytest.param([], "Pending", "LocalQueue gpus: the queue has not decided yet", id="not asked yet"),
        pytest.param(
            [see(write())], "Pending", "LocalQueue gpus: the queue has not decided yet", id="not answered yet"
        ),
        pytest.param(
            [
                see(
                    write(
                        conditions=[condition("QuotaReserved", "False", "Misconfigured", "LocalQueue x doesn't exist")]
                    )
                )
            ],
            "QueueNotFound",
            "LocalQueue x doesn't exist: create it, or change the job's label kueue.x-k8s.io/queue-name",
            id="no such queue",
        ),
        pytest.param(
            [
                see(
                    write(
                        conditions=[
                            condition("QuotaReserved", "False", "Pending", "too much: 8 > maximum capacity (4)")
                        ]
                    )
                )
            ],
            "QuotaTooSmall",
            "too much: 8 > maximum capacity (4): lower minReplicas or its resources, or ask for another queue",
            id="it can never fit",
        ),
        pytest.param(
            [admit(0, 2, "on-demand", condition("Evicted", reason="Preempted", message="to make room for b"))],
            "Evicted",
            "to make room for b",
            id="evicted",
        ),
        pytest.param([see(write(2, 1))], "Pending", "LocalQueue gpus: the queue has not decided yet", id="no base"),
    ],
)
def test_what_a_job_that_waits_is_told(workloads: list[Workload], reason: str, message: str) -> None:
    assert read(*workloads) == Quota(False, reason, message)


def test_what_is_admitted_may_run_where_its_flavor_says() -> None:
    quota = read(admit(), admit(2, 1, "spot"), see(write(3, 1)))
    assert quota.message == "ClusterQueue team has admitted 3 pods; 1 more wait: the queue has not decided yet"
    labels = {
        "kueue.x-k8s.io/podset": "workers",
        "kueue.x-k8s.io/local-queue-name": "gpus",
        "kueue.x-k8s.io/cluster-queue-name": "team",
    }

    def named(first: int) -> dict[str, str]:
        return {"kueue.x-k8s.io/workload": f"digits-job-uid-{first}"}

    assert quota.shares == (
        Share(0, 2, Placement(labels, named(0), {"pool": "on-demand"})),
        Share(2, 1, Placement(labels, named(2), {"pool": "spot"}, (TOLERATION,))),
    )
    assert [quota.covers(i) for i in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("increment", "pods"),
    [
        pytest.param(admit(2, 1, "spot", condition("Evicted", reason="Preempted")), 2, id="evicted"),
        pytest.param(admit(2, 2, reclaimablePods=[{"name": "workers", "count": 1}]), 3, id="a part was given back"),
        pytest.param(see({**write(2, 1), "spec": {"podSets": [{"count": 1}], "active": False}}), 2, id="turned off"),
    ],
)
def test_what_an_increment_is_worth(increment: Workload, pods: int) -> None:
    assert read(admit(), increment).pods == pods


def test_no_new_pods_of_another_template_or_an_unknown_flavor() -> None:
    other = make_job(make_spec(2, 4, template={"spec": {"containers": [{"name": "worker", "image": "train:2"}]}}))
    changed = read_quota([admit()], FLAVORS, other.spec.template_hash if other.spec else "", "gpus")
    for quota in (changed, read(admit(0, 2, "unknown"))):
        assert list(quota.open_indices(4)) == []
        assert quota.covers(1)


def test_checks_and_topology_add_to_the_pods() -> None:
    updates = [{"name": "workers", "nodeSelector": {"zone": "b"}, "annotations": {"provisioned": "yes"}}]
    workload = admit(
        2,
        1,
        admissionChecks=[{"name": "check", "podSetUpdates": updates}],
        assignment={"topologyAssignment": {"levels": ["kubernetes.io/hostname"]}},
    )
    placement = read(admit(), workload).placement(2)
    assert placement is not None
    assert placement.node_selector == {"pool": "on-demand", "zone": "b"}
    assert placement.annotations["provisioned"] == "yes"
    assert placement.annotations["kueue.x-k8s.io/pod-index-offset"] == "2"
    assert placement.annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"
    assert placement.gates == ("kueue.x-k8s.io/topology",)


def test_no_check_makes_a_pod_somebody_elses() -> None:
    """A pod without the operator's marks would be made again and again, and never be counted."""
    told = {names.LABEL_POD_SET: "workers", "team": "b"}
    stolen = {ours.LABEL_APP: "x", ours.LABEL_JOB_UID: "x", ours.LABEL_INDEX: "7", ours.LABEL_JOB: ""}
    notes = {ours.ANNOTATION_TEMPLATE_HASH: "x", ours.ANNOTATION_TEMPLATE_SHAPE: ""}
    updates = [{"name": "workers", "labels": {**stolen, "team": "b"}, "annotations": notes}]
    placement = read(admit(admissionChecks=[{"name": "check", "podSetUpdates": updates}])).placement(0)
    plain = objects.build_pod(JOB, SPEC, NewPod(0), SETTINGS)["metadata"]
    placed = objects.build_pod(JOB, SPEC, NewPod(0, placement=placement), SETTINGS)["metadata"]
    for kind in ("labels", "annotations"):
        assert placed[kind].items() >= plain[kind].items(), "what the operator reads is the operator's to say"
    assert placed["labels"].items() >= told.items()


@pytest.mark.parametrize(
    ("annotation", "value", "request_"),
    [
        ("required-topology", "rack", {"required": "rack"}),
        ("preferred-topology", "block", {"preferred": "block"}),
        ("unconstrained-topology", "true", {"unconstrained": True}),
        ("unconstrained-topology", "false", {"unconstrained": False}),
        ("slice-size", "4", {"podSetSliceSize": 4}),
        ("slice-size", "many", {"podSetSliceSize": 0}),
    ],
)
def test_a_topology_request_has_the_types_of_the_workload(
    annotation: str, value: str, request_: dict[str, Any]
) -> None:
    template = {"metadata": {"annotations": {f"kueue.x-k8s.io/podset-{annotation}": value}}}
    spec = make_spec(2, 4, template=template | {"spec": SPEC.template["spec"]})
    assert manifests.find_topology(spec) == {**request_, "podIndexLabel": "elasticjob.dev/replica-index"}


def test_a_workload_asks_for_what_the_pods_will_need() -> None:
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "image": "train:1",
                    "command": ["torchrun"],
                    "env": [{"name": "A", "value": "b"}],
                    "resources": {"limits": {"nvidia.com/gpu": 8}},
                }
            ],
            "priorityClassName": "high",
        },
    }
    job = make_job(make_spec(2, 4, template=template))
    raw = write(2, 1, job=job)
    (pod_set,) = raw["spec"]["podSets"]
    assert raw["spec"]["queueName"] == "gpus"
    assert (pod_set["name"], pod_set["count"]) == ("workers", 1)
    assert pod_set["topologyRequest"] == {"required": "rack", "podIndexLabel": "elasticjob.dev/replica-index"}
    (container,) = pod_set["template"]["spec"]["containers"]
    assert container == {"name": "worker", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    assert pod_set["template"]["spec"]["priorityClassName"] == "high"
    assert raw["metadata"]["ownerReferences"][0]["controller"] is True
    assert raw["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]


COSTLY = {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": 8}}


def make_costly(**resources: Any) -> Any:
    container = {"name": "worker", "image": "train:1", "resources": {**COSTLY, **resources}}
    return make_job(make_spec(2, 4, template={"spec": {"containers": [container]}}))


@pytest.mark.parametrize(
    ("change", "is_genuine"),
    [
        pytest.param({}, True, id="as we make it"),
        pytest.param({"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "8"}}}, True, id="as Kueue completes it"),
        pytest.param({"resources": {}}, False, id="it asks for nothing"),
        pytest.param({"resources": {**COSTLY, "limits": {"nvidia.com/gpu": 1}}}, False, id="it asks for less"),
        pytest.param({"name": "other"}, False, id="another container"),
    ],
)
def test_a_workload_stands_for_what_its_pods_need(change: dict[str, Any], is_genuine: bool) -> None:
    job = make_costly()
    raw = write(job=job)
    (container,) = raw["spec"]["podSets"][0]["template"]["spec"]["containers"]
    container |= change
    assert manifests.is_genuine(see(raw), job, manifests.find_needed(job)) is is_genuine
    other = make_costly(claims=[])
    assert manifests.is_genuine(see(raw), other, manifests.find_needed(other)), (
        "another template: of the pods that are there"
    )


def test_a_workload_has_the_name_that_we_give_it() -> None:
    raw = write()
    raw["metadata"]["name"] = "more-of-the-same"
    assert not manifests.is_genuine(see(raw), JOB, manifests.find_needed(JOB))


def test_no_count_is_counted_out() -> None:
    raw = admit(2, 2**63)
    quota = read(admit(), raw)
    assert quota.pods == 100_002
    assert list(quota.open_indices(4)) == [0, 1, 2, 3]
    assert decide(Wish(SPEC, "gpus", 4), [admit(), raw], ()) != ()


def test_a_patch_keeps_the_conditions_of_others() -> None:
    workload = admit()
    patch = manifests.build_status_patch(Set(workload, (("PodsReady", True, "Started", "all"),)), 1_800_000_000.0)
    kept, admitted, ready = patch["status"]["conditions"]
    assert (kept["type"], admitted["type"], ready["type"]) == ("QuotaReserved", "Admitted", "PodsReady")
    assert ready["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert patch["metadata"] == {"uid": "w0", "resourceVersion": "7"}
    assert "admission" not in patch["status"]


def test_a_release_clears_the_admission() -> None:
    change = Set(admit(), (("QuotaReserved", False, "Pending", "why"),), is_released=True)
    status = manifests.build_status_patch(change, 1_800_000_000.0)["status"]
    assert status["admission"] is None
    assert [c["status"] for c in status["conditions"] if c["type"] == "QuotaReserved"] == ["False"]


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"name": "a", "namespace": "b", "uid": "c"}, id="no owner"),
        pytest.param({**write()["metadata"], "annotations": {}}, id="not made by us"),
    ],
)
def test_workloads_of_others_are_none_of_ours(metadata: dict[str, Any]) -> None:
    assert observe_workload({"metadata": metadata}) is None


def test_what_a_workload_says_is_cut_and_cleaned() -> None:
    """Whoever may write Workloads writes into one what they like; the job's condition and the log repeat it."""
    said = "\x1b[2J\n" + "y" * 100_000
    for found in (
        condition("QuotaReserved", "False", "Pending", said),
        condition("Evicted", "True", "Preempted", said),
    ):
        message = see(write(conditions=[found])).message
        assert len(message) == 1024 and message.isprintable()


def test_a_workload_that_was_admitted_in_part_stands_for_that_part() -> None:
    """Kueue admits fewer pods than asked for where a Workload allows it; ours do not, but others may make one."""
    partly = admit(0, 4, assignment={"count": 2})
    quota = read(partly)
    assert (quota.pods, [quota.covers(i) for i in range(4)]) == (2, [True, True, False, False])
    asked = [write for write in decide(Wish(SPEC, "gpus", 4), [partly], ()) if isinstance(write, Create)]
    assert asked == [Create(2, 1), Create(3, 1)], "the rest is asked for"
    back = admit(0, 4, assignment={"count": 3}, reclaimablePods=[{"name": names.POD_SET, "count": 2}])
    assert read(back).pods == 2, "what was given back counts from all that was asked for"


def test_pods_that_two_workloads_cover_have_quota_once() -> None:
    quota = read(admit(0, 3), admit(2, 4), admit(1, 2))
    assert (quota.pods, list(quota.open_indices(9))) == (6, [0, 1, 2, 3, 4, 5])
    assert [quota.covers(i) for i in (0, 2, 3, 5, 6)] == [True, True, True, True, False]


def test_many_workloads_cost_as_much_each_however_many_there_are() -> None:
    def count(many: int) -> int:
        workloads = [admit(first, 5) for first in range(many)]
        pods = [make_pod(index) for index in range(0, many, 2)]
        wish = Wish(SPEC, "gpus", many)

        def look() -> None:
            quota = read(*workloads)
            assert all(quota.covers(pod.index) for pod in pods)
            decide(wish, workloads, pods)

        return count_work(look)

    assert count(200) < 2.6 * count(100)


def test_who_names_the_priority_class_of_a_workload() -> None:
    template = {"spec": {**TEMPLATE["spec"], "priorityClassName": "pods"}}
    labels, later = {names.LABEL_PRIORITY: "job"}, {names.ANNOTATION_GROWTH_PRIORITY: "growth"}
    plain = make_job(make_spec(template=template))
    job = make_job(plain.spec, labels=labels, annotations=later)
    found = [
        (one.kind, one.name, one.field)
        for one in (
            manifests.find_class(plain, plain.spec, is_base=True),
            manifests.find_class(job, job.spec, is_base=True),
            manifests.find_class(job, job.spec, is_base=False),
        )
    ]
    assert found == [
        ("PriorityClass", "pods", "spec.template.spec.priorityClassName"),
        ("WorkloadPriorityClass", "job", f"metadata.labels[{names.LABEL_PRIORITY}]"),
        ("WorkloadPriorityClass", "growth", f"metadata.annotations[{names.ANNOTATION_GROWTH_PRIORITY}]"),
    ]
