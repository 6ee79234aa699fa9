"""The PodGroups for each gang scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import NOW, make_job, make_pod, make_spec
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.manifests import gangs
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.children import choose_gang, wanted_children
from elasticjob_operator.plan.plan import Child, Config, Kind, NewPod, Seen, plan

SETTINGS = manifests.Settings(hub_url="ws://hub:1")
NATIVE = Config(has_native_gangs=True)


def make_template(scheduler: str, **resources: Any) -> dict[str, Any]:
    described = {
        "annotations": {"scheduling.volcano.sh/queue-name": "team"},
        "labels": {"kai.scheduler/queue": "team"},
    }
    containers = [
        {"name": "worker", "resources": resources},
        {"name": "log", "resources": {"requests": {"cpu": "100m"}}},
    ]
    return {
        "metadata": described,
        "spec": {"schedulerName": scheduler, "priorityClassName": "high", "containers": containers},
    }


LEAST = {"cpu": "8200m", "memory": str(2 * 16 * 2**30), "nvidia.com/gpu": "4"}


@pytest.mark.parametrize(
    ("scheduler", "api_version", "expected"),
    [
        pytest.param(
            "volcano",
            "scheduling.volcano.sh/v1beta1",
            {"minMember": 2, "queue": "team", "priorityClassName": "high", "minResources": LEAST},
            id="volcano",
        ),
        pytest.param(
            "scheduler-plugins-scheduler",
            "scheduling.x-k8s.io/v1alpha1",
            {"minMember": 2, "minResources": LEAST},
            id="scheduler-plugins",
        ),
        pytest.param(
            "kai-scheduler",
            "scheduling.run.ai/v2alpha2",
            {"minMember": 2, "queue": "team", "priorityClassName": "high"},
            id="kai",
        ),
    ],
)
def test_queue_class_and_resources_are_passed_on(scheduler: str, api_version: str, expected: dict[str, Any]) -> None:
    limits = {"cpu": 4, "memory": "16Gi", "nvidia.com/gpu": "2"}
    spec = make_spec(2, 4, template=make_template(scheduler, limits=limits))
    job = make_job(spec)
    (child,) = [c for c in wanted_children(job, spec, Config()) if c.kind is Kind.POD_GROUP]
    group = manifests.build_child(job, child)
    assert (group["apiVersion"], group["spec"]) == (api_version, expected)


@pytest.mark.parametrize("index", [pytest.param(0, id="of the minimum"), pytest.param(3, id="above it")])
def test_kai_takes_all_pods_of_a_job_as_one_group(index: int) -> None:
    spec = make_spec(2, 4, template=make_template("kai-scheduler"))
    annotations = manifests.build_pod(make_job(spec), spec, NewPod(index, gang="kai"), SETTINGS)["metadata"][
        "annotations"
    ]
    assert annotations["pod-group-name"] == "digits"
    assert annotations["kai.scheduler/skip-podgrouper"] == "true"


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((), "kubernetes", id="at the start"),
        pytest.param((make_pod(0, "Pending", waiting="unscheduled"),), "kubernetes", id="where none is placed yet"),
        pytest.param((make_pod(0),), "", id="beside a pod that is placed, perhaps without the group"),
        pytest.param((make_pod(0, deleting=NOW),), "kubernetes", id="beside one that goes"),
    ],
)
def test_the_group_of_kubernetes_is_for_the_start(pods: tuple[Pod, ...], expected: str) -> None:
    assert choose_gang(make_spec(2, 4), NATIVE, pods) == expected
    volcano = make_spec(2, 4, template=make_template("volcano"))
    assert choose_gang(volcano, NATIVE, pods) == "volcano", "its pods belong to the group by their index"


def test_a_quantity_that_is_none_is_left_to_the_api_server() -> None:
    spec = make_spec().model_copy(update={"template": make_template("volcano", limits={"cpu": "many"})})
    assert gangs.find_least(spec) == {}


@pytest.mark.parametrize("version", ["scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"])
def test_kubernetes_own_scheduler_gets_a_group_with_all_pods(version: str) -> None:
    spec = make_spec(2, 4, template=make_template("default-scheduler"))
    job = make_job(spec)
    (child,) = [c for c in wanted_children(job, spec, NATIVE) if c.kind is Kind.POD_GROUP]
    group = manifests.build_child(job, child, Served(frozenset({version})))
    assert (group["apiVersion"], group["kind"]) == (version, "PodGroup")
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": "high"}
    for index in (0, 3):
        pod = manifests.build_pod(job, spec, NewPod(index, gang="kubernetes"), SETTINGS)
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": "digits"}
    assert "schedulingGroup" not in manifests.build_pod(job, spec, NewPod(0), SETTINGS)["spec"]


@pytest.mark.parametrize(
    ("pod", "config", "expected"),
    [
        pytest.param({}, NATIVE, "kubernetes", id="the default scheduler"),
        pytest.param({"schedulerName": "default-scheduler"}, NATIVE, "kubernetes", id="the default scheduler by name"),
        pytest.param({}, Config(), "", id="the cluster serves no groups for it, or they are not wanted"),
        pytest.param({"schedulingGroup": {"podGroupName": "mine"}}, NATIVE, "", id="a group that the user made"),
        pytest.param({"schedulerName": "volcano"}, NATIVE, "volcano", id="another scheduler"),
        pytest.param({"schedulerName": "mine"}, NATIVE, "", id="a scheduler that nobody here knows"),
    ],
)
def test_a_group_and_its_pods_are_for_one_scheduler(pod: dict[str, Any], config: Config, expected: str) -> None:
    template = {"spec": {**pod, "containers": [{"name": "worker"}]}}
    job = make_job(make_spec(2, 4, template=template))
    made = plan(Seen(job, now=NOW, hub_started=NOW), config)
    assert {new.gang for new in made.create} == {expected}
    assert [dict(c.values)["flavour"] for c in made.ensure if c.kind is Kind.POD_GROUP] == [expected] * bool(expected)


@pytest.mark.parametrize(
    ("version", "patch"),
    [
        pytest.param("v1beta1", {"schedulingPolicy": {"gang": {"minCount": 3}}}, id="1.37: minReplicas"),
        pytest.param("v1alpha2", {}, id="1.36: nothing may change"),
    ],
)
def test_a_group_follows_where_it_may(version: str, patch: dict[str, Any]) -> None:
    def build(low: int) -> dict[str, Any]:
        spec = make_spec(low, 4, template=make_template(""))
        values = (("flavour", "kubernetes"), ("minMember", low))
        served = Served(frozenset({f"scheduling.k8s.io/{version}"}))
        return manifests.build_child(make_job(spec), Child(Kind.POD_GROUP, "digits", values), served)

    found, wanted = build(2), build(3)
    del wanted["spec"]["priorityClassName"]
    change = manifests.correct_child(Kind.POD_GROUP, found, wanted)
    assert change.get("spec", {}) == patch
    assert change["metadata"]["annotations"] != found["metadata"]["annotations"], "and it is known as up to date"
