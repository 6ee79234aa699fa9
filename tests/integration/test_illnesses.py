"""Each row of the table of illnesses, in a real job: found, with the right rank, and what is done about it.

`python -m pytest tests/integration/test_illnesses.py --long` makes all of them happen; without `--long`, three of
different kinds fall sick side by side.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster.flags import parse_version
from integration.illnesses import ILLNESSES, Illness, Then
from operator_fixture import Jobs, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PATIENCE = 150.0
# The rules of the whole table, for a training that is well.
ALL_RULES = [
    {"name": f"Rule{number}", "when": one.when} for number, one in enumerate(ILLNESSES) if one.when is not None
]


class Patient:
    """A job that falls sick."""

    def __init__(self, jobs: Jobs, folder: Path, illness: Illness) -> None:
        self.jobs, self.illness, self.name = jobs, illness, illness.name
        self.folder = folder / illness.name
        self.folder.mkdir()
        self.jobs.create(self.name, build_spec(illness, self.folder))
        self.members: list[dict[str, Any]] = []

    @property
    def status(self) -> dict[str, Any]:
        return self.jobs.status(self.name)

    @property
    def starts(self) -> list[int]:
        file = self.folder / "starts"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def start(self) -> None:
        """The first world trains; the node of the rank falls sick, where it is the test that says so."""

        def look() -> list[dict[str, Any]] | None:
            world = self.status.get("rendezvous", {})
            return world["members"] if world.get("generation") else None

        self.members = wait_for(look, f"{self.name}: a first world", PATIENCE)
        if self.illness.at_once:
            wait_for(lambda: self.status.get("progress", {}).get("step"), f"{self.name}: it makes steps", PATIENCE)
            (self.folder / self.members[self.illness.rank or 0]["node"]).touch()

    def find(self) -> tuple[int | None, str | None, str]:
        """(rank, node, what is said) where it is told."""

        def by_rule() -> dict[str, Any] | None:
            found = self.status.get("incidents", [])
            return next((one for one in found if one["rule"] == self.illness.rule_name and one.get("count")), None)

        if self.illness.where == "rule":
            one = wait_for(by_rule, f"{self.name}: an incident", PATIENCE)
            assert one["lastAction"] == self.illness.rule.get("action", "Report")
            assert one["count"] == 1, "and no other one"
            return one.get("rank"), one.get("node"), one["message"]
        if self.illness.where == "failure":
            one = wait_for(lambda: self.status.get("lastFailure"), f"{self.name}: a failure", PATIENCE)
            said = [one.get(part) for part in ("reason", "signal", "message", "traceback")]
            return one.get("rank"), one.get("node"), "\n".join(filter(None, said))
        events = wait_for(
            lambda: [text for reason, text in self.jobs.events(self.name) if reason == self.illness.where],
            f"{self.name}: an event",
            PATIENCE,
        )
        assert len(events) == 1, "nobody else is accused"
        rank = re.search(r"rank (\d+)", events[0])
        node = re.search(r" on (node-\d+)", events[0])
        return (int(rank[1]) if rank else None), (node[1] if node else None), events[0]

    def find_avoided(self) -> set[str]:
        """The nodes to which its pods prefer others."""
        affinities = [pod["spec"].get("affinity", {}).get("nodeAffinity", {}) for pod in self.jobs.pods(self.name)]
        rules = [
            rule
            for one in affinities
            for term in one.get("preferredDuringSchedulingIgnoredDuringExecution", [])
            for rule in term["preference"]["matchExpressions"]
        ]
        return {node for rule in rules if rule["operator"] == "NotIn" for node in rule["values"]}

    def judge(self) -> None:
        """It is found, and what is to be done about it is done."""
        rank, node, said = self.find()
        assert re.search(self.illness.says, said), said
        if self.illness.rank is not None:
            expected = self.members[self.illness.rank]["node"]
            assert (rank, node) == (self.illness.rank, expected), said
        self.judge_end()

    def judge_end(self) -> None:
        then, size, victim = self.illness.then, self.illness.size, self.members[self.illness.rank or 0]
        if then is Then.GOES_ON:
            assert self.status["rendezvous"]["generation"] == 1, "the same world trains"
            return
        if then in (Then.SUSPENDS, Then.FAILS, Then.COMPLETES):
            wanted = {Then.SUSPENDS: "Suspended", Then.FAILS: "Failed", Then.COMPLETES: "Complete"}[then]
            condition = self.jobs.await_condition(self.name, wanted, PATIENCE)
            assert then is not Then.FAILS or condition["reason"] == "HealthRule"
            return
        after = self.jobs.await_world(self.name, size, above=1, timeout=PATIENCE)
        is_there = victim["uid"] in {member["uid"] for member in after["rendezvous"]["members"]}
        assert is_there is (then in (Then.GOES_BACK, Then.CONTINUES))
        if then in (Then.GOES_BACK, Then.REPLACES) and self.name != "hidden":
            assert after["restarts"]["total"] == 0, "a rule costs no budget"
        if then is Then.REPLACES:
            assert victim["node"] in self.find_avoided(), "the new pod is to go elsewhere"
            if parse_version(self.jobs.cluster.version) < (1, 23):
                return  # whose scheduler spreads pods rather than to prefer nodes
        if then in (Then.REPLACES, Then.EXCLUDES):
            assert victim["node"] not in {member["node"] for member in after["rendezvous"]["members"]}
        if self.illness.starts:
            wait_for(lambda: self.starts[1:] and self.starts[-1] in self.illness.starts, f"{self.name}: {self.starts}")


def build_spec(illness: Illness, folder: Path) -> dict[str, Any]:
    size = illness.size
    container: dict[str, Any] = {"name": "trainer", "image": "a/b:1", "command": illness.find_command(folder)}
    container["env"] = [{"name": "ELASTICJOB_STRAGGLER_SECONDS", "value": "5"}]
    rules = {} if illness.rules is None else {"rules": illness.rules}
    least = size - 1 if size > 2 else size
    return {
        "replicas": size,
        "elasticPolicy": {"minReplicas": least, "maxReplicas": size, "maxRestarts": 3},
        "health": {**illness.health, **rules},
        "template": {"spec": {"containers": [container]}},
    }


def test_several_illnesses_at_the_same_time_are_told_apart(jobs: Jobs, tmp_path: Path) -> None:
    patients = [Patient(jobs, tmp_path, one) for one in ILLNESSES if one.short]
    for patient in patients:
        patient.start()
    for patient in patients:
        patient.judge()


@pytest.mark.long
@pytest.mark.parametrize("illness", [pytest.param(one, id=one.name) for one in ILLNESSES])
def test_each_illness_is_found_with_its_rank_and_its_action(jobs: Jobs, tmp_path: Path, illness: Illness) -> None:
    patient = Patient(jobs, tmp_path, illness)
    patient.start()
    patient.judge()


@pytest.mark.long
def test_a_training_that_is_well_has_none_of_them(jobs: Jobs, tmp_path: Path) -> None:
    """Under all rules of the table, through a change of its size."""
    healthy = Illness("none", "", Then.GOES_ON, "")
    spec = build_spec(healthy, tmp_path)
    spec["health"] = {"rules": ALL_RULES, "hangTimeoutSeconds": 30}
    spec["elasticPolicy"]["maxReplicas"] = 3
    jobs.create("well", spec)
    jobs.await_world("well", 2, timeout=PATIENCE)
    wait_for(lambda: jobs.status("well").get("progress", {}).get("step", 0) > 250, "it trains", timeout=PATIENCE)
    jobs.scale("well", 3)
    jobs.await_world("well", 3, timeout=PATIENCE)
    step = jobs.status("well")["progress"]["step"]
    wait_for(lambda: jobs.status("well")["progress"]["step"] > step + 200, "it trains on", timeout=PATIENCE)
    status = jobs.status("well")
    assert [one for one in status["incidents"] if one.get("count")] == []
    assert "lastFailure" not in status
    assert jobs.condition("well", "Incident").get("status") != "True"
