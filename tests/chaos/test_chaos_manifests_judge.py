"""The judge of manifests, and their generator."""

from __future__ import annotations

from typing import Any

import pytest

from chaos import manifest_judge, manifest_maker, manifest_table
from chaos.manifest_judge import FOREIGN, SILENT, TOLD, TRAINS
from chaos.manifest_maker import Made
from operator_fixture import ROOT

DEFINITIONS: dict[str, Any] = {
    f"io.k8s.api.core.v1.{kind}": {"properties": {"nodeSelector": {"type": "object"}, "priority": {"type": "integer"}}}
    for kind in ("PodSpec", "Container")
}
MISSING = 'worker-0: FailedMount: configmap "missing-map" not found'


def made(*told: str, is_sure: bool = True, **spec: Any) -> Made:
    body = {"spec": {"replicas": 1, "template": {"spec": {"volumes": [{"name": "settings"}]}}, **spec}}
    return Made(0, "m1-0", {}, (), body, ("part",), told, is_sure)


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
        pytest.param(made("x", is_sure=False), "worker-0: settings", False, id="several parts: any word of them"),
        pytest.param(made(is_sure=False), "something is wrong", True, id="no word of the manifest"),
        pytest.param(made(is_sure=False), "light-0 is full", False, id="a node"),
        pytest.param(
            made("x", is_sure=False, other="1Gi"), "no PriorityClass with name 1Gi was found", False, id="a short name"
        ),
        pytest.param(
            made("y", is_sure=False, other="x"), "no PriorityClass with name x was found", False, id="of one letter"
        ),
        pytest.param(made("x", is_sure=False, other="1Gi"), "a limit of 11Gi", True, id="a part of another word"),
        pytest.param(made(is_sure=False, os=0), "cannot unmarshal PodSpec.spec.os of type", False, id="a short field"),
    ],
)
def test_words(job: Made, message: str, is_wrong: bool) -> None:
    status = condition("Degraded", "True", "PodNotStarting", message)
    assert bool(manifest_judge.judge_words(job, status, ["light-0"])) is is_wrong


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
