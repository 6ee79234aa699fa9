"""The judge of manifests, and their generator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from chaos import manifest_judge, manifest_maker, manifest_pods, manifest_table
from chaos.manifest_judge import FOREIGN, SILENT, TOLD, TRAINS
from chaos.manifest_maker import Made
from operator_fixture import ROOT

DEFINITIONS: dict[str, Any] = {
    f"io.k8s.api.core.v1.{kind}": {"properties": {"nodeSelector": {"type": "object"}, "priority": {"type": "integer"}}}
    for kind in ("PodSpec", "Container")
}
MISSING = 'worker-0: FailedMount: configmap "missing-map" not found'


def made(*told: str, is_sure: bool = True, parts: tuple[str, ...] = ("part",), **spec: Any) -> Made:
    part = {"volumes": [{"name": "settings"}]}
    body = {"metadata": {"name": "job-7"}, "spec": {"replicas": 1, "template": {"spec": part}, **spec}}
    return Made(0, "m1-0", {}, (), body, parts, told, is_sure, causes=(part, spec))


def condition(type: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": type, "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("job", "status", "state"),
    [
        pytest.param(made(), {}, SILENT, id="nothing is said"),
        pytest.param(
            made(), condition("Running", "False", "WaitingForPods", "0 of 1"), SILENT, id="only that it waits"
        ),
        pytest.param(
            made(), condition("Degraded", "True", "BelowWanted", "0 of 1"), SILENT, id="only that it is small"
        ),
        pytest.param(
            made(),
            condition("Degraded", "True", "BelowWanted", "0 of 1: with elasticPolicy.mesh"),
            TOLD,
            id="why so small",
        ),
        pytest.param(made(), condition("Degraded", "True", "PodNotStarting", MISSING), TOLD, id="why"),
        pytest.param(made(), condition("Degraded", "False", "PodNotStarting", MISSING), SILENT, id="no more"),
        pytest.param(made(), condition("Running", "True", "WorldRunning"), TRAINS, id="it trains"),
        pytest.param(made(managedBy="example.com/other"), {}, FOREIGN, id="another controller's"),
    ],
)
def test_states(job: Made, status: dict[str, Any], state: str) -> None:
    assert manifest_judge.find_state(job, status) == state


@pytest.mark.parametrize(
    ("job", "message", "is_wrong"),
    [
        pytest.param(made("missing-map"), MISSING, False, id="it names the object"),
        pytest.param(made("missing-map"), "worker-0: it waits for a volume: settings", True, id="it does not"),
        pytest.param(made("logs"), "`kubectl logs job-7-worker-0` says why", True, id="a plain word by chance"),
        pytest.param(made("logs"), "container 'logs' has not started", False, id="the same as a name"),
        pytest.param(made("priority"), "spec.priority: Forbidden", False, id="the same in a path"),
        pytest.param(made("x-ray", is_sure=False), "worker-0: settings", False, id="a value of another part"),
        pytest.param(made(is_sure=False), "something is wrong", True, id="no word of a part"),
        pytest.param(made(is_sure=False), "job-7-worker-0 does not start", True, id="only the job and its pod"),
        pytest.param(made(is_sure=False), "its containers are not created on light-0", True, id="only the pod's node"),
        pytest.param(made(is_sure=False), "torchrun has not connected", True, id="a word of every job"),
        pytest.param(made(is_sure=False), "it waits for its volumes", True, id="a plain word that is a field, too"),
        pytest.param(made(is_sure=False), "spec.volumes[0] is wrong", False, id="a field by its path"),
        pytest.param(made(is_sure=False, nodeSelector=1), "no node fits nodeSelector", False, id="no plain word"),
        pytest.param(made(is_sure=False), "mysettings-2 is missing", True, id="in another word"),
        pytest.param(
            made("x-ray", is_sure=False, other="1Gi"), "no PriorityClass with name 1Gi was found", False, id="short"
        ),
        pytest.param(
            made("y-ray", is_sure=False, other="x"), "no PriorityClass with name x was found", False, id="of one letter"
        ),
        pytest.param(made("x-ray", is_sure=False, other="1Gi"), "a limit of 11Gi", True, id="a part of another word"),
        pytest.param(made(is_sure=False, os=0), "cannot unmarshal PodSpec.spec.os of type", False, id="a short field"),
        pytest.param(made(), "spec.volumes[0] is wrong", False, id="alone, of a part that has no words of its own"),
        pytest.param(made(), "something is wrong", True, id="the same, without a word of it"),
        pytest.param(made(is_sure=False, priority=5), "the integer value of priority (5)", False, id="its value"),
        pytest.param(made(is_sure=False), "metadata.name is too long", False, id="its name may be at fault"),
    ],
)
def test_words(job: Made, message: str, is_wrong: bool) -> None:
    status = condition("Degraded", "True", "PodNotStarting", message)
    assert bool(manifest_judge.judge_words(job, status)) is is_wrong


def test_a_job_that_cannot_train_is_not_complete() -> None:
    status = condition("Complete", "True", "Completed", f"all members succeeded; {MISSING}")
    assert "complete" in manifest_judge.judge_words(made("missing-map"), status)
    assert not manifest_judge.judge_words(made(is_sure=False), condition("Complete", "True", "x", "spec.volumes[0]"))


INVALID = "the API server rejects the pod: 422 Invalid: "
BOTH = {"dnsPolicy": "None", "priority": 5}


@pytest.mark.parametrize(
    ("pod", "message", "unsaid"),
    [
        pytest.param(BOTH, f"{INVALID}spec.dnsConfig, spec.priority", [], id="both"),
        pytest.param(BOTH, f"{INVALID}spec.dnsConfig", ["priority-number"], id="one of two"),
        pytest.param({**BOTH, "priority": 0}, f"{INVALID}spec.dnsConfig", [], id="the other is no more there"),
        pytest.param(BOTH, "exceeded quota", [], id="it was not looked at"),
    ],
)
def test_a_second_field_that_is_refused(pod: dict[str, Any], message: str, unsaid: list[str]) -> None:
    job = made("dnsConfig", "spec.priority", parts=("dns", "priority-number"), template={"spec": pod})
    status = condition("Failed", "True", "InvalidTemplate", message)
    assert manifest_judge.find_unsaid(job, status) == unsaid
    if unsaid:
        assert "priority-number" in manifest_judge.judge_words(job, status)


def pod_of(
    number: int = 0, *, state: dict[str, Any] | None = None, leaving: bool = False, **fields: Any
) -> dict[str, Any]:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    states = [{"name": "logs", "state": state or {"running": {}}}]
    spec = {"containers": [{"name": "logs"}], **fields}
    return {
        "metadata": {"name": f"job-7-worker-{number}", **gone},
        "spec": spec,
        "status": {"phase": "Running", "containerStatuses": states},
    }


FAILS = {"waiting": {"reason": "ErrImagePull"}}
TOO_FEW = condition("Degraded", "True", "CreateForbidden", "exceeded quota: team-quota")
VAGUE = condition("Degraded", "True", "PodNotStarting", "job-7-worker-1 does not start")
ONLY_FEW = condition("Degraded", "True", "BelowWanted", "1 of 2")
SAID = condition("Degraded", "True", "SidecarFailed", "job-7-worker-0: container 'logs' has not started")


@pytest.mark.parametrize(
    ("size", "ready", "status", "pods", "lost", "wrong"),
    [
        pytest.param(2, 2, {}, [pod_of(0), pod_of(1)], [], "", id="as it asked"),
        pytest.param(2, 1, {}, [pod_of(0)], [], "1 of 2 pods train, and it does not say why", id="too few, silent"),
        pytest.param(2, 1, ONLY_FEW, [pod_of(0)], [], "does not say why", id="it says only how many"),
        pytest.param(2, 1, TOO_FEW, [pod_of(0)], [], "", id="too few, and why"),
        pytest.param(2, 1, VAGUE, [pod_of(0)], [], "it names none of team-quota", id="too few, and not why"),
        pytest.param(1, 1, TOO_FEW, [pod_of(0)], [], "it still tells CreateForbidden", id="what is over"),
        pytest.param(1, 1, {}, [pod_of(0), pod_of(1)], [], "2 pods are there for 1", id="too many"),
        pytest.param(1, 1, {}, [pod_of(0), pod_of(1, leaving=True)], [], "", id="one of them leaves"),
        pytest.param(1, 1, {}, [pod_of(state=FAILS)], [], "logs of its pods does not run", id="a container is down"),
        pytest.param(1, 1, SAID, [pod_of(state=FAILS)], [], "", id="it is down, and that is told"),
        pytest.param(
            1, 1, {}, [pod_of()], ["spec.dnsPolicy: None became nothing"], "spec.dnsPolicy", id="a lost field"
        ),
    ],
)
def test_a_job_that_trains(
    size: int, ready: int, status: dict[str, Any], pods: list[dict[str, Any]], lost: list[str], wrong: str
) -> None:
    found = manifest_judge.judge_training(
        made("team-quota", replicas=size), {**status, "readyReplicas": ready}, pods, lost
    )
    assert wrong in found and bool(wrong) is bool(found)


def test_a_job_whose_size_others_choose() -> None:
    """It may be told why there are not more."""
    job = made("team-quota", replicas=2, scaling={"mode": "Goodput"})
    assert not manifest_judge.judge_training(job, {**TOO_FEW, "readyReplicas": 1}, [pod_of()], [])


@pytest.mark.parametrize(
    ("reason", "gone"),
    [
        pytest.param("ImagePullFailed", "job-7-worker-1", id="one that waits is there"),
        pytest.param("BackOff", "", id="one that has failed may be gone"),
    ],
)
def test_a_pod_that_is_told_of_and_gone(reason: str, gone: str) -> None:
    status = condition("Degraded", "True", reason, "job-7-worker-1: ErrImagePull; job-7-worker-0; job-77-worker-2")
    assert manifest_judge.find_gone("job-7", status, [pod_of(0)]) == gone


BY_HAND: dict[str, Any] = {
    "metadata": {"labels": {"team": "nlp", "elasticjob.dev/job-name": "other"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "here/torch:1",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "value": "$(A)"},
                    {"name": "PYTHONPATH", "value": "/x"},
                ],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "kube-api-access-1", "mountPath": "/v"},
                ],
                "resources": {"limits": {"cpu": "2"}},
            },
            {"name": "logs", "image": "here/logs:1"},
        ],
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "kube-api-access-1", "projected": {}}],
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"key": "a"}],
    },
}


def spoil(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """A pod of the job, as it should be but for this change."""
    pod = copy.deepcopy(BY_HAND)
    pod["metadata"]["labels"] |= {"elasticjob.dev/job-name": "job-7", "more": "x"}
    spec = pod["spec"]
    spec["terminationGracePeriodSeconds"] = 35
    spec["volumes"] = [spec["volumes"][0], {"name": "elasticjob-shm", "emptyDir": {}}]
    trainer = spec["containers"][0]
    trainer["env"] = [{"name": "ELASTICJOB_NAME", "value": "job-7"}, *trainer["env"]]
    trainer["env"][-1] = {"name": "PYTHONPATH", "value": "/x:/runtime"}
    trainer["volumeMounts"] = [trainer["volumeMounts"][0], {"name": "elasticjob-shm", "mountPath": "/dev/shm"}]
    spec["tolerations"].append({"key": "b"})
    change(pod)
    return pod


def of_trainer(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        pytest.param(lambda pod: None, "", id="all is there, and what the operator adds"),
        pytest.param(
            lambda pod: of_trainer(pod).update(image="x:1"), "containers[trainer].image: here", id="its image"
        ),
        pytest.param(lambda pod: of_trainer(pod)["resources"]["limits"].clear(), "limits.cpu: 2", id="a limit"),
        pytest.param(lambda pod: of_trainer(pod)["env"].pop(1), "env[A]: it is not there", id="a variable"),
        pytest.param(
            lambda pod: of_trainer(pod)["env"][1].update(value="2"), "env[A].value: 1 became 2", id="its value"
        ),
        pytest.param(lambda pod: of_trainer(pod)["env"].reverse(), "env[B]: it is in another order", id="its order"),
        pytest.param(
            lambda pod: of_trainer(pod)["env"][-1].update(value="/y"), "env[PYTHONPATH].value: /x", id="the path"
        ),
        pytest.param(lambda pod: of_trainer(pod)["volumeMounts"].pop(0), "volumeMounts[/data]", id="a mount"),
        pytest.param(lambda pod: pod["spec"]["volumes"].pop(0), "volumes[data]: it is not there", id="a volume"),
        pytest.param(
            lambda pod: pod["spec"]["containers"].pop(), "containers[logs]: it is not there", id="a container"
        ),
        pytest.param(lambda pod: pod["spec"]["tolerations"].pop(0), "tolerations[0]", id="a toleration"),
        pytest.param(
            lambda pod: pod["metadata"]["labels"].pop("team"), "labels.team: nlp became nothing", id="a label"
        ),
        pytest.param(lambda pod: pod["metadata"].pop("annotations"), "annotations.a", id="an annotation"),
    ],
)
def test_a_pod_that_differs_from_its_template(change: Callable[[dict[str, Any]], object], lost: str) -> None:
    template = {"metadata": BY_HAND["metadata"], "spec": {"containers": [{"name": "trainer"}]}}
    found = list(manifest_pods.find_lost(template, BY_HAND, spoil(change)))
    assert (lost in "; ".join(found)) if lost else found == []
    assert bool(found) is bool(lost)


def test_what_the_template_says_is_not_the_operators() -> None:
    template = {"spec": {"containers": [{"name": "trainer"}], "terminationGracePeriodSeconds": 30}}
    assert list(manifest_pods.find_lost(template, BY_HAND, spoil(lambda pod: None))) == [
        "spec.terminationGracePeriodSeconds: 30 became 35"
    ]


def test_a_pod_by_hand_has_the_documented_defaults_and_nothing_empty() -> None:
    template = {"spec": {"containers": [{"name": "a"}, {"name": "b"}], "hostname": "", "enableServiceLinks": True}}
    pod = manifest_pods.build_by_hand(template)
    assert "hostname" not in pod["spec"]
    assert (pod["spec"]["enableServiceLinks"], pod["spec"]["automountServiceAccountToken"]) == (True, False)
    assert [c.get("terminationMessagePolicy") for c in pod["spec"]["containers"]] == ["FallbackToLogsOnError", None]


@pytest.mark.parametrize(
    ("answered", "watched_seconds", "wrong"),
    [
        pytest.param(True, 25.0, "it says no more why: WriteFailed", id="it said why once"),
        pytest.param(False, 25.0, "", id="the watch was too short to say that it is silent"),
        pytest.param(False, 70.0, "silent", id="never a word"),
    ],
)
def test_a_job_that_says_nothing(answered: bool, watched_seconds: float, wrong: str) -> None:
    assert manifest_judge.judge_silence(answered, "WriteFailed", watched_seconds) == wrong


def test_a_job_that_is_gone_has_said_it_in_an_event() -> None:
    event = {"type": "Warning", "reason": "InvalidTemplate", "message": "x", "involvedObject": {"kind": "ElasticJob"}}
    pod, good = {**event, "involvedObject": {"kind": "Pod"}}, {**event, "type": "Normal"}
    assert manifest_judge.read_told(manifest_judge.recall([event, pod])) == [("InvalidTemplate", "x")]
    assert manifest_judge.find_state(made(), manifest_judge.recall([pod, good])) == SILENT
    assert made(runPolicy={"ttlSecondsAfterFinished": 0}).is_deleted and not made().is_deleted


def test_the_last_step_of_a_pod() -> None:
    pod: dict[str, Any] = {"metadata": {"creationTimestamp": "1970-01-01T00:00:10Z"}}
    assert manifest_judge.find_last_step(pod) == 10
    scheduled = {"type": "PodScheduled", "lastTransitionTime": "1970-01-01T00:00:20Z"}
    pod["status"] = {"conditions": [scheduled], "containerStatuses": [{"state": {"waiting": {}}}]}
    assert manifest_judge.find_last_step(pod) == 20
    pod["status"]["initContainerStatuses"] = [{"state": {"running": {"startedAt": "1970-01-01T00:00:30Z"}}}]
    assert manifest_judge.find_last_step(pod) == 30


@pytest.mark.parametrize(
    ("replicas", "parts", "most"),
    [
        pytest.param(1, ("command-fails",), 13, id="one pod"),
        pytest.param(4, ("command-fails",), 32, id="each try makes all pods"),
        pytest.param(2, ("evicted",), 12, id="the first ones, and ten later"),
        pytest.param(50, ("evicted",), 60, id="of fifty"),
        pytest.param(4, ("node-refuses",), 13, id="one pod tries for all"),
        pytest.param(3, ("evicted", "post-start"), 24, id="the hook ends them before they are evicted"),
        pytest.param(3, ("evicted", "init-fails"), 24, id="the trainer does not start"),
        pytest.param(3, ("evicted", "liveness"), 13, id="they are evicted before the probe fails"),
        pytest.param(3, ("node-refuses", "post-start"), 13, id="the hook does not run"),
    ],
)
def test_the_most_pods_of_a_job(replicas: int, parts: tuple[str, ...], most: int) -> None:
    job = Made(0, "m1-0", {}, (), {"spec": {"replicas": replicas}}, parts, (), True)
    assert manifest_judge.most_pods(job) == most


@pytest.mark.parametrize(
    ("times", "most"), [([], 0), ([1.0], 1), ([0.0, 30.0, 59.0, 61.0], 3), ([100.0, 0.0, 50.0], 2), ([5.0] * 7, 7)]
)
def test_most_in_a_minute(times: list[float], most: int) -> None:
    assert manifest_judge.find_most(times) == most


def test_names_of_two_items() -> None:
    pod = {
        "volumes": [{"name": "all"}, {"name": "data"}, {"name": "all"}],
        "containers": [{"name": "a", "volumeMounts": [{"name": "data", "mountPath": p} for p in ("/x", "/y", "/x")]}],
    }
    assert list(manifest_maker.find_twice(pod)) == ["all", "data", "/x"]


def test_one_seed_makes_the_same_jobs() -> None:
    first, second = (manifest_maker.Maker(3, DEFINITIONS) for _ in range(2))
    jobs = [first.make(number) for number in range(1500)]
    assert jobs == [second.make(number) for number in range(1500)]
    parts = {part for job in jobs for part in job.parts}
    assert {part.name for part in manifest_maker.PARTS} - parts == set(), "each part is there"
    assert any(not job.parts for job in jobs), "some are plain"
    assert {neighbour.name for neighbour in manifest_maker.NEIGHBOURS} - parts <= {"none"}


def test_all_that_is_told_is_on_the_page() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    assert [row for row in manifest_table.list_rows() if row not in page] == [], "make generate"
    assert manifest_table.list_untold() == [], "add it to ADVICE or LIKE"
    assert set(manifest_table.LIKE) <= set(manifest_table.ADVICE)
