"""Changes of CPU and memory: which pods are resized in place, and what is told."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_job, make_pod, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api.podtemplate import find_shape, find_sizes
from elasticjob_operator.apply import manifests, refusals
from elasticjob_operator.model.observe import Pod, observe_pod
from elasticjob_operator.model.quota import Quota, Share
from elasticjob_operator.plan.plan import Plan, Seen, plan
from elasticjob_operator.plan.policy import Resize
from elasticjob_operator.plan.values import NewPod
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.times import format_time

BEFORE: dict[str, Any] = {
    "spec": {
        "containers": [
            {
                "name": "worker",
                "image": "train:1",
                "resources": {
                    "requests": {"cpu": "500m", "memory": "1Gi"},
                    "limits": {"memory": "2Gi", "nvidia.com/gpu": 1},
                },
            },
            {"name": "logs", "image": "logs:1", "resources": {"limits": {"cpu": 1}}},
        ]
    }
}


def change(container: int = 0, **fields: Any) -> dict[str, Any]:
    """The template with other resources, or other fields, of one container."""
    template = copy.deepcopy(BEFORE)
    found = template["spec"]["containers"][container]
    for name, value in fields.items():
        if name in ("requests", "limits"):
            found["resources"][name] = {**found["resources"].get(name, {}), **value}
        else:
            found[name] = value
    return template


def build(template: dict[str, Any], index: int = 0, sizes: dict[str, Any] | None = None, **fields: Any) -> Pod:
    """A pod of this template, which asks for the amounts of another one by now if `sizes` is given."""
    spec = make_spec(template=template)
    shape = find_shape(sizes or template)
    fields = {"template_hash": spec.template_hash, "template_shape": shape.hash, "sizes": shape.sizes, **fields}
    return make_pod(index, **fields)


def decide(template: dict[str, Any], *pods: Pod, **seen: Any) -> Plan:
    """What is planned for a job of two such pods that trains, now that its template is this one."""
    status = api.Status(
        start_time=format_time(NOW - 60),
        template_hash=make_spec(template=BEFORE).template_hash,
        observed_generation=1,
        rendezvous=make_world(1, tuple(p.index for p in pods)),
    )
    agents = {p.uid: make_agent(p.index, "running", 1) for p in pods}
    job = make_job(make_spec(2, 2, template=template), status)
    return plan(Seen(job=job, pods=pods, agents=agents, now=NOW, **seen))


MORE = change(requests={"cpu": "2"}, limits={"memory": "4Gi"})


@pytest.mark.parametrize(
    ("template", "is_same"),
    [
        pytest.param(MORE, True, id="amounts of CPU and memory"),
        pytest.param(change(1, limits={"cpu": "2"}), True, id="of another container"),
        pytest.param(change(limits={"cpu": "1"}), False, id="a limit that was not there: the class may change"),
        pytest.param(change(limits={"nvidia.com/gpu": 2}), False, id="devices"),
        pytest.param(change(image="train:2"), False, id="an image"),
    ],
)
def test_what_can_change_in_a_pod_that_runs(template: dict[str, Any], is_same: bool) -> None:
    assert (find_shape(template).hash == find_shape(BEFORE).hash) is is_same
    assert find_shape(template) != find_shape(BEFORE)


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        pytest.param({"requests": {"cpu": "0.5"}}, (("c", "requests", "cpu", "0.5"),), id="as written"),
        pytest.param({"requests": {"cpu": "500m"}}, (("c", "requests", "cpu", "0.5"),), id="the same"),
        pytest.param(
            {"limits": {"memory": "1Ki"}},
            (("c", "requests", "memory", "1024"), ("c", "limits", "memory", "1024")),
            id="a limit is the request",
        ),
        pytest.param({"limits": {"nvidia.com/gpu": 8}}, (), id="devices are none"),
        pytest.param(
            {"requests": {"cpu": "much"}}, (("c", "requests", "cpu", "much"),), id="the API server refuses it"
        ),
    ],
)
def test_amounts_are_compared_by_what_they_mean(amounts: dict[str, Any], expected: Any) -> None:
    assert find_sizes([{"name": "c", "resources": amounts}]) == expected


@pytest.mark.parametrize(
    ("template", "pods", "expected"),
    [
        pytest.param(MORE, [build(BEFORE), build(BEFORE, 1)], ["u0", "u1"], id="all pods"),
        pytest.param(MORE, [build(BEFORE, sizes=MORE), build(BEFORE, 1)], ["u1"], id="what is left"),
        pytest.param(MORE, [build(MORE), build(BEFORE, 1)], ["u1"], id="a pod of the new template"),
        pytest.param(MORE, [build(BEFORE), build(BEFORE, 1, deleting=NOW + 9)], ["u0"], id="a pod that goes"),
        pytest.param(BEFORE, [build(BEFORE, sizes=MORE), build(BEFORE, 1)], [], id="somebody else has resized it"),
        pytest.param(change(image="b"), [build(BEFORE), build(BEFORE, 1)], [], id="another change"),
        pytest.param(MORE, [build(BEFORE, template_shape=""), build(BEFORE, 1)], ["u1"], id="of an older operator"),
    ],
)
def test_which_pods_are_resized(template: dict[str, Any], pods: list[Pod], expected: list[str]) -> None:
    made = decide(template, *pods)
    assert [resize.uid for resize in made.resize] == expected
    assert made.delete == ()


def test_no_pod_of_a_queue_is_resized() -> None:
    made = decide(MORE, build(BEFORE), build(BEFORE, 1), quota=Quota(True, "Admitted", "", (Share(0, 2),)))
    assert made.resize == (), "its quota is for other amounts"


HASH = make_spec(template=MORE).template_hash
TOLD = "spec.template has changed: suspend and resume the job to recreate all its pods"


@pytest.mark.parametrize(
    ("pods", "unresized", "expected"),
    [
        pytest.param([build(BEFORE), build(BEFORE, 1)], ("", ""), ("TemplateChanged", TOLD), id="on its way"),
        pytest.param([build(BEFORE, sizes=MORE), build(BEFORE, 1, sizes=MORE)], ("", ""), None, id="done"),
        pytest.param(
            [build(BEFORE, sizes=MORE, resize_problem="Infeasible: no node has that"), build(BEFORE, 1, sizes=MORE)],
            ("", ""),
            ("ResizePending", "digits-worker-0 keeps its CPU and memory: Infeasible: no node has that"),
            id="the node cannot",
        ),
        pytest.param(
            [build(BEFORE), build(BEFORE, 1)],
            (HASH, "no"),
            ("TemplateChanged", f"{TOLD}. They cannot be resized in place: no"),
            id="the API server refuses",
        ),
    ],
)
def test_what_is_told(pods: list[Pod], unresized: tuple[str, str], expected: tuple[str, str] | None) -> None:
    made = decide(MORE, *pods, unresized=unresized)
    degraded = made.status.condition("Degraded")
    told = (degraded.reason, degraded.message) if degraded is not None and degraded.status == "True" else None
    assert told == expected
    assert (made.resize == ()) is (expected is None or bool(unresized[1]) or expected[0] == "ResizePending")
    assert (made.status.template_hash == HASH) is (expected is None or expected[0] == "ResizePending")


def test_another_change_is_tried_again_after_a_refusal() -> None:
    made = decide(MORE, build(BEFORE), build(BEFORE, 1), unresized=("of another template", "no"))
    assert len(made.resize) == 2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ApiError(404, "NotFound", 'pods "digits-worker-0" not found'), "", id="the pod is gone"),
        pytest.param(ApiError(409, "Conflict", "another UID"), "", id="it was replaced"),
        pytest.param(
            ApiError(404, "NotFound", "the server could not find the requested resource"),
            "the API server cannot resize pods, which Kubernetes can from 1.33 on",
            id="an old API server",
        ),
        pytest.param(
            ApiError(403, "Forbidden", "not allowed"),
            "not allowed: the operator's role needs patch pods/resize",
            id="an old chart",
        ),
        pytest.param(ApiError(422, "Invalid", "the class changes"), "the class changes", id="refused"),
        pytest.param(ApiError(503, "Unavailable", "later"), None, id="to be tried again"),
    ],
)
def test_what_an_answer_means(error: ApiError, expected: str | None) -> None:
    assert refusals.explain_resize("digits-worker-0", error) == expected


def test_the_patch_names_the_pod_and_all_amounts() -> None:
    patch = manifests.build_resize(Resize("digits-worker-0", "u0", find_shape(MORE).sizes))
    assert patch == {
        "metadata": {"uid": "u0"},
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "resources": {"requests": {"cpu": "2", "memory": "1073741824"}, "limits": {"memory": "4294967296"}},
                },
                {"name": "logs", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}},
            ]
        },
    }


def test_what_a_pod_tells() -> None:
    job = make_job(make_spec(template=BEFORE))
    assert job.spec is not None
    raw = manifests.build_pod(job, job.spec, NewPod(0), manifests.Settings(hub_url="ws://hub:1"))
    raw["metadata"]["uid"] = "u0"
    held = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "wait"}
    pod = observe_pod({**raw, "status": {"conditions": [held]}})
    assert pod is not None
    assert (pod.template_shape, pod.sizes) == (find_shape(BEFORE).hash, find_shape(BEFORE).sizes)
    assert pod.resize_problem == "Deferred: wait"
