"""A member whose replica of the training state became wrong: its node is at fault, and nobody else."""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster


@pytest.mark.parametrize("rank", [0, 2])
def test_it_is_replaced_elsewhere_and_costs_nothing(rank: int) -> None:
    cluster = Cluster(make_spec(2, 4), nodes=5)
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(60)
    member = cluster.status.rendezvous.members[rank]
    agent = next(pod.agent for pod in cluster.pods.values() if pod.uid == member.uid)
    assert agent is not None
    agent.become_corrupt()
    cluster.run_until(lambda: cluster.size == 4 and cluster.generation > 1 and cluster.trains)
    cluster.run(60)
    status = cluster.status
    assert (status.restarts.user, status.restarts.total, status.restarts.infrastructure) == (0, 0, 1)
    assert [(fault.node, fault.count) for fault in status.node_faults] == [(member.node, 2)]
    assert member.node not in {m.node for m in status.rendezvous.members}
    assert status.last_failure is not None
    assert (status.last_failure.reason, status.last_failure.rank) == ("CorruptState", rank)
    told = [event.message for event in cluster.events if event.reason == "CorruptState"]
    assert told == [f"rank {rank} ({member.pod}) failed [CorruptState]: after step 40, its parameters differ"]
