"""A session that has to begin again after a change of the world: that is no failure of its script, nor of its node."""

from __future__ import annotations

from controller.builders import make_spec
from controller.simulated_cluster import Cluster


def test_a_session_that_begins_again_costs_nothing() -> None:
    cluster = Cluster(make_spec(2, 4), nodes=5)
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(60)
    member = cluster.status.rendezvous.members[2]
    agent = next(pod.agent for pod in cluster.pods.values() if pod.uid == member.uid)
    assert agent is not None
    agent.begin_again()
    cluster.run_until(lambda: cluster.size == 4 and cluster.generation > 1 and cluster.trains)
    status = cluster.status
    assert (status.restarts.user, status.restarts.total, status.restarts.infrastructure) == (0, 0, 1)
    assert status.node_faults == []
    assert member.uid in {one.uid for one in status.rendezvous.members}, "its pod stays"
    assert status.last_failure is not None
    assert (status.last_failure.reason, status.last_failure.rank) == ("SessionRestarted", 2)
    assert "had gone on from epoch 3 to 4" in (status.last_failure.message or "")
