"""Sick trainings under the real operator: what the rules of a job find, and what they do about it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from operator_fixture import Jobs, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PROGRAM = Path(__file__).parent / "programs/sick.py"
SESSION = Path(__file__).parent / "programs/sick_session.py"
NOT_FINITE = {"metric": {"name": "loss", "notFinite": True}}


def sick_spec(directory: Path, illness: str, *rules: dict[str, Any], size: int = 2) -> dict[str, Any]:
    command = ["torchrun", str(PROGRAM), str(directory), illness]
    return {
        "replicas": size,
        "elasticPolicy": {"minReplicas": size, "maxReplicas": size},
        "health": {"rules": list(rules)} if rules else {},
        "template": {"spec": {"containers": [{"name": "trainer", "image": "a/b:1", "command": command}]}},
    }


def starts(directory: Path) -> list[int]:
    """The steps from which the training has gone on."""
    file = directory / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def incident(jobs: Jobs, name: str, rule: str, timeout: float = 90.0) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = jobs.status(name).get("incidents", [])
        return next((one for one in found if one["rule"] == rule and one.get("count")), None)

    return wait_for(look, f"{rule} has fired", timeout)


def test_a_loss_that_is_not_finite_is_reported_without_a_rule_of_the_job(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("nan", sick_spec(tmp_path, "nan"))
    one = incident(jobs, "nan", "LossNotFinite")
    assert one["lastAction"] == "Report" and one["step"] >= 20
    found = wait_for(lambda: jobs.condition("nan", "Incident"), "a condition")
    assert (found["status"], found["reason"]) == ("True", "LossNotFinite")
    assert re.match(r"rank [01] \(nan-worker-[01] on node-\d+\): loss is NaN or infinite at step \d+", found["message"])
    told = wait_for(lambda: [text for reason, text in jobs.events("nan") if reason == "RuleFired"], "an event")
    assert len(told) == 1
    assert jobs.status("nan")["rendezvous"]["generation"] == 1, "it goes on"


def test_the_pod_of_the_rank_that_shows_it_is_replaced(jobs: Jobs, tmp_path: Path) -> None:
    rule = {"name": "BadRank", "when": NOT_FINITE, "action": "Replace", "from": "BeforeIncident"}
    jobs.create("rank", sick_spec(tmp_path, "rank", rule))
    world = jobs.await_world("rank", 2)["rendezvous"]
    wait_for(lambda: "progress" in jobs.status("rank"), "it makes steps")
    victim = world["members"][1]
    (tmp_path / victim["node"]).touch()
    after = jobs.await_world("rank", 2, above=world["generation"], timeout=120)
    assert victim["uid"] not in {member["uid"] for member in after["rendezvous"]["members"]}
    assert victim["node"] not in {member["node"] for member in after["rendezvous"]["members"]}
    one = incident(jobs, "rank", "BadRank")
    assert (one["rank"], one["pod"], one["node"]) == (1, victim["pod"], victim["node"])
    assert after["restarts"]["total"] == 0 and not after.get("nodeFaults")
    wait_for(lambda: victim["uid"] not in {p["metadata"]["uid"] for p in jobs.pods("rank")}, "its pod is gone")


def test_a_spike_goes_back_to_a_checkpoint_from_before_it(jobs: Jobs, tmp_path: Path) -> None:
    """The rule looks for some seconds, in which two sick checkpoints are saved: they are not the ones to go back to."""
    spike = {
        "name": "Spike",
        "when": {"metric": {"name": "loss", "above": 100}},
        "forSeconds": 2,
        "action": "Restart",
        "from": "BeforeIncident",
    }
    jobs.create("spike", sick_spec(tmp_path, "spike", spike))
    wait_for(lambda: len(starts(tmp_path)) > 1, "it starts again", timeout=120)
    saved = {int(place.name[5:13]) for place in (tmp_path / "saved").glob("step-*")}
    assert max(saved) >= 50, "there were later ones"
    assert starts(tmp_path)[1] in (30, 40), "the step before the spike may be reported as the last good one"
    one = incident(jobs, "spike", "Spike")
    assert (one["count"], one["acted"], one["lastAction"]) == (1, 1, "Restart")
    wait_for(lambda: jobs.status("spike")["progress"]["step"] > 80, "it trains beyond it", timeout=60)
    status = jobs.status("spike")
    assert status["timeline"][-1]["cause"] == "rule" and status["timeline"][-1]["who"].startswith("Spike: rank ")
    assert status["restarts"]["total"] == 0
    assert incident(jobs, "spike", "Spike")["count"] == 1


@pytest.mark.parametrize("from_", [pytest.param("Newest", marks=pytest.mark.long), "BeforeIncident"])
def test_a_session_that_is_sick_in_its_memory_starts_anew(jobs: Jobs, tmp_path: Path, from_: str) -> None:
    rule = {"name": "Finite", "when": NOT_FINITE, "action": "Restart", "from": from_}
    spec = sick_spec(tmp_path, "", rule)
    spec["template"]["spec"]["containers"][0]["command"] = ["torchrun", str(SESSION), str(tmp_path)]
    jobs.create("session", spec)
    status = jobs.await_world("session", 2, above=1, timeout=120)
    assert status["timeline"][-1]["cause"] == "rule"
    assert len(starts(tmp_path)) == 4, "both processes have begun twice"
    first = status["progress"]["lastUpdateTime"]
    wait_for(lambda: jobs.status("session")["progress"]["lastUpdateTime"] > first, "it reports", timeout=60)
    status = jobs.status("session")
    assert not status["progress"].get("notFinite")
    assert (status["restarts"]["total"], status["incidents"][0]["count"]) == (0, 1)


@pytest.mark.long
def test_it_is_suspended_and_goes_on_when_it_is_resumed(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("pause", sick_spec(tmp_path, "nan", {"name": "Stop", "when": NOT_FINITE, "action": "Suspend"}))
    jobs.await_condition("pause", "Suspended", timeout=120)
    assert jobs.get("pause")["spec"]["runPolicy"]["suspend"] is True
    (tmp_path / "cured").touch()
    jobs.patch("pause", {"runPolicy": {"suspend": False}})
    status = jobs.await_world("pause", 2, above=1, timeout=120)
    assert status["incidents"][0].get("since") is None


@pytest.mark.long
def test_a_change_of_the_rules_holds_at_once(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("late", sick_spec(tmp_path, "nan", {"name": "Other", "when": {"noProgress": 9}}))
    wait_for(lambda: jobs.status("late").get("progress", {}).get("notFinite"), "it is sick", timeout=90)
    jobs.patch("late", {"health": {"rules": [{"name": "Finite", "when": NOT_FINITE, "action": "Fail"}]}})
    assert jobs.await_condition("late", "Failed", timeout=60)["reason"] == "HealthRule"


def test_the_pod_whose_log_has_what_is_looked_for_is_replaced(jobs: Jobs, tmp_path: Path) -> None:
    rule = {"name": "Ecc", "when": {"log": "(?i)xid (48|79).*uncorrectable"}, "action": "Replace"}
    jobs.create("ecc", sick_spec(tmp_path, "ecc", rule))
    world = jobs.await_world("ecc", 2)["rendezvous"]
    wait_for(lambda: "progress" in jobs.status("ecc"), "it makes steps")
    victim = world["members"][1]
    (tmp_path / victim["node"]).touch()
    one = incident(jobs, "ecc", "Ecc")
    assert (one["rank"], one["pod"], one["node"]) == (1, victim["pod"], victim["node"])
    assert "wrote 'NVRM: Xid 48: GPU 0: Uncorrectable ECC error'" in one["message"]
    after = jobs.await_world("ecc", 2, above=world["generation"], timeout=120)
    assert victim["uid"] not in {member["uid"] for member in after["rendezvous"]["members"]}
    wait_for(lambda: len(starts(tmp_path)) > 1, "it starts again")
    assert starts(tmp_path)[-1] > 0, "the scripts have saved first"
    assert not jobs.condition("ecc", "Warning") or jobs.condition("ecc", "Warning")["status"] == "False"


def test_a_number_is_read_from_the_log_of_a_script_that_reports_nothing(jobs: Jobs, tmp_path: Path) -> None:
    when = {"metric": {"name": "loss", "log": "loss=([0-9.]+|nan)", "notFinite": True}}
    jobs.create("logged", sick_spec(tmp_path, "logged", {"name": "Finite", "when": when}))
    assert "loss is NaN or infinite" in incident(jobs, "logged", "Finite")["message"]
    assert "progress" not in jobs.status("logged")


@pytest.mark.long
def test_an_expression_that_is_written_later_holds_for_new_pods_and_a_warning_says_so(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.create("later", sick_spec(tmp_path, "ecc", {"name": "Other", "when": {"noProgress": 9}}))
    jobs.await_world("later", 2)
    jobs.patch("later", {"health": {"rules": [{"name": "Ecc", "when": {"log": "ECC error"}}]}})
    found = wait_for(lambda: jobs.condition("later", "Warning"), "a warning")
    assert found["reason"] == "RulesNotWatched"
    assert "later-worker-0" in found["message"] and "Suspend and resume the job" in found["message"]
