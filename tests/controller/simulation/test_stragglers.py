"""Scenarios of slow nodes: named, replaced by a spare or by a new pod, or kept where there is no other."""

from __future__ import annotations

from typing import Any

from controller.builders import make_spec
from controller.simulated_cluster import Cluster


def training(wish: str | None = "Replace", *, nodes: int, size: int = 3, **fields: Any) -> Cluster:
    """A job of three pods whose agents report one second for a step."""
    health = {} if wish is None else {"stragglers": wish}
    cluster = Cluster(make_spec(2, size, health=health, **fields), nodes=nodes)
    cluster.step_seconds = {f"node{index}": 1.0 for index in range(nodes)}
    cluster.run_until(lambda: cluster.size == size and cluster.trains)
    cluster.run(120)
    assert cluster.status.stragglers == []
    return cluster


def slow_down(cluster: Cluster, node: str, seconds: float = 2.0) -> None:
    """From now on, the agents of this node report that they need this long."""
    cluster.step_seconds[node] = seconds
    for pod in cluster.pods.values():
        if pod.agent is not None:
            cluster.hear(pod.agent)


def nodes_of_world(cluster: Cluster) -> set[str]:
    return {member.node for member in cluster.status.rendezvous.members}


def test_a_slow_node_is_named_and_nothing_else_happens() -> None:
    cluster = training("Report", nodes=4)
    slow_down(cluster, "node1")
    cluster.run(600)
    (found,) = cluster.status.stragglers
    assert (found.rank, found.pod, found.node) == (1, "digits-worker-1", "node1")
    assert cluster.told_events().count("Straggler") == 1
    assert (cluster.generation, len(cluster.pods)) == (1, 3)
    slow_down(cluster, "node1", 1.0)
    cluster.run(10)
    assert cluster.status.stragglers == []


def test_nothing_is_judged_unless_the_job_asks_for_it() -> None:
    cluster = training(None, nodes=4)
    slow_down(cluster, "node1")
    cluster.run(600)
    assert cluster.status.stragglers == []


def test_a_new_pod_on_another_node_takes_its_place() -> None:
    cluster = training(nodes=4)
    slow_down(cluster, "node1")
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.status.rendezvous.reason == "straggler"
    assert nodes_of_world(cluster) == {"node0", "node2", "node3"}
    cluster.run(600)
    assert (cluster.generation, cluster.size, len(cluster.pods)) == (2, 3, 3)
    assert ("digits-worker-1", "straggler", False) in cluster.removed
    assert cluster.status.stragglers == []
    assert (cluster.status.restarts.total, cluster.status.restarts.infrastructure) == (0, 0)


def test_a_spare_takes_its_place_at_once() -> None:
    cluster = training(nodes=5, elasticPolicy={"spares": 1})
    before = cluster.now
    slow_down(cluster, "node1")
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.now - before < 5, "it does not wait for a new pod"
    cluster.run(600)
    assert "node1" not in nodes_of_world(cluster)
    assert (cluster.generation, cluster.size, len(cluster.pods)) == (2, 3, 4)


def test_without_another_node_the_job_keeps_its_size() -> None:
    cluster = training(nodes=3)
    slow_down(cluster, "node1")
    cluster.run(1700)
    assert (cluster.generation, cluster.size) == (1, 3)
    assert len(cluster.status.stragglers) == 1
    assert all(pod.record.node for pod in cluster.pods.values()), "no pod is left that waits for room"
    cluster.add_node("node9")
    cluster.step_seconds["node9"] = 1.0
    cluster.run(300)
    assert nodes_of_world(cluster) == {"node0", "node2", "node9"}, "it is tried again"


def test_a_program_that_is_slow_on_one_rank_is_not_replaced_over_and_over() -> None:
    cluster = training(nodes=6)
    for _ in range(4):
        members = cluster.status.rendezvous.members
        slow_down(cluster, members[-1].node, 3.0)
        cluster.run(400)
    assert cluster.generation == 2


def test_a_failure_meanwhile_does_not_shrink_the_world() -> None:
    cluster = training(nodes=3)
    slow_down(cluster, "node1")
    cluster.run(5)
    agent = next(pod.agent for pod in cluster.pods.values() if pod.record.node == "node0")
    assert agent is not None
    agent.fail()
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.size == 3
    assert nodes_of_world(cluster) == {"node0", "node1", "node2"}


def test_an_operator_that_starts_anew_goes_on_with_the_replacement() -> None:
    cluster = training(nodes=4)
    slow_down(cluster, "node1")
    cluster.run(1)
    cluster.restart_operator(2.0)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    cluster.run(60)
    assert nodes_of_world(cluster) == {"node0", "node2", "node3"}
    assert len(cluster.pods) == 3
