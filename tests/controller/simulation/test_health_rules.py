"""Scenarios of sick trainings: what a rule of the job finds is told, and what it orders is done once."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import make_spec
from controller.simulated_agent import SimAgent
from controller.simulated_cluster import Cluster
from elasticjob_operator import api
from elasticjob_operator.api import wire

BACK: dict[str, Any] = {"from": "BeforeIncident"}
NOT_FINITE: dict[str, Any] = {"metric": {"name": "loss", "notFinite": True}}


class Training(Cluster):
    """A job whose ranks report a step and a loss each second. `sick`: what else they say, by the name of the node."""

    def __init__(
        self, action: str = "Report", *, when: dict[str, Any] | None = None, nodes: int = 4, **rule: Any
    ) -> None:
        one = {
            "name": "Sick",
            "when": when or NOT_FINITE,
            "action": action,
            **rule,
        }
        super().__init__(make_spec(2, 3, health={"rules": [one]}), nodes=nodes)
        self.step, self.sick, self.sick_in = 0, dict[str, str](), 99
        self.reports = self.say
        self.run_until(lambda: self.size == 3 and self.trains)
        self.tick(20)

    def say(self, agent: SimAgent) -> dict[str, Any]:
        wrong = self.sick.get(agent.pod.record.node) if agent.generation <= self.sick_in else None
        told = {"metrics": {"loss": 2.0}} if wrong is None else {"not_finite": [wrong]}
        return {"step": self.step, **told}

    def tick(self, seconds: int) -> None:
        """The ranks report for so long."""
        for _ in range(seconds):
            self.step += 1
            for pod in self.pods.values():
                if pod.agent is not None and pod.agent.connected:
                    self.hear(pod.agent)
            self.run(1)

    def fall_sick(self, *nodes: str) -> None:
        self.sick = dict.fromkeys(nodes, "loss")

    @property
    def incident(self) -> Any:
        return self.status.incidents[0] if self.status.incidents else None

    def is_suspended(self) -> bool:
        return self.spec.run_policy.suspend

    def find_regroup(self) -> wire.Regroup:
        told = (one for made in self.plans for one in made.directives.values())
        return next(one for one in told if isinstance(one, wire.Regroup))

    def worlds_told(self) -> set[int | None]:
        """The steps before which the members of the present world were told to restore."""
        return {one.before for one in self.told.values() if isinstance(one, wire.World)}


def test_it_is_told_once_and_is_over_when_it_stops() -> None:
    training = Training()
    training.fall_sick("node1")
    training.tick(30)
    one = training.incident
    assert (one.rule, one.count, one.rank, one.pod, one.node) == ("Sick", 1, 1, "digits-worker-1", "node1")
    assert (one.step, one.last_action, one.acted) == (21, "Report", 0)
    condition = training.status.condition("Incident")
    assert condition is not None and (condition.status, condition.reason) == ("True", "Sick")
    assert condition.message == "rank 1 (digits-worker-1 on node1): loss is NaN or infinite at step 21"
    assert training.told_events().count("RuleFired") == 1
    assert training.generation == 1
    training.fall_sick()
    training.tick(70)
    condition = training.status.condition("Incident")
    assert condition is not None and condition.status == "False"
    assert training.incident.since is None


def test_an_operator_that_starts_anew_opens_no_second_incident() -> None:
    training = Training()
    training.fall_sick("node1")
    training.tick(10)
    training.restart_operator(2.0)
    training.tick(100)
    assert training.incident.count == 1


def test_a_restart_lets_the_scripts_save_and_is_no_failure() -> None:
    training = Training("Restart")
    training.fall_sick("node0", "node1", "node2")
    training.tick(1)
    regroup = training.find_regroup()
    assert (regroup.reason, regroup.checkpoint, regroup.fresh) == ("rule", True, True)
    training.fall_sick()
    training.run_until(lambda: training.generation == 2 and training.trains)
    assert training.worlds_told() == {None}
    training.tick(30)
    assert (training.generation, training.incident.acted, training.incident.last_action) == (2, 1, "Restart")
    assert training.status.timeline[-1].who == "Sick: rank 0 in digits-worker-0"
    assert (training.status.restarts.total, training.status.restarts.infrastructure) == (0, 0)
    assert training.status.node_faults == []
    assert training.status.lost_seconds is not None and training.status.lost_seconds.restart > 0
    assert training.status.restarts.unasked_until is None, "nobody has left by itself"


def test_a_restart_from_before_the_incident_saves_nothing_and_names_the_step() -> None:
    training = Training("Restart", **BACK)
    training.sick_in = 1
    training.fall_sick("node0", "node1", "node2")
    training.tick(1)
    regroup = training.find_regroup()
    assert (regroup.checkpoint, regroup.fresh) == (False, True)
    training.fall_sick()
    training.run_until(lambda: training.generation == 2 and training.trains)
    assert training.worlds_told() == {20}, "the last step that was good may have been saved with what came after it"
    training.step = 15
    training.tick(5)
    assert training.worlds_told() == {20}, "it has not passed what was sick"
    training.tick(5)
    assert training.worlds_told() == {None}
    assert training.generation == 2


def test_a_world_that_is_sick_from_its_start_goes_back_further_each_time_and_in_the_end_only_reports() -> None:
    training = Training("Restart", atMost=2, **BACK)
    training.fall_sick("node0", "node1", "node2")
    training.tick(1)
    training.run_until(lambda: training.generation == 3 and training.trains)
    told = [one for one in training.told.values() if isinstance(one, wire.World)]
    assert {(one.before, one.repeats) for one in told} == {(20, 2)}, "and the newest of those is left out"
    training.tick(200)
    assert training.generation == 3
    assert (training.incident.count, training.incident.acted, training.incident.last_action) == (3, 2, "Report")
    assert "Restart was done 2 times (atMost), so the job goes on" in training.incident.message
    assert training.trains


def test_the_pod_that_showed_it_is_replaced_on_another_node() -> None:
    training = Training("Replace", **BACK)
    training.fall_sick("node1")
    training.tick(1)
    training.run_until(lambda: training.size == 3 and training.trains and training.generation > 1)
    training.tick(60)
    assert {member.node for member in training.status.rendezvous.members} == {"node0", "node2", "node3"}
    assert ("digits-worker-1", "rule", False) in training.removed
    assert training.status.node_faults == [], "no job of others hears of it"
    assert (training.status.restarts.total, training.incident.acted, training.incident.count) == (0, 1, 1)


def test_it_is_suspended_until_somebody_resumes_it() -> None:
    training = Training("Suspend")
    training.fall_sick("node1")
    training.tick(1)
    training.run_until(lambda: training.status.is_true("Suspended"))
    assert training.is_suspended()
    assert training.incident.last_action == "Suspend"
    training.fall_sick()
    training.edit(suspend=False)
    training.run_until(lambda: training.size == 3 and training.trains)
    training.tick(30)
    assert not training.is_suspended()
    assert training.incident.since is None


def test_the_job_fails_with_what_was_found() -> None:
    training = Training("Fail")
    training.fall_sick("node1")
    training.tick(1)
    failed = training.status.condition("Failed")
    assert failed is not None and failed.reason == "HealthRule"
    assert failed.message == "Sick: rank 1 (digits-worker-1 on node1): loss is NaN or infinite at step 21"


@pytest.mark.parametrize("action", ["Report", "Restart", "Replace", "Suspend", "Fail"])
def test_an_operator_that_dies_at_any_write_reaches_the_same(action: str) -> None:
    for writes in range(4):
        training = Training(action)
        training.fall_sick("node1")
        training.crash_after = writes
        training.tick(2)
        training.fall_sick()
        training.tick(60)
        assert training.incident is not None or action == "Suspend"
        assert training.incident is None or training.incident.count == 1
        if action in ("Restart", "Replace"):
            assert training.generation >= 2 and training.trains and training.size == 3


def test_restarts_without_progress_end_the_job_early() -> None:
    training = Training("Fail", when={"noProgress": 2})
    for _ in range(2):
        agent = next(pod.agent for pod in training.pods.values() if pod.agent is not None)
        agent.fail()
        training.run(60)
    failed = training.status.condition("Failed")
    assert failed is not None and failed.reason == "HealthRule"
    assert failed.message.startswith("Sick: 2 restarts in a row without a step beyond 20; last: rank 0")


@pytest.mark.parametrize("reports", [True, False], ids=["reports steps", "reports nothing"])
def test_a_job_that_was_suspended_for_no_progress_is_resumed(reports: bool) -> None:
    """Whoever resumes it may have mended what was wrong: it has its tries again, and as many as before."""
    when = {"noProgress": 2}
    spec = make_spec(2, 3, health={"rules": [{"name": "Sick", "when": when, "action": "Suspend"}]})
    cluster: Cluster = Training("Suspend", when=when) if reports else Cluster(spec)
    for count in (1, 2):
        cluster.run_until(lambda: cluster.size == 3 and cluster.trains)
        for _ in range(2):
            agent = next(pod.agent for pod in cluster.pods.values() if pod.agent is not None)
            agent.fail()
            cluster.run(60)
        assert cluster.status.is_true("Suspended")
        assert [one.count for one in cluster.status.incidents] == [count]
        cluster.edit(suspend=False)
        cluster.run(30)
        assert not cluster.status.is_true("Suspended")
        assert [one.since for one in cluster.status.incidents] == [None]


def test_a_first_step_that_is_late_is_told_at_that_time() -> None:
    spec = make_spec(2, 2, health={"rules": [{"name": "Late", "when": {"slow": {"firstStepSeconds": 100}}}]})
    cluster = Cluster(spec)
    cluster.run_until(lambda: cluster.size == 2 and cluster.trains)
    cluster.run(150)
    (one,) = cluster.status.incidents
    assert (one.rule, one.message) == ("Late", "generation 1 has made no step in 100 s")


def watching(spec: api.Spec, *, knows: bool) -> Cluster:
    """A job whose agents look for the expressions of its rules, if they know them."""
    cluster = Cluster(spec)
    cluster.run_until(lambda: cluster.size == 3 and cluster.trains)
    for pod in cluster.pods.values():
        if pod.agent is not None and knows:
            pod.agent.watches = api.digest_patterns(api.list_patterns(spec.health.rules or ()))
            cluster.hear(pod.agent)
    cluster.run(5)
    return cluster


LOGGED = make_spec(2, 3, health={"rules": [{"name": "Ecc", "when": {"log": "ECC"}, "action": "Replace"}]})


def test_a_pod_whose_output_has_what_is_looked_for_is_replaced_once() -> None:
    cluster = watching(LOGGED, knows=True)
    warning = cluster.status.condition("Warning")
    assert warning is None or warning.status == "False"
    agent = cluster.agent(1)
    agent.signs = (wire.Sign(rule="Ecc", generation=1, rank=1, step=40, line="ECC error"),)
    cluster.hear(agent)
    cluster.run_until(lambda: cluster.size == 3 and cluster.trains and cluster.generation > 1)
    assert "node1" not in {member.node for member in cluster.status.rendezvous.members}
    cluster.run(120)
    (one,) = cluster.status.incidents
    assert (one.count, one.acted, one.message) == (
        1,
        1,
        "rank 1 (digits-worker-1 on node1): wrote 'ECC error' at step 40",
    )
    assert cluster.status.node_faults == []


def test_pods_that_do_not_look_for_the_expressions_are_named() -> None:
    cluster = watching(LOGGED, knows=False)
    warning = cluster.status.condition("Warning")
    assert warning is not None and (warning.status, warning.reason) == ("True", "RulesNotWatched")
    assert warning.message.startswith("health.rules: the output of digits-worker-0 and 2 more is not looked at")


@pytest.mark.parametrize("action", ["Restart", "Replace", "Suspend", "Fail"])
def test_a_rule_that_is_changed_while_it_holds_does_what_it_says_now(action: str) -> None:
    """It has only reported, as the one that each job has; its author writes what is to be done about it."""
    training = Training()
    training.fall_sick("node0", "node1", "node2", "node3")
    training.sick_in = training.status.rendezvous.generation
    training.tick(5)
    assert (training.incident.count, training.incident.last_action) == (1, "Report")
    training.edit(health={"rules": [{"name": "Sick", "when": NOT_FINITE, "action": action}]})
    training.tick(20)
    assert (training.incident.count, training.incident.last_action) == (2, action)
    if action == "Suspend":
        assert training.is_suspended()
    elif action == "Fail":
        assert training.status.phase is api.Phase.FAILED
    else:
        assert [world.cause for world in training.status.timeline].count("rule") == 1
        assert (training.incident.acted, training.status.restarts.total) == (1, 0)


def test_a_rule_whose_times_are_spent_acts_again_when_it_is_given_more() -> None:
    training = Training("Restart", atMost=1)
    training.fall_sick("node0", "node1", "node2", "node3")
    training.tick(60)
    assert (training.incident.acted, training.incident.last_action) == (1, "Report")
    count, generation = training.incident.count, training.status.rendezvous.generation
    training.edit(health={"rules": [{"name": "Sick", "when": NOT_FINITE, "action": "Restart", "atMost": 2}]})
    training.tick(60)
    assert (training.incident.acted, training.incident.last_action) == (2, "Report")
    assert (training.incident.count, training.status.rendezvous.generation) == (count + 2, generation + 1)
