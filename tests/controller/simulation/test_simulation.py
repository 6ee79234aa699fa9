"""Scenarios of size and capacity in the simulated cluster: start, grow, shrink, lose, wait, resume."""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster
from elasticjob_operator.api import wire


def started(size: int = 4, **fields: object) -> Cluster:
    """A job with 2..4 replicas whose world of this size trains."""
    spec = fields.pop("spec", None) or make_spec(2, 4)
    cluster = Cluster(spec, **fields)  # type: ignore[arg-type]
    cluster.run_until(lambda: cluster.size == size)
    cluster.run(1)
    return cluster


def test_start() -> None:
    cluster = Cluster(make_spec(2, 4))
    assert cluster.run_until(lambda: cluster.trains) < 4
    assert cluster.world == ["digits-worker-0", "digits-worker-1", "digits-worker-2", "digits-worker-3"]
    assert cluster.generation == 1
    assert cluster.told_events() == ["WorldFormed"]
    assert cluster.condition("Running") == ("True", "WorldRunning")
    assert cluster.status.ready_replicas == 4


def test_start_below_max_with_unschedulable_rest() -> None:
    cluster = Cluster(make_spec(2, 4), nodes=3)
    assert cluster.run_until(lambda: cluster.trains) < 5, "what cannot be scheduled holds nobody up"
    assert cluster.size == 3
    assert cluster.condition("Degraded") == ("True", "Unschedulable")


def test_start_waits_for_stragglers_that_are_on_their_way() -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.behaviours = {3: "slow"}
    cluster.run_until(lambda: cluster.trains)
    assert (cluster.size, cluster.generation) == (4, 1), "nobody trains in between"


def test_start_does_not_wait_for_a_pull() -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.behaviours = {3: "pull-error"}
    cluster.run_until(lambda: cluster.trains)
    assert cluster.size == 3


def test_grow_admits_joiners_that_are_seconds_apart_together() -> None:
    cluster = started(spec=make_spec(2, 4, replicas=2), size=2)
    generation = cluster.generation
    cluster.behaviours = {3: "slow"}
    cluster.edit(replicas=4)
    cluster.run_until(lambda: cluster.size == 4)
    assert cluster.generation == generation + 1
    assert cluster.world[:2] == ["digits-worker-0", "digits-worker-1"], "survivors keep their ranks"
    assert cluster.status.restarts.total == 0


def test_grow_disturbs_nobody_before_the_newcomer_is_ready() -> None:
    cluster = started(spec=make_spec(2, 4, replicas=2), size=2)
    cluster.behaviours = {2: "pull-error"}
    cluster.edit(replicas=3)
    cluster.run(120)
    assert (cluster.size, cluster.generation) == (2, 1)
    assert cluster.condition("Degraded") == ("True", "ImagePullFailed")


def test_shrink() -> None:
    cluster = started()
    cluster.edit(replicas=2)
    cluster.run_until(lambda: cluster.size == 2)
    cluster.run(5)
    assert cluster.world == ["digits-worker-0", "digits-worker-1"]
    assert [name for name, *_ in cluster.removed] == ["digits-worker-2", "digits-worker-3"]
    assert all(not force for *_, force in cluster.removed)
    assert len(cluster.pods) == 2
    assert cluster.status.restarts == cluster.status.restarts.model_copy(update={"user": 0, "infrastructure": 0})
    regroup = [
        d for p in cluster.plans for d in p.directives.values() if isinstance(d, wire.Regroup) and d.generation == 1
    ]
    assert {d.checkpoint for d in regroup} == {True}, "the announced change saves first"


@pytest.mark.parametrize(
    ("lost", "survivors"),
    [
        pytest.param((2,), [0, 1, 3], id="follower"),
        pytest.param((0,), [1, 2, 3], id="rank-0"),
        pytest.param((0, 1), [2, 3], id="two-at-once"),
    ],
)
def test_loss(lost: tuple[int, ...], survivors: list[int]) -> None:
    cluster = started()
    for index in lost:
        cluster.kill(index)
    assert cluster.run_until(lambda: cluster.size == len(survivors)) < 2, "nothing waits for a timer"
    assert cluster.world == [f"digits-worker-{i}" for i in survivors], "ranks are sticky"
    cluster.run_until(lambda: cluster.size == 4)
    assert cluster.world[: len(survivors)] == [f"digits-worker-{i}" for i in survivors]
    cluster.run(60)
    assert cluster.status.restarts.user == 0, "lost pods are free"
    assert cluster.status.restarts.infrastructure >= 1
    assert "MemberLost" in cluster.told_events()


def test_loss_of_all() -> None:
    cluster = started()
    for index in range(4):
        cluster.kill(index)
    cluster.run_until(lambda: cluster.size == 4)
    assert cluster.generation == 2
    assert cluster.status.restarts.user == 0


def test_loss_below_min_waits_and_resumes() -> None:
    cluster = Cluster(make_spec(3, 4), nodes=3)
    cluster.run_until(lambda: cluster.size == 3)
    cluster.remove_node("node1")
    cluster.run(400)
    assert cluster.size == 0
    assert not cluster.status.finished
    assert cluster.condition("Running")[0] == "False"
    cluster.add_node("node9")
    cluster.run_until(lambda: cluster.size == 3)
    assert cluster.generation == 2


def test_spares_replace_a_lost_member_at_once() -> None:
    cluster = started(spec=make_spec(2, 3, elasticPolicy={"spares": 1}), size=3, boot=60.0)
    cluster.run(90)
    assert len(cluster.pods) == 4
    cluster.kill(1)
    cluster.run_until(lambda: cluster.trains and cluster.generation == 2)
    assert cluster.world == ["digits-worker-0", "digits-worker-2", "digits-worker-3"]
    cluster.run(120)
    assert len(cluster.pods) == 4, "the spare is replaced"
    assert cluster.generation == 2, "and disturbs nobody"


@pytest.mark.parametrize(
    ("elastic", "nodes", "size"),
    [
        pytest.param({"replicaIncrementStep": 2}, 5, 4, id="step-rest-waits"),
        pytest.param({"replicaIncrementStep": 2}, 6, 6, id="step-all"),
        pytest.param({"replicaDiscreteValues": [2, 6]}, 5, 2, id="values-rest-waits"),
        pytest.param({"replicaDiscreteValues": [2, 6]}, 6, 6, id="values-all"),
        pytest.param({"mesh": [{"name": "dp"}, {"name": "tp", "size": 2}]}, 5, 4, id="copies-rest-waits"),
        pytest.param({"mesh": [{"name": "dp"}, {"name": "tp", "size": 2}]}, 6, 6, id="copies-all"),
    ],
)
def test_only_legal_worlds(elastic: dict[str, object], nodes: int, size: int) -> None:
    cluster = Cluster(make_spec(2, 6, elasticPolicy=elastic), nodes=nodes)
    cluster.run(200)
    assert cluster.size == size
    assert {len(p.status.rendezvous.members) for p in cluster.plans} <= {0, size}


INNER = [{"name": "dp"}, {"name": "pp", "size": 2}, {"name": "tp", "size": 2}]
OUTER = [{"name": "pp", "size": 2}, {"name": "dp"}, {"name": "tp", "size": 2}]


@pytest.mark.parametrize(
    ("mesh", "left", "whole"),
    [
        pytest.param(INNER, "0 1 2 3 8 9 10 11 12 13 14 15", "0 1 2 3 8 9 10 11 12 13 14 15 4 6 7 16", id="neighbours"),
        pytest.param(
            OUTER, "0 1 8 9 12 13 2 3 10 11 14 15", "0 1 8 9 12 13 4 6 2 3 10 11 14 15 7 16", id="stages-far-away"
        ),
    ],
)
def test_a_loss_costs_one_copy_of_the_model(mesh: list[dict[str, object]], left: str, whole: str) -> None:
    """16 ranks, tensor 2 x pipeline 2. The others of the copy wait for the successor of the pod that is lost."""
    cluster = started(size=16, spec=make_spec(4, 16, elasticPolicy={"mesh": mesh}), nodes=16)
    assert cluster.generation == 1

    def ranks() -> list[str]:
        return [pod.removeprefix("digits-worker-") for pod in cluster.world]

    cluster.kill(5)
    cluster.run_until(lambda: cluster.trains and cluster.generation == 2)
    assert " ".join(ranks()) == left
    cluster.run_until(lambda: cluster.trains and cluster.generation == 3)
    assert " ".join(ranks()) == whole
    assert cluster.status.restarts.total == 0


def test_a_spare_has_the_place_of_a_lost_pod_in_its_copy() -> None:
    cluster = started(size=8, spec=make_spec(4, 8, elasticPolicy={"mesh": INNER, "spares": 1}), nodes=10, boot=60.0)
    cluster.run(90)
    cluster.kill(5)
    cluster.run_until(lambda: cluster.trains and cluster.generation == 2)
    assert cluster.world == [f"digits-worker-{number}" for number in (0, 1, 2, 3, 4, 8, 6, 7)]


def test_a_smaller_job_has_whole_copies() -> None:
    cluster = started(size=12, spec=make_spec(4, 12, elasticPolicy={"mesh": OUTER}), nodes=12)
    before = [cluster.world[at : at + 2] for at in (0, 2, 4, 6, 8, 10)]
    cluster.edit(replicas=8)
    cluster.run_until(lambda: cluster.size == 8)
    assert [cluster.world[at : at + 2] for at in (0, 2, 4, 6)] == [before[0], before[1], before[3], before[4]]
    cluster.run(60)
    assert len(cluster.pods) == 8
    assert cluster.generation == 2


def test_pods_that_fit_no_legal_world_are_not_made() -> None:
    cluster = Cluster(make_spec(2, 5, elasticPolicy={"replicaIncrementStep": 2}), nodes=5)
    cluster.run(60)
    assert (cluster.size, len(cluster.pods)) == (4, 4)


def test_change_of_max_and_replicas_on_a_running_job() -> None:
    cluster = started(nodes=6)
    cluster.edit(max=6, replicas=6)
    cluster.run_until(lambda: cluster.size == 6)
    cluster.edit(max=3, replicas=3)
    cluster.run_until(lambda: cluster.size == 3)
    cluster.run(10)
    assert len(cluster.pods) == 3


def test_change_of_min_on_a_running_job() -> None:
    cluster = started(size=2, spec=make_spec(2, 4, replicas=2))
    cluster.edit(min=3, replicas=4)
    cluster.run(30)
    assert cluster.size == 4
    cluster.edit(min=1, replicas=1)
    cluster.run_until(lambda: cluster.size == 1)


def test_change_of_legal_sizes_on_a_running_job() -> None:
    cluster = started(size=3, spec=make_spec(2, 4, replicas=3))
    elastic = cluster.spec.elastic_policy.model_copy(update={"replica_discrete_values": [2, 4]})
    cluster.edit(elasticPolicy=elastic.dump())
    cluster.run_until(lambda: cluster.size == 2)


def test_replicas_are_filled_in_for_the_scale_subresource() -> None:
    cluster = started()
    assert cluster.spec.replicas == 4
    assert cluster.status.selector == "elasticjob.dev/job-name=digits"
    assert cluster.status.replicas == 4


# --- capacity --------------------------------------------------------------------------------------------


def test_extras_without_room_are_withdrawn_and_tried_again() -> None:
    cluster = Cluster(make_spec(2, 4), nodes=2)
    cluster.run(59)
    assert len(cluster.pods) == 4
    cluster.run(5)
    assert len(cluster.pods) == 2, "nothing pends for ever"
    assert cluster.condition("Degraded") == ("True", "Unschedulable")
    made = cluster.made
    cluster.run(3600)
    assert 2 <= cluster.made - made <= 14, "the tries come with back-off"
    assert (cluster.size, cluster.generation) == (2, 1)
    cluster.add_node("node8")
    cluster.add_node("node9")
    cluster.run_until(lambda: cluster.size == 4, limit=2500)
    assert cluster.status.capacity is None


def test_room_that_appears_is_taken_in() -> None:
    cluster = Cluster(make_spec(2, 4), nodes=2)
    cluster.run(20)
    cluster.add_node("node8")
    cluster.add_node("node9")
    cluster.run(90)
    assert (cluster.size, cluster.generation) == (4, 2)


def test_a_change_by_the_user_is_tried_at_once() -> None:
    cluster = Cluster(make_spec(2, 4), nodes=2)
    cluster.run(600)
    cluster.add_node("node8")
    cluster.edit(replicas=3)
    assert cluster.run_until(lambda: cluster.size == 3) < 10


@pytest.mark.parametrize("period", [10, 20, 30, 45])
@pytest.mark.parametrize("timeout", [pytest.param(60, id="default"), pytest.param(10, id="withdrawn-between")])
def test_oscillating_capacity_causes_at_most_one_rescale(timeout: int, period: int) -> None:
    cluster = started(spec=make_spec(2, 4, elasticPolicy={"scalingTimeoutSeconds": timeout}))
    cluster.run(60)
    before = cluster.status.goodput.rescales
    for _ in range(20):
        for name in ("node2", "node3"):
            if name in cluster.nodes:
                cluster.remove_node(name)
        cluster.run(period)
        cluster.add_node("node2")
        cluster.add_node("node3")
        cluster.run(period)
    assert cluster.status.goodput.rescales - before <= 1
    assert cluster.size == 2
    cluster.run(800)
    assert cluster.size == 4, "room that stays is used"


def test_no_growth_for_a_gain_smaller_than_its_cost() -> None:
    cluster = started(spec=make_spec(2, 4, replicas=2), size=2)
    cluster.kill(1)
    cluster.run_until(lambda: cluster.size == 2)
    cluster.run(20)
    cluster.report(cluster.member(0).record.index, step=998, total=1000, seconds=1.0)
    cluster.run(1)
    generation = cluster.generation
    cluster.edit(replicas=4)
    cluster.run(50)
    assert cluster.generation == generation, "two seconds of work are left"


# --- agents and the operator -----------------------------------------------------------------------------


def test_paused_agent_is_fenced_and_comes_back() -> None:
    cluster = started()
    paused = cluster.agent(2)
    cluster.pause(2, 15.0)
    cluster.run_until(lambda: cluster.size == 3)
    assert paused.phase is wire.AgentPhase.RUNNING, "it does not know yet"
    cluster.run_until(lambda: not paused.paused)
    assert cluster.run_until(lambda: paused.phase is not wire.AgentPhase.RUNNING) < 1
    cluster.run_until(lambda: cluster.size == 4)
    assert cluster.world[-1] == "digits-worker-2"
    assert len(cluster.created) == 4, "nobody was replaced"


def test_paused_agent_that_the_others_wait_for_is_given_up_at_once() -> None:
    cluster = started()
    held = cluster.agent(2)
    cluster.hold_up(2, 15.0)
    assert cluster.run_until(lambda: cluster.size == 3) < cluster.pace.silence
    assert held.connected and held.phase is wire.AgentPhase.RUNNING, "it does not know yet"
    cluster.run_until(lambda: cluster.size == 4)
    assert cluster.world[-1] == "digits-worker-2"
    assert len(cluster.created) == 4, "nobody was replaced"
    assert cluster.status.restarts.infrastructure == 1


def test_agent_that_never_answers_again_is_replaced() -> None:
    cluster = started()
    cluster.pause(2, 10_000.0)
    cluster.run_until(lambda: cluster.size == 3)
    cluster.run(40)
    assert ("digits-worker-2", "its agent does not respond", False) in cluster.removed
    cluster.run_until(lambda: cluster.size == 4)


def test_all_agents_silent_is_the_operators_trouble() -> None:
    cluster = started()
    for index in range(4):
        cluster.cut_off(cluster.agent(index))
    cluster.run(300)
    assert cluster.trains, "training goes on without a hub"
    assert not cluster.removed
    assert len(cluster.created) == 4
    cluster.heal_partition()
    cluster.run(30)
    assert (cluster.size, cluster.generation) == (4, 1), "the hub believes them and disturbs nothing"


def test_lone_member_that_is_silent_is_not_replaced_before_it_is_dead() -> None:
    cluster = started(spec=make_spec(1, 2, replicas=1), size=1)
    cluster.pause(0, 20.0)
    cluster.edit(replicas=2)
    cluster.run(18)
    assert cluster.generation == 1, "it may still train: never two worlds at once"
    cluster.run(20)
    assert cluster.size == 2


def bring_to(phase: str, cluster: Cluster) -> None:
    """Takes a job to this point of its life."""
    if phase == "starting":
        cluster.run(1.0)
        return
    if phase == "announced":
        cluster.run_until(lambda: cluster.generation == 1)
        return
    cluster.run_until(lambda: cluster.trains)
    if phase == "regrouping":
        cluster.edit(replicas=3)
        cluster.run(0.5)
    elif phase == "after-a-loss":
        cluster.kill(0)
        cluster.run(0.2)
    elif phase == "suspending":
        cluster.edit(suspend=True)
        cluster.run(0.5)
        cluster.edit(suspend=False)
    elif phase == "failing":
        cluster.agent(1).fail(3)
        cluster.run(0.15)


PHASES = ["after-a-loss", "announced", "failing", "regrouping", "running", "starting", "suspending"]


@pytest.mark.parametrize("away", [pytest.param(0.5, id="short"), pytest.param(30.0, id="long")])
@pytest.mark.parametrize("phase", PHASES)
def test_operator_restart(phase: str, away: float) -> None:
    undisturbed, cluster = Cluster(make_spec(2, 4)), Cluster(make_spec(2, 4))
    for c in (undisturbed, cluster):
        bring_to(phase, c)
    cluster.restart_operator(away)
    for c in (undisturbed, cluster):
        c.run(away + 60)
    assert cluster.size == undisturbed.size == cluster.spec.wanted
    assert len(cluster.pods) == cluster.spec.wanted
    assert cluster.status.restarts.user == undisturbed.status.restarts.user


def test_operator_restart_while_running_disturbs_nothing() -> None:
    cluster = started()
    cluster.restart_operator(120.0)
    cluster.run(200)
    assert (cluster.size, cluster.generation) == (4, 1)
    assert not cluster.removed


@pytest.mark.parametrize("writes", range(12))
def test_operator_crash_between_two_writes(writes: int) -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.crash_after = writes
    cluster.run_until(lambda: cluster.trains)
    cluster.crash_after = writes // 3
    cluster.kill(0)
    cluster.run(5)
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(30)
    assert len(cluster.pods) == 4


@pytest.mark.parametrize(
    ("elastic", "replicas", "size"),
    [
        ({"replicaDiscreteValues": [3, 1]}, 2, 1),
        ({"replicaIncrementStep": 2}, 4, 3),
        ({"mesh": [{"name": "data"}, {"name": "tensor", "size": 2}]}, 5, 4),
    ],
)
def test_a_size_that_is_not_allowed_is_told_with_the_field(
    elastic: dict[str, object], replicas: int, size: int
) -> None:
    cluster = Cluster(make_spec(1, 6, replicas=replicas, elasticPolicy=elastic))
    cluster.run_until(lambda: cluster.size == size)
    cluster.run(60)
    found = cluster.status.condition("Degraded")
    assert found is not None
    assert found.message.startswith(
        f"{size} of {replicas} requested pods are training: {size} is the largest legal size of at most {replicas}"
    )
    assert f"elasticPolicy.{next(iter(elastic))}" in found.message
