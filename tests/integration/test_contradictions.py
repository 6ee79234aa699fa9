"""Fields of a pod that contradict the job: they are honoured and told, and none of them is a free endless loop."""

from __future__ import annotations

from typing import Any

import pytest

from operator_fixture import Jobs, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def spec_of(
    *arguments: str, pod: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec = light_spec(*arguments, replicas=1, elasticPolicy={"maxRestarts": 1})
    spec["template"]["spec"].update(pod or {})
    spec["template"]["spec"]["containers"][0].update(trainer or {})
    return spec


@together
def test_a_pods_own_deadline_is_charged_and_named(jobs: Jobs) -> None:
    jobs.create("dated", spec_of(pod={"activeDeadlineSeconds": 4}))
    wait_for(lambda: jobs.condition("dated", "Warning").get("reason") == "PodDeadline", "it is told at once")
    failed = jobs.await_condition("dated", "Failed", timeout=90)
    assert failed["reason"] == "MaxRestartsExceeded"
    assert "spec.template.spec.activeDeadlineSeconds" in failed["message"]
    assert "runPolicy.activeDeadlineSeconds" in failed["message"]


@pytest.mark.parametrize("arguments", [(), ("--leave-on-term",)], ids=["exit code 143", "exit code 0"])
@together
def test_a_failing_liveness_probe_is_charged_and_named(jobs: Jobs, arguments: tuple[str, ...]) -> None:
    probe = {"exec": {"command": ["false"]}, "initialDelaySeconds": 3, "periodSeconds": 1, "failureThreshold": 1}
    jobs.create("probed", spec_of(*arguments, trainer={"livenessProbe": probe}))
    failed = jobs.await_condition("probed", "Failed", timeout=90)
    assert failed["reason"] == "MaxRestartsExceeded"
    assert "spec.template.spec.containers[worker].livenessProbe" in failed["message"]


AGENT = light_spec()["template"]["spec"]["containers"][0]["command"]
ALONE = ["sh", "-c", f"[ -n '' ] && torchrun --standalone train.py; exec {' '.join(AGENT)}"]


@pytest.mark.parametrize(
    ("pod", "trainer", "reason", "told"),
    [
        pytest.param({}, {"command": ALONE}, "RendezvousOverridden",
                     "the argument --standalone of container 'worker'", id="argument"),
        pytest.param({"terminationGracePeriodSeconds": 1}, {}, "GraceTooShort",
                     "spec.template.spec.terminationGracePeriodSeconds is 1", id="grace"),
        pytest.param({"hostname": "fixed"}, {}, "FixedHostname", "spec.template.spec.hostname", id="hostname"),
        pytest.param({}, {"env": [{"name": "PET_RDZV_BACKEND", "value": "c10d"}]}, "RendezvousOverridden",
                     "the variable PET_RDZV_BACKEND of container 'worker'", id="environment"),
    ],
)  # fmt: skip
@together
def test_what_contradicts_the_job_is_told_before_a_pod_runs(
    jobs: Jobs, pod: dict[str, Any], trainer: dict[str, Any], reason: str, told: str
) -> None:
    jobs.create("told", spec_of(pod=pod, trainer=trainer))
    condition = wait_for(lambda: jobs.condition("told", "Warning"), "a warning")
    assert condition["reason"] == reason
    assert told in condition["message"]
    jobs.await_world("told", 1)


@together
def test_a_queue_that_nobody_asks_is_told(jobs: Jobs) -> None:
    """The integration of Kueue is off, as it is by default."""
    head = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob"}
    metadata = {"name": "queued", "labels": {"kueue.x-k8s.io/queue-name": "team-a"}}
    jobs.kube.request("POST", jobs.path, {**head, "metadata": metadata, "spec": spec_of()})
    told = jobs.await_condition("queued", "Warning")
    assert told["reason"] == "NotQueued"
    assert "metadata.labels[kueue.x-k8s.io/queue-name]" in told["message"]
    assert "integrations.kueue=true" in told["message"]
    jobs.await_world("queued", 1)


@together
def test_a_pod_that_is_to_restart_by_itself_is_refused(jobs: Jobs) -> None:
    jobs.create("restarts", spec_of(pod={"restartPolicy": "OnFailure"}))
    failed = jobs.await_condition("restarts", "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "spec.restartPolicy must be Never or left out, not OnFailure" in failed["message"]
    assert "the operator replaces pods" in failed["message"]
    assert jobs.pods("restarts") == []


@together
def test_what_the_template_says_of_the_pod_itself_does_no_harm(jobs: Jobs) -> None:
    spec = spec_of(trainer={"readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1}})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1-2-3"}
    spec["template"]["metadata"] = {
        "name": "mine",
        "namespace": "kube-system",
        "finalizers": ["example.com/kept"],
        "ownerReferences": [owner],
        "labels": {"elasticjob.dev/job-name": "another", "elasticjob.dev/replica-index": "7", "team": "nlp"},
    }
    jobs.create("described", spec)
    jobs.await_world("described", 1)
    (pod,) = [p["metadata"] for p in jobs.pods("described")]
    assert (pod["name"], pod["namespace"], pod.get("finalizers")) == ("described-worker-0", jobs.namespace, None)
    assert [one["kind"] for one in pod["ownerReferences"]] == ["ElasticJob"]
    assert (pod["labels"]["team"], pod["labels"]["elasticjob.dev/replica-index"]) == ("nlp", "0")


@pytest.mark.parametrize("name", ["elasticjob-shm", "elasticjob-token"])
@together
def test_a_volume_of_the_template_keeps_its_name(jobs: Jobs, name: str) -> None:
    jobs.create("clash", spec_of(pod={"volumes": [{"name": name, "emptyDir": {}}]}))
    jobs.await_world("clash", 1)


@together
def test_a_failed_container_beside_the_trainer_is_named(jobs: Jobs) -> None:
    spec = spec_of()
    template = spec["template"]
    template["spec"]["containers"].append(
        {"name": "proxy", "image": "a/b:1", "command": ["sh", "-c", "sleep 3; exit 7"]}
    )
    template["metadata"] = {"annotations": {"elasticjob.dev/trainer-container": "worker"}}
    jobs.create("beside", spec)
    jobs.await_world("beside", 1)
    told = wait_for(lambda: c if (c := jobs.condition("beside", "Degraded")).get("status") == "True" else None, "told")
    assert told["reason"] == "SidecarFailed"
    assert told["message"].startswith("beside-worker-0: container 'proxy' ended with exit code 7")
    jobs.await_world("beside", 1)
