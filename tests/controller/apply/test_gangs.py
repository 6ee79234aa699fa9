"""The PodGroups for each gang scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import make_job, make_spec
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.manifests import gangs
from elasticjob_operator.plan.children import wanted_children
from elasticjob_operator.plan.plan import Config, Kind, NewPod

SETTINGS = manifests.Settings(hub_url="ws://hub:1")


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
    annotations = manifests.build_pod(make_job(spec), spec, NewPod(index), SETTINGS)["metadata"]["annotations"]
    assert annotations["pod-group-name"] == "digits"
    assert annotations["kai.scheduler/skip-podgrouper"] == "true"


def test_a_quantity_that_is_none_is_left_to_the_api_server() -> None:
    assert gangs.find_least(make_spec(template=make_template("volcano", limits={"cpu": "many"}))) == {}
