"""A failure is charged once, whenever the operator dies while it charges it. In the simulated cluster: no real time
passes.
"""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


@pytest.mark.parametrize("writes", range(8))
def test_a_crash_of_the_operator_charges_no_failure_twice(writes: int) -> None:
    cluster = Cluster(make_spec(1, 2, elasticPolicy={"maxRestarts": 5}))
    cluster.run_until(lambda: cluster.trains)
    victim = next(p.agent for p in cluster.pods.values() if p.agent)
    assert victim is not None
    cluster.crash_after = writes
    victim.exit(1)
    cluster.run(100)
    cluster.crash_after = None
    if not cluster.operator_up:
        cluster.start_operator()
    cluster.run(60)
    assert cluster.trains
    assert cluster.status.restarts.total == 1


@pytest.mark.parametrize("writes", range(12))
def test_nor_one_that_came_before_the_first_world(writes: int) -> None:
    cluster = Cluster(make_spec(1, 1, elasticPolicy={"maxRestarts": 5}))
    cluster.behaviours[0] = "exit1"
    cluster.crash_after = writes
    for _ in range(3):
        cluster.run(100)  # beyond the time in which failures are taken for one
        if not cluster.operator_up:
            cluster.start_operator()
    cluster.crash_after = None
    cluster.run(120)
    assert cluster.trains
    assert cluster.status.restarts.total == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_nor_one_whose_pod_cannot_be_deleted(restarted: bool) -> None:
    """It stays before everybody's eyes for longer than failures are taken for one, and is accounted for once."""
    cluster = Cluster(make_spec(1, 2, elasticPolicy={"maxRestarts": 5}))
    cluster.run_until(lambda: cluster.trains)
    cluster.deletes_refused = True
    cluster.give_up(1)
    cluster.run(60)
    if restarted:
        cluster.restart_operator()
        cluster.run(60)
    assert cluster.trains
    assert cluster.status.restarts.total == 1
    cluster.deletes_refused = False
    cluster.run(60)
    assert cluster.size == 2
    gone = cluster.status.restarts.counted
    cluster.give_up(2)  # the pod in its place
    cluster.run(60)
    assert cluster.status.restarts.total == 2
    assert not set(gone) & set(cluster.status.restarts.counted), "the next write drops records of pods that are gone"
