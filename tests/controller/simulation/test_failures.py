"""Scenarios of failure: budget, rules, crash loops, bad images and commands."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.plan import flapping
from elasticjob_operator.sizing import retreat


def started(size: int = 4, spec: Any = None, **fields: Any) -> Cluster:
    cluster = Cluster(spec or make_spec(2, 4), **fields)
    cluster.run_until(lambda: cluster.size == size)
    cluster.run(5)
    return cluster


def failed(cluster: Cluster) -> tuple[str, str]:
    found = cluster.status.condition("Failed")
    return (found.reason, found.message) if found and found.status == "True" else ("", "")


def test_a_failed_worker_restarts_the_world_once_and_charges_once() -> None:
    cluster = started()
    cluster.agent(2).fail(3, "ValueError: bad batch")
    assert cluster.run_until(lambda: cluster.generation == 2 and cluster.trains) < 3
    assert cluster.size == 4
    cluster.run(30)
    restarts = cluster.status.restarts
    assert (restarts.user, restarts.total, restarts.infrastructure) == (1, 1, 0)
    last = cluster.status.last_failure
    assert last is not None
    assert (last.rank, last.exit_code, last.pod) == (2, 3, "digits-worker-2"), "the first one, not those it broke"
    assert "ValueError: bad batch" in (last.message or "")
    assert last.traceback == "Traceback (most recent call last)\nValueError: bad batch"
    assert cluster.told_events().count("WorkerFailed") == 1
    assert not cluster.status.node_faults, "an error of the script says nothing about its node"


def test_a_script_that_could_not_save_is_told_and_costs_nothing() -> None:
    """The change goes on, and the next world begins at an older checkpoint: without a word, nobody would know why."""
    cluster = started()
    cluster.agent(0).cannot_save = True
    cluster.edit(replicas=3)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    told = cluster.status.last_failure
    assert told is not None
    assert (told.reason, told.rank, told.generation) == ("NotSaved", 0, 1)
    assert "OSError: disk full" in (told.message or "")
    assert [one.reason for one in cluster.status.failures] == ["NotSaved"]
    restarts = cluster.status.restarts
    assert (restarts.total, restarts.infrastructure, restarts.backoff) == (0, 0, None)
    assert not cluster.status.node_faults


def test_more_ranks_that_cannot_save_than_are_kept_do_not_take_turns() -> None:
    """Each pass would write another status."""
    cluster = Cluster(make_spec(1, 40, replicas=40), nodes=40)
    cluster.run_until(lambda: cluster.size == 40 and cluster.trains)
    for index in range(40):
        cluster.agent(index).cannot_save = True
    cluster.edit(replicas=39)
    cluster.run_until(lambda: len(cluster.status.failures) == 32)
    first = [one.rank for one in cluster.status.failures]
    cluster.run_until(lambda: cluster.generation == 2)
    assert [one.rank for one in cluster.status.failures] == first


def test_a_failed_agent_is_charged_once_though_its_pod_fails_too() -> None:
    cluster = started()
    cluster.give_up(1)
    cluster.run(60)
    assert cluster.size == 4
    assert cluster.status.restarts.total == 1


@pytest.mark.parametrize("size", [1, 4])
def test_exit_code_0_without_the_agents_word_is_a_loss(size: int) -> None:
    """A shell whose agent was killed ends with the code of its last command: `torchrun ... | tee log`."""
    cluster = started(size, make_spec(1, 4, replicas=size))
    rank = size - 1
    cluster.kill(cluster.member(rank).record.index, code=0)
    cluster.run_until(lambda: cluster.generation >= 2 and cluster.size == size and cluster.trains)
    last, restarts = cluster.status.last_failure, cluster.status.restarts
    assert last is not None
    assert (last.reason, last.rank, last.exit_code) == ("SuccessNotReported", rank, 0)
    assert (restarts.total, restarts.infrastructure) == (1, 0)
    cluster.finish()
    cluster.run(15)
    assert cluster.status.is_true("Complete")


def test_a_command_that_always_ends_with_0_without_the_agents_word_ends_the_job() -> None:
    cluster = started(1, make_spec(1, 1, elasticPolicy={"maxRestarts": 2}))
    for _ in range(3):
        cluster.run_until(lambda: cluster.trains)
        cluster.kill(cluster.member(0).record.index, code=0)
        cluster.run(3)
    assert failed(cluster)[0] == "MaxRestartsExceeded"
    assert "its agent did not say that its workers succeeded" in failed(cluster)[1]


@pytest.mark.parametrize("least", [1, 2])
def test_a_rank_that_ends_well_too_early_is_named_and_trains_again(least: int) -> None:
    """Without it, the others would train something else, in a world smaller than the job asks for."""
    cluster = started(2, make_spec(least, 2))
    end_early(cluster)
    cluster.run_until(lambda: cluster.generation >= 2 and cluster.size == 2 and cluster.trains)
    last = cluster.status.last_failure
    assert last is not None
    assert (last.reason, last.rank, last.exit_code) == ("EndedEarly", 1, 0)
    told = last.message or ""
    assert "rank 1 (digits-worker-1) ended with exit code 0 [EndedEarly]: the others were training" in told
    assert "Connection closed by peer" in told
    assert cluster.status.restarts.total == 1
    cluster.finish()
    cluster.run(15)
    assert cluster.status.is_true("Complete")
    complete = cluster.status.condition("Complete")
    assert complete is not None and complete.message == "all 2 members succeeded"


def test_who_has_lost_a_rank_that_ended_too_early_may_finish_without_it() -> None:
    """`minReplicas: 1` lets one member train alone: it says itself that it has come to the end; nobody infers it."""
    cluster = started(2, make_spec(1, 2))
    end_early(cluster)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.size == 1, "nobody waits for the pod in its place"
    assert not cluster.status.is_true("Complete")
    cluster.finish()
    cluster.run(15)
    complete, last = cluster.status.condition("Complete"), cluster.status.last_failure
    assert complete is not None and complete.message == "all 1 members succeeded"
    assert last is not None and last.reason == "EndedEarly"


def test_who_has_lost_a_rank_that_ended_too_early_waits_for_the_pod_in_its_place() -> None:
    cluster = started(2, make_spec(2, 2))
    end_early(cluster)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.size == 2


def test_a_rank_that_always_ends_too_early_ends_the_job() -> None:
    cluster = started(2, make_spec(2, 2, elasticPolicy={"maxRestarts": 2}))
    for _ in range(3):
        cluster.run_until(lambda: cluster.size == 2 and cluster.trains)
        end_early(cluster)
    cluster.run(5)
    assert failed(cluster)[0] == "MaxRestartsExceeded"
    assert "[EndedEarly]" in failed(cluster)[1]


def test_a_rank_that_ended_too_early_is_named_by_an_operator_that_was_away() -> None:
    cluster = started(2, make_spec(2, 2))
    cluster.agent(1).succeed()
    cluster.run(11)  # its pod has ended
    cluster.restart_operator()
    cluster.agent(0).fail(secondary=True)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    last = cluster.status.last_failure
    assert last is not None and last.reason == "EndedEarly"
    assert cluster.status.restarts.total == 1


def end_early(cluster: Cluster) -> None:
    first, second = cluster.member(0).agent, cluster.member(1).agent
    assert first is not None and second is not None
    second.succeed()
    cluster.run(2)
    first.fail(secondary=True)


def test_a_pod_that_crashes_is_charged() -> None:
    cluster = started()
    cluster.kill(1, code=1)
    cluster.run(60)
    assert cluster.size == 4
    assert cluster.status.restarts.total == 1
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.exit_code == 1


def test_a_trainer_that_crashes_beside_a_sidecar_is_replaced_and_charged() -> None:
    """The pod's phase stays Running for as long as the sidecar runs."""
    cluster = started()
    cluster.sidecars = True
    cluster.add_node("roomy", 4)
    cluster.kill(1, code=3)
    assert cluster.run_until(lambda: cluster.status.restarts.user == 1) < 2
    assert cluster.run_until(lambda: cluster.generation > 1 and cluster.trains) < 10
    cluster.run(60)
    assert cluster.size == 4
    assert cluster.status.restarts.total == 1
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.exit_code == 3
    assert not any(p.record.lingers for p in cluster.pods.values()), "the pod goes, sidecar and all"


def test_a_node_that_dies_under_a_sidecar_holds_nothing_up() -> None:
    cluster = started()
    cluster.sidecars = True
    pod = cluster.pod(1)
    cluster.kill(1, code=3)
    cluster.run(0.55)
    cluster.kill_node(pod.record.node)
    cluster.run(150)
    assert pod.uid not in cluster.pods


def test_out_of_memory_is_charged() -> None:
    cluster = started()
    cluster.kill(1, code=137, reason="OOMKilled")
    cluster.run(60)
    assert cluster.status.restarts.user == 1
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == "OOMKilled"


def test_ten_lost_nodes_do_not_fail_the_job() -> None:
    cluster = started(spec=make_spec(2, 4, elasticPolicy={"maxRestarts": 2}), nodes=4)
    for i in range(10):
        cluster.remove_node(cluster.member(1).record.node)
        cluster.add_node(f"fresh{i}")
        cluster.run(200)
        assert cluster.size == 4
    assert cluster.status.restarts.total == 0
    assert cluster.status.restarts.infrastructure >= 10


def test_a_hang_is_charged_to_the_rank_that_holds_the_others_up() -> None:
    """The first that sees it is one that waits: all agents say where they are before the world ends."""
    cluster = started()
    for index, waits in ((0, True), (2, False)):
        cluster.agent(index).failure = wire.Failure(
            generation=1, rank=index, message="no step for 15 s after step 60, at train.py:7 in f",
            kind=wire.HANG, waits=waits, stalled_seconds=15,
        )  # fmt: skip
    cluster.hear(cluster.agent(0))
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert (cluster.status.restarts.user, cluster.status.rendezvous.reason) == (1, "hung")
    last = cluster.status.last_failure
    assert last is not None
    assert last.message == "rank 2 (digits-worker-2) hung: no step for 15 s after step 60, at train.py:7 in f"
    assert last.reason == "RankHung"
    assert "RankHung" in cluster.told_events()


@pytest.mark.parametrize(
    ("indexes", "others"),
    [((0, 1), "; 1 other pod waits in a collective"), ((0, 1, 2), "; 2 other pods wait in a collective")],
)
def test_a_hang_in_which_all_wait_tells_each_rank_once(indexes: tuple[int, ...], others: str) -> None:
    cluster = started()
    for index in indexes:
        cluster.agent(index).failure = wire.Failure(
            generation=1, rank=index, message="no collective and no work for 120 s", kind=wire.HANG, waits=True
        )
        cluster.hear(cluster.agent(index))
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    status = cluster.status
    assert status.diagnosis is not None
    assert status.diagnosis.kind == "WorldHung"
    assert status.diagnosis.summary == f"no collective and no work for 120 s{others}"
    assert sorted(one.rank for one in status.failures if one.rank is not None) == list(indexes)


def test_a_member_that_leaves_again_and_again_is_named_until_the_job_is_calm() -> None:
    """It is ready again at once, and there is no failure to account for: free five times, then charged."""
    cluster = started()
    for left in range(1, flapping.FREE + 2):
        cluster.agent(1).become_ready()
        cluster.run_until(lambda left=left: cluster.generation == left + 1 and cluster.trains)  # type: ignore[misc]
        is_told = cluster.condition("Degraded") == ("True", "LeftWorld")
        assert is_told is (left > flapping.FREE)
    assert cluster.status.restarts.total == 1
    degraded = cluster.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message.startswith("rank 1 (digits-worker-1) failed [LeftWorld]: it repeatedly left the world")
    assert "LeftWorld" in cluster.told_events()
    assert cluster.run_until(lambda: not cluster.status.is_true("Degraded")) <= flapping.CALM_SECONDS
    assert cluster.condition("Degraded") == ("False", "AllWanted")


def test_max_restarts_exceeded() -> None:
    cluster = started(spec=make_spec(2, 4, elasticPolicy={"maxRestarts": 2}))
    for count in range(1, 4):
        cluster.run_until(lambda: cluster.trains)
        cluster.agent(1).fail(7, "ValueError: always")
        cluster.run(0.5)
        cluster.run_until(lambda count=count: cluster.status.restarts.total == count)  # type: ignore[misc]
    reason, message = failed(cluster)
    assert reason == "MaxRestartsExceeded"
    assert "maxRestarts=2" in message
    assert "rank 1 (digits-worker-1) failed with exit code 7: ValueError: always" in message
    cluster.run(60)
    assert all(p.record.terminal for p in cluster.pods.values())


def test_crash_loop_backs_off_and_ends() -> None:
    cluster = Cluster(make_spec(1, 1, elasticPolicy={"maxRestarts": 4}))
    cluster.default_behaviour = "exit1"
    took = cluster.run_until(lambda: cluster.status.finished, limit=600)
    assert failed(cluster)[0] == "MaxRestartsExceeded"
    assert took > 1 + 2 + 4, "with back-off"
    assert len(cluster.created) == 5


def test_window_expiry_forgets_old_failures() -> None:
    spec = make_spec(2, 4, elasticPolicy={"maxRestarts": 1, "restartWindowSeconds": 100})
    cluster = started(spec=spec)
    for _ in range(4):
        cluster.agent(1).fail()
        cluster.run(150)
        assert cluster.size == 4
    assert (cluster.status.restarts.user, cluster.status.restarts.total) == (1, 4)


def test_progress_refunds_the_budget() -> None:
    cluster = started(spec=make_spec(2, 4, elasticPolicy={"maxRestarts": 1}))
    for step in range(100, 600, 100):
        cluster.report(0, step=step)
        cluster.run(1)
        cluster.agent(1).fail()
        cluster.run(60)
        assert cluster.size == 4
    assert cluster.status.restarts.total == 5


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        pytest.param({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}, "fails", id="FailJob"),
        pytest.param(
            {"action": "RestartIgnoreBudget", "onExitCodes": {"operator": "In", "values": [42]}},
            "free",
            id="RestartIgnoreBudget",
        ),
        pytest.param(
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}}, "fails", id="NotIn"
        ),
        pytest.param({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}, "charged", id="no-match"),
    ],
)
def test_failure_rules(rule: dict[str, Any], outcome: str) -> None:
    cluster = started(spec=make_spec(2, 4, failurePolicy={"rules": [rule]}))
    cluster.agent(1).fail(42)
    cluster.run(30)
    if outcome == "fails":
        assert failed(cluster)[0] == "FailurePolicy"
    else:
        assert cluster.size == 4
        assert cluster.status.restarts.user == (1 if outcome == "charged" else 0)


def test_image_pull_error_is_a_clear_condition() -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.default_behaviour = "pull-error"
    cluster.run(60)
    found = cluster.status.condition("Degraded")
    assert found is not None
    assert found.reason == "ImagePullFailed"
    assert found.message == "digits-worker-0: ImagePullBackOff: not found"
    assert "ImagePullFailed" in cluster.told_events()


def test_bad_command_fails_the_job() -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.default_behaviour = "bad-command"
    cluster.run(30)
    reason, message = failed(cluster)
    assert reason == "StartError"
    assert "trian" in message


def test_bad_command_on_one_node_of_a_running_job_is_the_nodes_fault() -> None:
    cluster = started()
    cluster.behaviours = {4: "bad-command"}
    cluster.kill(0)
    cluster.run(60)
    assert cluster.size == 4
    assert cluster.status.restarts.user == 0


PLAIN = {"spec": {"containers": [{"name": "worker", "image": "i", "command": ["python", "train.py"]}]}}


def test_a_command_that_never_joins_fails_the_job() -> None:
    cluster = Cluster(make_spec(2, 4, template=PLAIN))
    cluster.default_behaviour = "exit0"
    cluster.run(30)
    reason, message = failed(cluster)
    assert reason == "NeverJoined"
    assert "torchrun" in message


def test_a_command_without_an_agent_is_told_after_a_minute() -> None:
    cluster = Cluster(make_spec(2, 2, template=PLAIN))
    cluster.default_behaviour = "plain"
    cluster.run(55)
    assert cluster.condition("Degraded") == ("True", "BelowWanted")
    cluster.run(10)
    assert cluster.condition("Degraded") == ("True", "NoAgent")
    found = cluster.status.condition("Degraded")
    assert found is not None
    assert found.message.startswith(
        "digits-worker-0, digits-worker-1: the command has been running for 60 s, but no elastic agent"
    )
    assert "torchrun" in found.message
    assert "NoAgent" in cluster.told_events()


def test_a_hang_that_something_hides_is_told_in_a_condition() -> None:
    """It may be work, so the world is not ended for it."""
    cluster = started()
    generation = cluster.generation
    agents = [pod.agent for pod in cluster.pods.values() if pod.agent is not None]
    agents[0].rest(beside=generation)
    cluster.run(1)
    assert cluster.status.condition("NoProgress") is None, "the others train"
    for agent in agents[1:]:
        agent.rest(quiet=generation)
    cluster.run(1)
    assert cluster.condition("NoProgress") == ("Unknown", "MaybeHung")
    found = cluster.status.condition("NoProgress")
    assert found is not None
    assert "digits-worker-0" in found.message and "digits-worker-1" not in found.message
    agents[0].rest()
    cluster.run(1)
    assert cluster.condition("NoProgress")[0] == "False"
    assert cluster.generation == generation


def test_a_world_without_a_step_is_told_after_ten_minutes() -> None:
    """Whether it is stuck is only known of a script that has reported steps before."""
    cluster = started()
    cluster.run(700)
    assert cluster.condition("NoProgress") == ("Unknown", "NotReported")
    cluster.report(0, step=1)
    cluster.run(1)
    assert cluster.condition("NoProgress")[0] == "False"
    cluster.kill(3)
    cluster.run(590)
    assert cluster.trains
    assert cluster.condition("NoProgress")[0] == "False"
    cluster.run(120)
    assert cluster.condition("NoProgress") == ("True", "NoStep")
    assert "NoProgress" in cluster.told_events()
    assert not cluster.status.goodput.training


def test_an_agent_that_cannot_start_its_workers_is_replaced() -> None:
    cluster = started()
    cluster.agent(3).deaf = True
    cluster.agent(1).fail()
    cluster.run(120)
    assert ("digits-worker-3", "it did not start within 30 s", False) in cluster.removed
    assert cluster.size == 4
    assert not any(pod.agent and pod.agent.deaf for pod in cluster.pods.values())


def test_an_agent_that_does_not_stop_its_workers_is_replaced() -> None:
    cluster = started()
    cluster.agent(3).deaf = True
    cluster.edit(replicas=3)
    cluster.edit(replicas=4)
    cluster.agent(1).fail()
    cluster.pace.notice = None
    cluster.run(400)
    assert cluster.size == 4


def test_an_agent_that_does_not_leave_an_old_world_is_replaced() -> None:
    cluster = started()
    cluster.agent(3).deaf = True
    cluster.pause(3, 10.0)
    cluster.pace.notice = None
    cluster.run(60)
    assert cluster.size == 3
    cluster.run(120)
    assert cluster.size == 4
    assert ("digits-worker-3", "its agent does not respond", False) in cluster.removed


def test_an_agent_that_never_starts_the_first_world_is_replaced() -> None:
    """Before the first step, too: found by a random history."""
    cluster = Cluster(make_spec(2, 2))
    cluster.run_until(lambda: len([p for p in cluster.pods.values() if p.agent]) == 2, 30)
    cluster.agent(0).deaf = True
    cluster.run(200)
    assert "digits-worker-0" in {name for name, _, _ in cluster.removed}
    assert cluster.trains
    assert cluster.size == 2


def test_a_store_that_nobody_reaches_is_blamed_on_its_host() -> None:
    cluster = started()
    cluster.unreachable = frozenset({cluster.pod(0).uid})
    cluster.agent(1).fail()
    cluster.run(120)
    assert ("digits-worker-0", "the others could not reach its store", False) in cluster.removed
    assert cluster.size == 4


def test_goodput_equals_the_scripts_own_clock() -> None:
    cluster = Cluster(make_spec(2, 4))
    trained = lost = 0.0
    cluster.run_until(lambda: cluster.trains)
    for index in (1, 2, 3):
        before = cluster.now
        cluster.run(100)
        trained += cluster.now - before
        cluster.agent(index).fail()
        before = cluster.now
        cluster.run_until(lambda: not cluster.trains)
        lost += cluster.run_until(lambda: cluster.trains)
    cluster.run(100)
    trained += 100
    cluster.finish()
    cluster.run(1)
    goodput = cluster.status.goodput
    assert goodput.training_seconds == pytest.approx(trained, abs=1)
    assert goodput.lost_seconds == pytest.approx(lost, abs=1)
    assert goodput.rescales == 3


def grown_too_far(**policy: int) -> Cluster:
    """A job that trained with two pods, was scaled to three, and fails in each world of three."""
    cluster = started(2, make_spec(policy.pop("least", 1), 4, replicas=2, elasticPolicy={"maxRestarts": 5, **policy}))
    cluster.run(60)
    cluster.edit(replicas=3)
    return cluster


def fail_in_a_world_of(cluster: Cluster, size: int) -> None:
    cluster.run_until(lambda: cluster.trains and cluster.size == size)
    cluster.agent(size - 1).fail(1, f"ValueError: 64 is not divisible by {size}")
    cluster.run(3)


@pytest.mark.parametrize(("max_restarts", "tries"), [(5, 2), (1, 2), (0, 1)])
def test_a_job_goes_back_from_a_size_at_which_its_script_cannot_start(max_restarts: int, tries: int) -> None:
    cluster = grown_too_far(maxRestarts=max_restarts)
    for _ in range(tries):
        fail_in_a_world_of(cluster, 3)
    cluster.run_until(lambda: cluster.trains and cluster.size == 2)
    cluster.run(100)
    assert cluster.size == 2 and cluster.status.phase is api.Phase.RUNNING
    assert cluster.status.restarts.user == 0, "it does not pay for the size that was asked for"
    degraded = cluster.status.condition("Degraded")
    assert degraded and (degraded.status, degraded.reason) == ("True", "SizeFailed")
    assert degraded.message == retreat.describe([3])
    cluster.edit(replicas=4)
    cluster.run_until(lambda: cluster.trains and cluster.size == 4)
    cluster.run(1)
    degraded = cluster.status.condition("Degraded")
    assert degraded is None or degraded.status == "False"


def test_a_size_that_a_loss_leaves_and_at_which_the_script_cannot_start_is_left_out() -> None:
    """`assert batches % world_size == 0`: four pods work, three do not, and no node has room for a fourth."""
    cluster = started(4, make_spec(1, 4, replicas=4, elasticPolicy={"maxRestarts": 5}))
    cluster.run(60)
    node = cluster.pod(1).record.node
    cluster.remove_node(node)
    for _ in range(2):
        fail_in_a_world_of(cluster, 3)
    cluster.run_until(lambda: cluster.trains and cluster.size == 2)
    cluster.run(100)
    assert cluster.size == 2 and cluster.status.phase is api.Phase.RUNNING
    assert cluster.status.restarts.user == 0, "it does not pay for a pod that was lost"
    degraded = cluster.status.condition("Degraded")
    assert degraded and (degraded.status, degraded.reason) == ("True", "SizeFailed")
    assert degraded.message == (
        "the script trained with another number of pods and failed at its start: no world has 3 until what may mend it"
        " changes, such as the template, or spec.replicas is set to such a size anew. Mend the script, or write the"
        " sizes that work as elasticPolicy.replicaIncrementStep or replicaDiscreteValues"
    )
    cluster.add_node("new")
    cluster.run_until(lambda: cluster.trains and cluster.size == 4)


def test_a_size_that_the_user_asks_for_and_at_which_the_script_cannot_start_is_left_out() -> None:
    cluster = started(4, make_spec(1, 4, replicas=4, elasticPolicy={"maxRestarts": 1}))
    cluster.run(60)
    cluster.edit(replicas=3)
    for _ in range(2):
        fail_in_a_world_of(cluster, 3)
    cluster.run_until(lambda: cluster.trains and cluster.size == 2)
    cluster.run(1)
    assert cluster.condition("Degraded") == ("True", "SizeFailed")
    cluster.edit(replicas=4)
    cluster.run_until(lambda: cluster.trains and cluster.size == 4)


METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}
]


def gone_back(**policy: Any) -> Cluster:
    """A job that was scaled from two to three pods, and does not start with three."""
    cluster = grown_too_far(**policy)
    for _ in range(2):
        fail_in_a_world_of(cluster, 3)
    cluster.run_until(lambda: cluster.trains and cluster.size == 2)
    return cluster


def test_an_autoscaler_does_not_let_a_job_try_again_a_size_that_failed() -> None:
    cluster = gone_back(metrics=METRICS)
    for replicas in (2, 3, 2, 3):
        cluster.edit(replicas=replicas)
        cluster.run(60)
        assert cluster.trains and cluster.size == 2
    assert cluster.status.restarts.total == 2


def test_a_change_that_mends_nothing_does_not_let_a_job_try_again_a_size_that_failed() -> None:
    cluster = gone_back()
    cluster.edit(runPolicy={"ttlSecondsAfterFinished": 60})
    cluster.run(60)
    assert cluster.trains and cluster.size == 2 and cluster.status.restarts.total == 2


def test_a_size_that_failed_is_tried_again_when_the_user_asks_for_it_anew() -> None:
    cluster = gone_back()
    cluster.edit(replicas=2)
    cluster.run(60)
    cluster.edit(replicas=3)
    cluster.run_until(lambda: cluster.trains and cluster.size == 3)


def test_a_size_that_failed_is_tried_again_when_the_template_has_changed() -> None:
    cluster = gone_back()
    container = {"name": "worker", "image": "training:2", "command": ["torchrun", "train.py"]}
    cluster.edit(template={"spec": {"containers": [container]}})
    cluster.run_until(lambda: cluster.trains and cluster.size == 3)


def test_a_job_grows_past_a_size_at_which_its_script_cannot_start() -> None:
    """It is scaled from two to four, has three at first, and `assert batches % world_size == 0`."""
    cluster = started(2, make_spec(1, 4, replicas=2), nodes=3)
    cluster.run(60)
    cluster.edit(replicas=4)
    for _ in range(2):
        fail_in_a_world_of(cluster, 3)
    cluster.run_until(lambda: cluster.trains and cluster.size == 2)
    cluster.add_node("new")
    cluster.run_until(lambda: cluster.trains and cluster.size == 4)


def test_without_another_size_the_job_fails_and_names_both() -> None:
    cluster = started(4, make_spec(3, 4, replicas=4, elasticPolicy={"maxRestarts": 2}))
    cluster.run(60)
    cluster.edit(replicas=3)
    for _ in range(3):
        fail_in_a_world_of(cluster, 3)
    assert failed(cluster)[0] == "MaxRestartsExceeded"
    assert "it trained with 4 pods and has failed with 3" in failed(cluster)[1]


def test_a_job_that_may_not_go_back_is_told_the_size_that_worked() -> None:
    cluster = started(2, make_spec(1, 3, replicas=2, elasticPolicy={"maxRestarts": 2}))
    cluster.run(60)
    cluster.edit(replicas=3, elasticPolicy={"minReplicas": 3, "maxReplicas": 3, "maxRestarts": 2})
    for _ in range(3):
        fail_in_a_world_of(cluster, 3)
    assert failed(cluster)[0] == "MaxRestartsExceeded"
    assert "64 is not divisible by 3" in failed(cluster)[1]
    assert "it trained with 2 pods and has failed with 3" in failed(cluster)[1]


def test_a_script_that_fails_at_every_size_does_not_move_between_them_for_ever() -> None:
    cluster = grown_too_far(maxRestarts=2)
    for size in (3, 3, 2, 2, 2):
        fail_in_a_world_of(cluster, size)
    assert failed(cluster)[0] == "MaxRestartsExceeded"


REFUSED = "elasticjob.errors.StepsDifferError: rank 1 has left block 4 without a step. Skip a step on all ranks or none"


def refuse(cluster: Cluster, step: int, message: str = REFUSED) -> None:
    """The script trains on, and then the runtime refuses what one of its ranks does."""
    cluster.run_until(lambda: cluster.trains)
    cluster.report(0, step=step)
    cluster.run(1)
    total = cluster.status.restarts.total
    cluster.agent(1).fail(1, message)
    cluster.run_until(lambda: cluster.status.restarts.total > total)


@pytest.mark.parametrize("second", [REFUSED, "elasticjob.errors.StepsDifferError: rank 0 has ended its training"])
def test_a_script_that_is_refused_again_fails_the_job_with_the_remedy(second: str) -> None:
    """Whatever it has trained in between, which gives the budget back: it would be refused for ever."""
    cluster = started()
    refuse(cluster, 10)
    assert not cluster.status.finished
    refuse(cluster, 50, second)
    reason, message = failed(cluster)
    assert reason == "ScriptRefused"
    assert "2 times" in message
    assert second.partition(": ")[2] in message


def test_a_refusal_is_forgotten_with_the_window_of_the_budget() -> None:
    cluster = started(spec=make_spec(2, 4, elasticPolicy={"restartWindowSeconds": 60}))
    refuse(cluster, 10)
    cluster.run(120)
    refuse(cluster, 50)
    cluster.run_until(lambda: cluster.trains)


def test_a_refusal_is_forgotten_with_the_script() -> None:
    cluster = started()
    refuse(cluster, 10)
    container = {"name": "worker", "image": "training:2", "command": ["torchrun", "train.py"]}
    cluster.edit(template={"spec": {"containers": [container]}})
    cluster.run(60)
    refuse(cluster, 50)
    cluster.run_until(lambda: cluster.trains)


def test_an_error_of_the_script_is_no_refusal() -> None:
    cluster = started()
    for step in (10, 50, 90):
        refuse(cluster, step, "mine.StepsDifferError: x")
    cluster.run_until(lambda: cluster.trains)


def test_a_rule_of_the_job_decides_what_a_refusal_means() -> None:
    rules = [{"action": "Restart", "onExitCodes": {"operator": "In", "values": [1]}}]
    cluster = started(spec=make_spec(2, 4, failurePolicy={"rules": rules}))
    for step in (10, 50, 90):
        refuse(cluster, step)
    cluster.run_until(lambda: cluster.trains)
    told = [one for one in cluster.told.values() if isinstance(one, wire.World)]
    assert told and not any(one.repeats for one in told), "no older save mends a script that trains in between"
