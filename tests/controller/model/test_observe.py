"""Raw API objects → records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import TEMPLATE
from elasticjob_operator import api
from elasticjob_operator.api import podtemplate
from elasticjob_operator.model import containers, observe, topology
from elasticjob_operator.model.containers import Exit
from elasticjob_operator.model.observe import Node
from elasticjob_operator.times import format_time, parse_time

LABELS = {
    "elasticjob.dev/job-name": "digits",
    "elasticjob.dev/job-uid": "j1",
    "elasticjob.dev/replica-index": "2",
}


def raw_pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "digits-worker-2",
            "uid": "p1",
            "labels": LABELS,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **metadata,
        },
        "spec": {"nodeName": "node1", "containers": [{"name": "worker"}, {"name": "side"}]},
        "status": status or {},
    }


def with_devices(*healths: str) -> dict[str, Any]:
    """The status of a pod whose GPUs have this health."""
    devices = [{"resourceID": f"GPU-{number}", "health": health} for number, health in enumerate(healths)]
    allocated = [{"name": "nvidia.com/gpu", "resources": devices}]
    return {"phase": "Running", "containerStatuses": [{"name": "worker", "allocatedResourcesStatus": allocated}]}


START = parse_time("2026-01-01T00:00:00Z") or 0.0


def test_times_go_there_and_back() -> None:
    assert format_time(START + 0.25) == "2026-01-01T00:00:00.250Z"
    assert parse_time(format_time(START + 0.25)) == START + 0.25
    assert parse_time(None) is None


def test_a_pod_of_somebody_else_is_none_of_ours() -> None:
    assert observe.observe_pod(raw_pod(labels={})) is None
    assert observe.observe_pod(raw_pod(labels={**LABELS, "elasticjob.dev/replica-index": "x"})) is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, {"phase": "Pending", "started": False, "index": 2, "node": "node1"}, id="fresh"),
        pytest.param(
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "no room",
                        "lastTransitionTime": "2026-01-01T00:00:05Z",
                    }
                ]
            },
            {"unschedulable": START + 5, "unschedulable_message": "no room", "scheduled": None},
            id="unschedulable",
        ),
        pytest.param(
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
                ]
            },
            {"waiting": "SchedulingGated", "waiting_message": "gated"},
            id="kept from the scheduler by spec.schedulingGates",
        ),
        pytest.param(
            {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}
                ],
                "containerStatuses": [{"name": "worker", "state": {"running": {}}}],
            },
            {"phase": "Running", "ip": "10.0.0.1", "started": True, "scheduled": START + 1},
            id="running",
        ),
        pytest.param(
            {"containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            {"waiting": "ImagePullBackOff", "started": False},
            id="image-pull",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "side", "state": {"terminated": {"exitCode": 9}}},
                    {"name": "worker", "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "tail"}}},
                ],
            },
            {"phase": "Failed", "exit": Exit(3, "Error", "tail")},
            id="failed",
        ),
        pytest.param(
            {
                "phase": "Pending",
                "initContainerStatuses": [
                    {"name": "runtime", "state": {"terminated": {"exitCode": 7, "reason": "Error"}}}
                ],
            },
            {"exit": Exit(7, "Error", "", "runtime")},
            id="init-container-failed",
        ),
        pytest.param(
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]},
            {"disruption": "EvictionByEvictionAPI", "conditions": (("DisruptionTarget", "True"),)},
            id="disruption",
        ),
        pytest.param({"phase": "Failed", "reason": "Evicted"}, {"reason": "Evicted", "exit": None}, id="evicted"),
        pytest.param(with_devices("Healthy", "Unhealthy"), {"sick_device": "nvidia.com/gpu GPU-1"}, id="sick-device"),
        pytest.param(with_devices("Healthy", "Unknown"), {"sick_device": ""}, id="devices-nobody-knows-of"),
        pytest.param(with_devices(), {"sick_device": ""}, id="no-devices"),
    ],
)
def test_pods(status: dict[str, Any], expected: dict[str, Any]) -> None:
    pod = observe.observe_pod(raw_pod(status))
    assert {name: getattr(pod, name) for name in expected} == expected


ENDED = {"exitCode": 3, "reason": "Error", "startedAt": "2026-01-01T00:00:02Z"}
RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:03Z"}}
SIDECAR = [{"name": "proxy", "restartPolicy": "Always"}]
FAILED = {"phase": "Failed", "exit": Exit(3, "Error"), "started": False}


@pytest.mark.parametrize(
    ("phase", "worker", "side", "expected"),
    [
        pytest.param("Running", {"terminated": ENDED}, RUNS, {**FAILED, "lingers": True, "began": START + 2}, id="bad"),
        pytest.param(
            "Running",
            {"terminated": {"exitCode": 0, "reason": "Completed"}},
            RUNS,
            {"phase": "Succeeded", "exit": Exit(0, "Completed"), "lingers": True, "waiting": ""},
            id="well",
        ),
        pytest.param(
            "Pending",
            {"terminated": ENDED},
            {"waiting": {"reason": "ImagePullBackOff"}},
            {**FAILED, "lingers": True, "waiting": ""},
            id="bad-beside-one-that-never-starts",
        ),
        pytest.param(
            "Pending",
            RUNS,
            {"waiting": {"reason": "ImagePullBackOff"}},
            {"phase": "Running", "started": True, "waiting": "", "lingers": False, "began": START + 3},
            id="runs-beside-one-that-never-starts",
        ),
        pytest.param(
            "Failed",
            {"terminated": {"exitCode": 0}},
            {"terminated": {"exitCode": 9}},
            {"phase": "Succeeded", "lingers": False},
            id="well-beside-one-that-failed",
        ),
        pytest.param("Running", RUNS, {"terminated": {"exitCode": 9}}, {"phase": "Running", "exit": None}, id="runs"),
    ],
)
def test_a_pod_counts_as_its_trainer(phase: str, worker: Any, side: Any, expected: dict[str, Any]) -> None:
    statuses = [{"name": "side", "state": side}, {"name": "worker", "state": worker}]
    pod = observe.observe_pod(raw_pod({"phase": phase, "containerStatuses": statuses}))
    assert {name: getattr(pod, name) for name in expected} == expected


def test_an_evicted_pod_has_failed_though_its_trainer_ended_well() -> None:
    status = {"phase": "Failed", "reason": "Evicted"}
    status |= {"containerStatuses": [{"name": "worker", "state": {"terminated": {"exitCode": 0}}}]}  # type: ignore[dict-item]
    pod = observe.observe_pod(raw_pod(status))
    assert pod is not None
    assert pod.phase == "Failed"


@pytest.mark.parametrize(
    ("proxy", "worker", "expected"),
    [
        pytest.param(RUNS, RUNS, {"started": True, "waiting": "", "exit": None}, id="both-run"),
        pytest.param({"terminated": {"exitCode": 143}}, RUNS, {"started": True, "exit": None}, id="it-was-ended"),
        pytest.param(
            {"waiting": {"reason": "CrashLoopBackOff"}}, RUNS, {"started": True, "waiting": ""}, id="it-crashes"
        ),
        pytest.param(
            {"waiting": {"reason": "CrashLoopBackOff"}},
            {"waiting": {"reason": "PodInitializing"}},
            {"started": False, "waiting": "CrashLoopBackOff", "exit": None},
            id="it-crashes-before-the-trainer-starts",
        ),
        pytest.param(
            {"terminated": {"exitCode": 1}},
            {"waiting": {"reason": "PodInitializing"}},
            {"started": False, "waiting": "PodInitializing", "exit": None},
            id="it-is-started-again",
        ),
        pytest.param(RUNS, {"terminated": ENDED}, {**FAILED, "lingers": True}, id="it-runs-on"),
    ],
)
def test_a_native_sidecar_is_no_init_container(proxy: Any, worker: Any, expected: dict[str, Any]) -> None:
    status = {
        "phase": "Running" if worker is not RUNS and "waiting" not in worker else "Pending",
        "initContainerStatuses": [{"name": "proxy", "state": proxy}],
        "containerStatuses": [{"name": "worker", "state": worker}],
    }
    raw = raw_pod(status)
    raw["spec"]["initContainers"] = SIDECAR
    pod = observe.observe_pod(raw)
    assert {name: getattr(pod, name) for name in expected} == expected


def test_a_deleted_pod_is_not_live() -> None:
    pod = observe.observe_pod(raw_pod({"phase": "Running"}, deletionTimestamp="2026-01-01T00:01:00Z"))
    assert pod is not None
    assert (pod.deleting, pod.live) == (START + 60, False)


DEADLINE: dict[str, Any] = {"f:spec": {"f:activeDeadlineSeconds": {}}}


@pytest.mark.parametrize(
    ("managed", "writer"),
    [
        pytest.param(None, "", id="nothing is known"),
        pytest.param([{"manager": "kyverno", "fieldsV1": {"f:spec": {}}}], "", id="admission has no manager"),
        pytest.param([{"manager": "elasticjob-operator", "fieldsV1": DEADLINE}], "", id="the template's"),
        pytest.param(
            [{"manager": "elasticjob-operator", "fieldsV1": DEADLINE}, {"manager": "reaper", "fieldsV1": DEADLINE}],
            "reaper",
            id="somebody has changed it",
        ),
        pytest.param(
            [{"manager": "a\nb" * 99, "fieldsV1": DEADLINE}, None, "x"], ("a b" * 99)[:127] + "…", id="a line"
        ),
    ],
)
def test_who_has_given_a_pod_its_deadline(managed: Any, writer: str) -> None:
    raw = raw_pod(managedFields=managed)
    raw["spec"]["activeDeadlineSeconds"] = 60
    pod = observe.observe_pod(raw)
    assert pod is not None
    assert (pod.deadline_seconds, pod.deadline_writer) == (60, writer)


def test_the_annotated_container_trains() -> None:
    status = {"containerStatuses": [{"name": "side", "state": {"running": {}}}]}
    raw = raw_pod(status, annotations={"elasticjob.dev/trainer-container": "side"})
    pod = observe.observe_pod(raw)
    assert pod is not None
    assert pod.started


@pytest.mark.parametrize(
    ("spec", "conditions", "expected"),
    [
        pytest.param({}, [{"type": "Ready", "status": "True"}], Node("n"), id="ready"),
        pytest.param(
            {},
            [{"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            Node("n", ready=False, not_ready_since=START),
            id="not-ready",
        ),
        pytest.param({"unschedulable": True}, [], Node("n", cordoned=True), id="cordoned"),
        pytest.param(
            {"taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]},
            [],
            Node("n", leaving="aws-node-termination-handler/spot-itn"),
            id="spot",
        ),
        pytest.param(
            {"taints": [{"key": "mine", "effect": "NoExecute"}]}, [], Node("n", leaving="mine"), id="no-execute"
        ),
        pytest.param({"taints": [{"key": "gpu", "effect": "NoSchedule"}]}, [], Node("n"), id="other-taint"),
        pytest.param(
            {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
            [],
            Node("n"),
            id="unreachable-is-dead-not-leaving",
        ),
    ],
)
def test_nodes(spec: dict[str, Any], conditions: list[dict[str, Any]], expected: Node) -> None:
    raw = {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions}}
    assert observe.observe_node(raw) == replace(expected, place=topology.find_place("n", {}))


def raw_job(spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "namespace": "default", "uid": "j1", "generation": 4}, "spec": spec}


def test_an_invalid_job_carries_its_problems() -> None:
    job = observe.observe_job(raw_job({}))
    assert job.spec is None
    assert [str(p) for p in job.problems] == ["spec.template: is required"]


@pytest.mark.parametrize(("replicas", "wanted"), [(9, 4), (1, 2)])
def test_replicas_out_of_bounds_are_bounded(replicas: int, wanted: int) -> None:
    """Servers without CEL let `kubectl scale` write anything; that must not end a running job."""
    elastic = {"minReplicas": 2, "maxReplicas": 4}
    job = observe.observe_job(raw_job({"replicas": replicas, "elasticPolicy": elastic, "template": TEMPLATE}))
    assert job.spec is not None
    assert job.spec.wanted == wanted
    assert len(job.problems) == 1
    assert "replicas must not be" in job.problems[0].message


@pytest.mark.parametrize(
    ("limits", "nproc", "expected"),
    [
        pytest.param({}, "auto", 1, id="none"),
        pytest.param({"nvidia.com/gpu": "4"}, "auto", 4, id="nvidia"),
        pytest.param({"nvidia.com/mig-1g.5gb": 1}, "auto", 1, id="mig"),
        pytest.param({"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-2g.10gb": 1}, "auto", 1, id="parts of a gpu"),
        pytest.param({"amd.com/gpu": "8"}, "gpu", 8, id="amd"),
        pytest.param({"google.com/tpu": 4}, "auto", 4, id="tpu"),
        pytest.param({"habana.ai/gaudi": "8"}, "auto", 8, id="gaudi"),
        pytest.param({"aws.amazon.com/neuron": "2"}, "auto", 2, id="neuron"),
        pytest.param({"gpu.intel.com/i915": "1", "gpu.intel.com/xe": "2"}, "auto", 3, id="intel"),
        pytest.param(
            {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "100"}, "auto", 1, id="a part of an intel"
        ),
        pytest.param({"aws.amazon.com/neuroncore": "4"}, "auto", 4, id="cores of a neuron"),
        pytest.param({"nvidia.com/gpu.shared": "2"}, "auto", 1, id="shared"),
        pytest.param({"nvidia.com/mig-1g.5gb": 2}, 2, 2, id="a number is taken as it is"),
        pytest.param({"rdma/hca": "4", "nvidia.com/gpu": "2"}, "auto", 2, id="a network is no device"),
        pytest.param({"example.com/npu": "8"}, "auto", 1, id="unknown"),
        pytest.param({"cpu": "3500m"}, "cpu", 3, id="cpu-millis"),
        pytest.param({"cpu": "16"}, "cpu", 16, id="cpus"),
        pytest.param({"nvidia.com/gpu": "4"}, 2, 2, id="number"),
        pytest.param({"nvidia.com/gpu": "4"}, "2", 2, id="number-as-text"),
    ],
)
def test_nproc_per_node(limits: dict[str, Any], nproc: int | str, expected: int) -> None:
    template = {"spec": {"containers": [{"name": "worker", "resources": {"limits": limits}}]}}
    spec = api.parse_spec({"nprocPerNode": nproc, "template": template})
    assert observe.resolve_nproc(spec) == expected


def test_resource_claims_are_devices() -> None:
    resources = {"claims": [{"name": "first"}, {"name": "second"}]}
    template = {"spec": {"containers": [{"name": "worker", "resources": resources}]}}
    assert observe.resolve_nproc(api.parse_spec({"template": template})) == 2
    (notice,) = observe.observe_job(raw_job({"template": template})).notices
    assert notice.reason == "DevicesAssumed"
    assert "(first, second) counts as one device" in notice.message
    assert observe.observe_job(raw_job({"nprocPerNode": 4, "template": template})).notices == ()


@pytest.mark.parametrize(
    ("limits", "nproc", "told"),
    [
        pytest.param({"example.com/npu": "8"}, "auto", True, id="unknown"),
        pytest.param({"example.com/npu": "8"}, 8, False, id="the number is given"),
        pytest.param({"example.com/npu": "8", "nvidia.com/gpu": 1}, "auto", False, id="beside a known one"),
        pytest.param({"rdma/hca": "8", "cpu": "4"}, "auto", False, id="networks and CPUs"),
    ],
)
def test_an_unknown_device_is_told(limits: dict[str, Any], nproc: int | str, told: bool) -> None:
    template = {"spec": {"containers": [{"name": "worker", "resources": {"limits": limits}}]}}
    job = observe.observe_job(raw_job({"nprocPerNode": nproc, "template": template}))
    assert [notice.reason for notice in job.notices] == (["UnknownDevice"] if told else [])


def test_equal_templates_have_equal_hashes() -> None:
    assert podtemplate.template_hash({"a": 1, "b": 2}) == podtemplate.template_hash({"b": 2, "a": 1})
    assert podtemplate.template_hash({"a": 1}) != podtemplate.template_hash({"a": 2})


@pytest.mark.parametrize(
    ("name", "state", "told"),
    [
        pytest.param("proxy", {"terminated": {"exitCode": 1}}, "container 'proxy' ended with exit code 1", id="failed"),
        pytest.param(
            "proxy",
            {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            "container 'proxy' ended with exit code 137 [OOMKilled]",
            id="needs more memory",
        ),
        pytest.param("proxy", {"terminated": {"exitCode": 0}}, "", id="had done its work"),
        pytest.param("proxy", {"running": {}}, "", id="runs"),
        pytest.param("trainer", {"terminated": {"exitCode": 1}}, "", id="the trainer itself"),
        pytest.param(
            "proxy",
            {"waiting": {"reason": "ErrImagePull", "message": "rpc error: 12345"}},
            "container 'proxy' has not started: image proxy:1 cannot be pulled",
            id="no image",
        ),
        pytest.param(
            "proxy",
            {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}},
            "container 'proxy' has not started: image proxy:1 cannot be pulled",
            id="the same words while it waits to try again",
        ),
        pytest.param(
            "proxy",
            {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "key" not found'}},
            "container 'proxy' has not started: CreateContainerConfigError: secret \"key\" not found",
            id="no secret",
        ),
        pytest.param(
            "proxy",
            {"waiting": {"reason": "CrashLoopBackOff"}},
            "container 'proxy' fails again and again",
            id="restarts",
        ),
        pytest.param("proxy", {"waiting": {"reason": "ContainerCreating"}}, "", id="comes"),
        pytest.param("trainer", {"waiting": {"reason": "ErrImagePull"}}, "", id="the trainer waits"),
    ],
)
def test_a_container_beside_the_trainer_that_has_failed(name: str, state: dict[str, Any], told: str) -> None:
    spec = {"containers": [{"name": "trainer", "image": "trainer:1"}, {"name": "proxy", "image": "proxy:1"}]}
    status = {"containerStatuses": [{"name": name, "state": state}]}
    assert containers.find_dead_sidecar(spec, status, "trainer") == told


@pytest.mark.parametrize(
    ("container", "state", "told"),
    [
        pytest.param(
            {"restartPolicy": "Always"},
            {"waiting": {"reason": "CrashLoopBackOff"}},
            "container 'proxy' fails again and again",
            id="a sidecar",
        ),
        pytest.param({}, {"terminated": {"exitCode": 1}}, "", id="an init container is the pod's own matter"),
    ],
)
def test_a_sidecar_among_the_init_containers_that_has_failed(
    container: dict[str, Any], state: dict[str, Any], told: str
) -> None:
    spec = {"initContainers": [{"name": "proxy", "image": "proxy:1", **container}]}
    status = {"initContainerStatuses": [{"name": "proxy", "state": state}]}
    assert containers.find_dead_sidecar(spec, status, "trainer") == told
