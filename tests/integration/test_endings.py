"""The end of jobs: the remaining logs of a failed one, and how soon a deleted one is gone."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator.client.diagnosis import find_report
from integration.test_sessions import await_step as await_session_step
from integration.test_sessions import read_steps, start
from integration.test_training import await_step, torchrun_spec
from operator_fixture import Jobs, OperatorProcess, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

AT_ONCE = 3  # see `side_by_side`: each has processes that import torch

PROGRAMS = Path(__file__).parent / "programs"


def endings_spec(mode: str, *, max_restarts: int = 0, **changes: Any) -> dict[str, Any]:
    """Two pods under an unmodified torchrun; rank 1 comes to its end as `mode` says."""
    command = ["torchrun", str(PROGRAMS / "ends_badly.py"), mode]
    container = {"name": "trainer", "image": "a/b:1", "command": command}
    return {
        "replicas": 2,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 2, "maxRestarts": max_restarts},  # pod 0 has rank 0
        "template": {"spec": {"containers": [container]}},
        **changes,
    }


@pytest.mark.parametrize(
    ("mode", "code", "last"),
    [
        pytest.param("exit", 3, "rank 1 of 2 comes to its end", id="exit code"),
        pytest.param("segfault", 139, "exitcode: -11", id="signal", marks=pytest.mark.long),
    ],
)
@together
def test_a_failed_job_leaves_its_logs(jobs: Jobs, mode: str, code: int, last: str) -> None:
    jobs.create("ends", endings_spec(mode))
    failed = jobs.await_condition("ends", "Failed", timeout=120)
    assert "rank 1" in failed["message"]
    assert f"exit code {code}" in failed["message"]
    wait_for(
        lambda: [p["status"]["phase"] for p in jobs.pods("ends")] == ["Failed", "Failed"],
        "both pods have ended and are kept, so that their logs can be read",
    )
    failure = wait_for(lambda: f if "logTail" in (f := jobs.status("ends")["lastFailure"]) else None, "the log's end")
    assert (failure["rank"], failure["exitCode"]) == (1, code)
    assert last in failure["logTail"]


@together
def test_a_rank_that_ends_well_too_early_is_blamed_and_not_its_peer(jobs: Jobs) -> None:
    """The peer's worker fails: it has lost its connection in the middle of a step."""
    jobs.create("ends", endings_spec("well"))
    failed = jobs.await_condition("ends", "Failed", timeout=120)
    assert "rank 1 (ends-worker-1) ended with exit code 0 [EndedEarly]: the others were training" in failed["message"]
    failure = jobs.status("ends")["lastFailure"]
    assert (failure["rank"], failure["exitCode"], failure["reason"]) == (1, 0, "EndedEarly")
    assert "onnection" in failure["message"], f"what the peer said: {failure['message']}"


def test_a_hang_is_told_with_the_rank_that_does_not_arrive(jobs: Jobs) -> None:
    jobs.create("ends", endings_spec("hang", health={"hangTimeoutSeconds": 4}))
    failed = jobs.await_condition("ends", "Failed", timeout=120)
    assert "rank 1 (ends-worker-1) hung: no step for " in failed["message"]
    status = jobs.status("ends")
    failure, goodput = status["lastFailure"], status["goodput"]
    assert (failure["reason"], failure["rank"]) == ("RankHung", 1)
    assert re.search(r"after step \d+, at ends_badly.py:\d+ in come_to_an_end$", failure["message"])
    assert "come_to_an_end" in failure["traceback"].splitlines()[0], "the innermost call"
    wait_for(lambda: any(reason == "RankHung" for reason, _ in jobs.events("ends")), "it is told as an event")
    assert goodput["measured"] == "Steps"
    assert goodput["lostSeconds"] > 4, "the time without a step, and that before the first one"
    assert goodput["trainingSeconds"] < 4


@together
def test_a_hang_of_a_script_that_reports_nothing_is_noticed(jobs: Jobs) -> None:
    jobs.create("ends", endings_spec("quiet", health={"hangTimeoutSeconds": 4}))
    failed = jobs.await_condition("ends", "Failed", timeout=180)
    assert "rank 1 (ends-worker-1) hung: no collective and no work for " in failed["message"]
    status = jobs.status("ends")
    diagnosis = status["diagnosis"]
    assert (diagnosis["kind"], diagnosis["rank"], diagnosis["pod"]) == ("RankHung", 1, "ends-worker-1")
    assert re.search(
        r"at ends_badly.py:\d+ in come_to_an_end; 1 other pod waits in a collective$", diagnosis["summary"]
    )
    assert status["timeline"][0]["cause"] == "start"
    assert {one["rank"] for one in status["failures"]} == {0, 1}
    log = jobs.kube.raw("GET", f"/api/v1/namespaces/{jobs.namespace}/pods/ends-worker-0/log")
    report = find_report(log.decode().splitlines())
    assert report is not None
    assert "rank 0: 81 collectives entered" in report.text or "rank 0: 82 collectives entered" in report.text
    assert "all_reduce" in report.text
    assert "Thread loader (most recent call first):" in report.text
    assert report.text.index("Thread loader") < report.text.index("Stack (most recent"), "its end is kept if it is cut"


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        pytest.param("disk", r", at ends_badly.py:\d+ in wait_in_state_d", id="read"),
        pytest.param("page", "", id="page of a mapped file", marks=pytest.mark.long),
    ],
)
@together
def test_a_hang_in_state_d_is_noticed_and_called_so(jobs: Jobs, mode: str, place: str) -> None:
    """Where a thread of ours answers the signal instead of the main one, its stack is not taken for the script's."""
    jobs.create("ends", endings_spec(mode, health={"hangTimeoutSeconds": 4}))
    failed = jobs.await_condition("ends", "Failed", timeout=240)
    assert re.search(
        rf"rank 1 \(ends-worker-1\) hung: no collective and no work for \d+ s{place}, in a system call that does not"
        r" return \(state D: a disk or a file server does not answer\)$",
        failed["message"],
    )
    wait_for(lambda: {p["status"]["phase"] for p in jobs.pods("ends")} == {"Failed"}, "no process is left")


@pytest.mark.long
@together
def test_a_hang_in_the_first_second_of_a_world_is_noticed(jobs: Jobs) -> None:
    """The ranks have met once, and have reported nothing."""
    jobs.create("ends", endings_spec("early", health={"hangTimeoutSeconds": 4}))
    failed = jobs.await_condition("ends", "Failed", timeout=180)
    assert "rank 1 (ends-worker-1) hung: no collective and no work for " in failed["message"]
    assert re.search(r"at ends_badly.py:\d+ in come_to_an_end$", jobs.status("ends")["lastFailure"]["message"])


@together
def test_a_hang_that_a_thread_hides_is_told_and_ended_later(jobs: Jobs) -> None:
    """It begins in the first second, too."""
    jobs.create("ends", endings_spec("beside", health={"hangTimeoutSeconds": 6}))
    told = wait_for(
        lambda: c if (c := jobs.condition("ends", "NoProgress")).get("reason") == "MaybeHung" else None,
        "it is told that the world may hang",
        timeout=120,
    )
    assert told["status"] == "Unknown"
    assert "only something beside them in ends-worker-0, ends-worker-1 (a thread," in told["message"]
    log = jobs.kube.raw("GET", f"/api/v1/namespaces/{jobs.namespace}/pods/ends-worker-1/log")
    report = find_report(log.decode().splitlines())
    assert report is not None and "in come_to_an_end" in report.text, "`kubectl elasticjob diagnose` shows it already"
    assert jobs.condition("ends", "Running")["status"] == "True", "it may be work"
    failed = jobs.await_condition("ends", "Failed", timeout=180)
    assert "rank 1 (ends-worker-1) hung: no collective and no work for " in failed["message"]
    assert jobs.condition("ends", "NoProgress")["status"] == "False"


def test_pods_of_a_deleted_job_end_at_once(jobs: Jobs, tmp_path: Path) -> None:
    """Nobody forms a world without them: agents that wait for one would hold the name for the whole grace."""
    jobs.create("gone", torchrun_spec(tmp_path))
    await_step(tmp_path, 2)
    old = {member["uid"] for member in jobs.await_world("gone", 2)["rendezvous"]["members"]}
    jobs.delete("gone")
    jobs.create("gone", light_spec())

    def stay() -> list[dict[str, Any]]:
        return [p for p in jobs.pods("gone") if p["metadata"]["uid"] in old]

    wait_for(lambda: all("deletionTimestamp" in p["metadata"] for p in stay()), "the old pods are asked to go")
    began = time.monotonic()
    wait_for(lambda: not stay(), "the old pods are gone")
    assert time.monotonic() - began < 10, "the grace period is 30 s"
    jobs.await_world("gone", 2)


@together
def test_what_is_orphaned_stays(jobs: Jobs) -> None:
    """`kubectl delete --cascade=orphan`: pods and their policy stay, and the pods of a job deleted after it go."""
    jobs.create("kept", light_spec(replicas=2))
    jobs.create("gone", light_spec(replicas=1))
    jobs.await_world("kept", 2)
    jobs.await_world("gone", 1)
    before = {p["metadata"]["uid"] for p in jobs.pods("kept")}
    jobs.kube.request("DELETE", f"{jobs.path}/kept", {"propagationPolicy": "Orphan"})
    wait_for(lambda: not jobs.get("kept"), "the job is gone", timeout=120)
    jobs.delete("gone")
    wait_for(lambda: not jobs.pods("gone"), "the operator has seen both deletions, and acted")
    pods = jobs.pods("kept")
    assert {p["metadata"]["uid"] for p in pods} == before
    assert not any(p["metadata"].get("deletionTimestamp") for p in pods)
    assert not any(p["metadata"].get("ownerReferences") for p in pods)
    policies = f"/apis/networking.k8s.io/v1/namespaces/{jobs.namespace}/networkpolicies"
    assert jobs.kube.get(f"{policies}/kept-workers") is not None


@together
def test_a_worker_that_is_killed_is_blamed_and_not_its_peer(jobs: Jobs) -> None:
    """The peer's session feels the loss, and tells of it, before the agent of the killed one looks."""
    start(jobs, "digits-session", {}, maxReplicas=2)
    world = jobs.await_world("digits-session", 2, timeout=120)["rendezvous"]
    pods = [member["pod"] for member in world["members"]]
    for pod in pods:
        await_session_step(jobs, pod, 2, world["generation"])
    for rank in (0, 1):
        generation = jobs.status("digits-session")["rendezvous"]["generation"]
        before = jobs.status("digits-session")["restarts"]["total"]
        os.kill(read_steps(jobs, pods[rank])[-1]["pid"], signal.SIGKILL)
        status = jobs.await_world("digits-session", 2, above=generation, timeout=120)
        failure = status["lastFailure"]
        assert (failure["pod"], failure.get("signal")) == (pods[rank], "SIGKILL"), failure
        assert status["restarts"]["total"] == before + 1
        newest = status["rendezvous"]["generation"]
        pods = [member["pod"] for member in status["rendezvous"]["members"]]
        for pod in pods:
            await_session_step(jobs, pod, 2, newest)


def find_child(parent: int, word: str) -> int | None:
    """The process of this machine below `parent` whose command line contains `word`."""
    for entry in Path("/proc").iterdir():
        try:
            above = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = entry.joinpath("cmdline").read_text().split("\0")
        except (OSError, ValueError):
            continue
        if above == parent and any(word in one for one in words):
            return int(entry.name)
    return None


@together
def test_exit_code_0_of_a_shell_whose_agent_was_killed_is_no_success(jobs: Jobs, tmp_path: Path) -> None:
    """`torchrun ... | tee log`: the pod's exit code is that of `tee`."""
    spec = torchrun_spec(tmp_path, replicas=1)
    trainer = spec["template"]["spec"]["containers"][0]
    piped = f"echo $$$$ > {tmp_path}/shell; {' '.join(trainer['command'])} 2>&1 | tee {tmp_path}/log"
    trainer["command"] = ["sh", "-c", piped]
    jobs.create("piped", spec)
    jobs.await_world("piped", 1, timeout=120)
    await_step(tmp_path, 1)
    agent = find_child(int((tmp_path / "shell").read_text()), "torchrun")
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    status = jobs.await_world("piped", 1, above=1, timeout=120)
    assert not jobs.condition("piped", "Complete")
    failure = status["lastFailure"]
    assert (failure["rank"], failure["exitCode"]) == (0, 0)
    assert "rank 0 (piped-worker-0) ended with exit code 0" in failure["message"]
    assert "its agent did not say that its workers succeeded" in failure["message"]
    assert status["restarts"]["total"] == 1, "it is charged, like any other end of a program"


def test_a_shell_that_hides_an_exit_code_hides_no_failure(jobs: Jobs) -> None:
    """`torchrun train.py || true`: the pods end well, and their agents have said what failed."""
    spec = endings_spec("exit")
    trainer = spec["template"]["spec"]["containers"][0]
    trainer["command"] = ["sh", "-c", f"{' '.join(trainer['command'])} || true"]
    jobs.create("hidden", spec)
    failed = jobs.await_condition("hidden", "Failed", timeout=120)
    assert "rank 1" in failed["message"] and "exit code 3" in failed["message"]
    assert not jobs.condition("hidden", "Complete")


def test_a_job_that_succeeds_while_the_operator_is_away_is_complete(
    jobs: Jobs, operator: OperatorProcess, tmp_path: Path
) -> None:
    spec = torchrun_spec(tmp_path)
    spec["template"]["spec"]["containers"][0]["command"].append("--steps=100")
    jobs.create("alone", spec)
    jobs.await_world("alone", 2, timeout=120)
    await_step(tmp_path, 2)
    operator.kill()
    wait_for(lambda: {p["status"]["phase"] for p in jobs.pods("alone")} == {"Succeeded"}, "the pods have ended", 120)
    operator.start()
    complete = jobs.await_condition("alone", "Complete")
    assert complete["message"] == "all 2 members succeeded"
    assert "lastFailure" not in jobs.status("alone")
