"""Scenarios of leaving nodes and pods: drain, taint, eviction, dead nodes, pods that do not terminate."""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster
from elasticjob_operator.api import wire


def started(size: int = 4, **fields: object) -> Cluster:
    spec = fields.pop("spec", None) or make_spec(2, 4)
    cluster = Cluster(spec, **fields)  # type: ignore[arg-type]
    cluster.run_until(lambda: cluster.size == size)
    cluster.run(60)
    return cluster


def saved(cluster: Cluster, generation: int) -> set[bool]:
    """Whether the members were told to checkpoint at the end of this generation."""
    return {
        d.checkpoint
        for p in cluster.plans
        for d in p.directives.values()
        if isinstance(d, wire.Regroup) and d.generation == generation
    }


def test_drain_above_min() -> None:
    cluster = started()
    cluster.change_node("node1", cordoned=True)
    cluster.run_until(lambda: cluster.size == 3)
    assert cluster.world == ["digits-worker-0", "digits-worker-2", "digits-worker-3"]
    assert saved(cluster, 1) == {True}, "the signal comes before the node goes"
    cluster.run(10)
    assert ("digits-worker-1", "drain", False) in cluster.removed
    assert cluster.status.restarts.infrastructure == 0


def test_drain_at_min_waits_for_the_replacement() -> None:
    cluster = started(spec=make_spec(2, 2), size=2, nodes=2)
    cluster.change_node("node1", cordoned=True)
    cluster.run(300)
    assert (cluster.size, cluster.generation) == (2, 1), "min is never given up by our own hand"
    assert not cluster.removed
    cluster.add_node("node7")
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert [m.node for m in cluster.status.rendezvous.members] == ["node0", "node7"]


def test_the_last_pod_of_nodes_that_are_drained_trains_until_it_has_to_go() -> None:
    """Its budget keeps it there, and there is no room elsewhere."""
    cluster = started(spec=make_spec(1, 2), size=2, nodes=2)
    for node in cluster.nodes:
        cluster.change_node(node, cordoned=True)
    cluster.run(1)
    assert cluster.generation == 1
    cluster.delete_pod(cluster.pod(0).uid)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.world == ["digits-worker-1"]
    cluster.run(300)
    assert (cluster.size, cluster.generation) == (1, 2)
    cluster.add_node("node7", slots=2)
    cluster.run_until(lambda: cluster.size == 2 and cluster.trains)
    assert {m.node for m in cluster.status.rendezvous.members} == {"node7"}
    assert [saved(cluster, generation) for generation in (1, 2)] == [{True}, {True}]
    assert cluster.status.restarts.total == 0


def test_pods_of_nodes_that_are_drained_train_with_one_that_has_found_room() -> None:
    """It is too few without them. A pod that is in no world yet would be replaced."""
    cluster = started(spec=make_spec(3, 3), size=3, nodes=3)
    for node in cluster.nodes:
        cluster.change_node(node, cordoned=True)
    cluster.delete_pod(cluster.pod(0).uid)
    cluster.run(60)
    cluster.add_node("node7", slots=1)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert [m.node for m in cluster.status.rendezvous.members] == ["node1", "node2", "node7"]
    cluster.run(300)
    assert (cluster.size, cluster.generation) == (3, 2)


def test_uncordon_keeps_the_pod() -> None:
    cluster = started(spec=make_spec(2, 2), size=2, nodes=2)
    cluster.change_node("node1", cordoned=True)
    cluster.run(20)
    cluster.change_node("node1", cordoned=False)
    cluster.run(300)
    assert (cluster.size, cluster.generation) == (2, 1)
    assert len(cluster.pods) == 2


def test_eviction_by_a_drain_is_a_graceful_leave() -> None:
    cluster = started()
    cluster.disrupt(3)
    cluster.run_until(lambda: cluster.size == 3)
    assert saved(cluster, 1) == {True}
    cluster.run_until(lambda: cluster.size == 4)
    assert "MemberLost" not in cluster.told_events()
    assert cluster.status.restarts.infrastructure == 0


def test_eviction_of_rank_0() -> None:
    cluster = started()
    cluster.disrupt(0)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.world[0] == "digits-worker-1"


def test_disruption_target_before_the_deletion() -> None:
    cluster = started()
    cluster.pod(2).update(disruption="PreemptionByScheduler")
    cluster.run_until(lambda: cluster.size == 3)
    assert "digits-worker-2" not in cluster.world
    assert saved(cluster, 1) == {True}


def test_spot_taint() -> None:
    cluster = started(nodes=5)
    cluster.change_node("node0", leaving="aws-node-termination-handler/spot-itn")
    cluster.run_until(lambda: cluster.trains and "node0" not in [m.node for m in cluster.status.rendezvous.members])
    cluster.remove_node("node0")
    cluster.run_until(lambda: cluster.size == 4)
    assert cluster.status.restarts.infrastructure == 0, "the node was empty when it went"


def test_spot_taint_at_min_trains_until_the_end() -> None:
    cluster = started(spec=make_spec(2, 2), size=2, nodes=2)
    cluster.change_node("node1", leaving="spot")
    cluster.run(100)
    assert cluster.size == 2
    cluster.delete_pod(cluster.pod(1).uid)
    cluster.run(10)
    assert saved(cluster, 1) == {True}, "it saves when the pod has to go"
    assert cluster.size == 0
    cluster.add_node("node7")
    cluster.run_until(lambda: cluster.size == 2)


def test_a_pod_with_an_unhealthy_device_is_replaced() -> None:
    cluster = started()
    sick = cluster.pod(1)
    sick.update(sick_device="nvidia.com/gpu GPU-1")
    cluster.run_until(lambda: cluster.size == 4 and cluster.generation > 1 and cluster.trains)
    assert saved(cluster, 1) == {True}, "it could still train"
    assert sick.uid not in cluster.pods
    assert ("digits-worker-1", "device", False) in cluster.removed
    assert cluster.status.restarts.total == 0
    assert cluster.status.node_faults == [], "the node's other devices are healthy"


def test_unhealthy_devices_everywhere_stop_nobody_at_min() -> None:
    cluster = started(spec=make_spec(2, 2), size=2, nodes=2)
    for index in range(2):
        cluster.pod(index).update(sick_device="nvidia.com/gpu GPU-1")
    for node in cluster.nodes:
        cluster.change_node(node, cordoned=True)  # no room for others
    cluster.run(300)
    assert (cluster.size, cluster.generation) == (2, 1)


def test_deleted_pod_leaves_gracefully_and_is_replaced() -> None:
    cluster = started()
    cluster.delete_pod(cluster.pod(1).uid)
    cluster.run_until(lambda: cluster.size == 3)
    assert saved(cluster, 1) == {True}
    cluster.run_until(lambda: cluster.size == 4)


def test_all_pods_deleted_at_once() -> None:
    cluster = started()
    for index in range(4):
        cluster.delete_pod(cluster.pod(index).uid)
    cluster.run_until(lambda: cluster.size == 4 and cluster.generation == 2)
    assert not cluster.status.finished, "exit code 0 of those that leave is no success"


def test_dead_node_is_replaced_without_a_terminating_deadlock() -> None:
    cluster = started(nodes=5)
    cluster.kill_node("node2")
    assert cluster.run_until(lambda: cluster.size == 3) < 8, "by the agents' silence, not by the node's status"
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(60)
    assert ("digits-worker-2", "its node or its processes do not respond", True) in cluster.removed
    assert [m.node for m in cluster.status.rendezvous.members][-1] == "node4"
    assert cluster.status.restarts.infrastructure == 1
    cluster.run(300)
    assert cluster.size == 4


def test_unready_node_whose_agent_answers_is_left_alone() -> None:
    cluster = started()
    cluster.change_node("node2", ready=False, not_ready_since=cluster.now)
    cluster.run(300)
    assert (cluster.size, cluster.generation) == (4, 1)


def test_pod_that_ignores_its_deletion_is_forced() -> None:
    cluster = started(nodes=5)
    cluster.nodes["node3"].alive = False  # its kubelet; the processes go on
    cluster.delete_pod(cluster.pod(3).uid)
    cluster.run(120)
    assert any(name == "digits-worker-3" and force for name, _, force in cluster.removed)
    assert cluster.size == 4


def test_flapping_node_is_avoided() -> None:
    cluster = started(nodes=5)
    for _ in range(2):
        cluster.kill_node("node2", noticed_after=1.0)
        cluster.run(120)
        cluster.revive_node("node2")
        victim = cluster.pod(2) if any(p.record.index == 2 for p in cluster.pods.values()) else None
        if victim is not None and victim.record.node != "node2":
            cluster.remove_node(victim.record.node)
            cluster.run(200)
    avoid = {n for p in cluster.plans for new in p.create for n in new.avoid}
    assert "node2" in avoid


@pytest.mark.parametrize("clean", [pytest.param(True, id="exits"), pytest.param(False, id="killed")])
def test_a_leaver_that_vanishes_does_not_cut_the_others_checkpoint(clean: bool) -> None:
    cluster = started(checkpoint=5.0)
    cluster.delete_pod(cluster.pod(3).uid, grace=30 if clean else 1.0)
    cluster.run_until(lambda: cluster.generation > 1 and cluster.trains)
    told = [d for p in cluster.plans for u, d in p.directives.items() if isinstance(d, wire.Regroup)]
    assert all(d.checkpoint for d in told if d.generation == 1)
