"""Clock jumps of the operator's machine: no member is lost, nothing is charged, and no wait uses the old time."""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster

pytestmark = pytest.mark.timeout(60)

JUMPS = pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forwards", "backwards"])


def started() -> Cluster:
    cluster = Cluster(make_spec(2, 4))
    cluster.run_until(lambda: cluster.trains)
    return cluster


@JUMPS
def test_a_world_that_trains_is_left_alone(jump: float) -> None:
    cluster = started()
    before = cluster.generation
    cluster.jump(jump)
    cluster.run(100)
    assert (cluster.generation, cluster.size) == (before, 4)


@JUMPS
@pytest.mark.parametrize("moment", [0.05, 0.3, 1.0, 2.5])
def test_in_the_middle_of_a_change(jump: float, moment: float) -> None:
    cluster = started()
    cluster.kill(1)
    cluster.run(moment)
    cluster.jump(jump)
    cluster.run(200)
    assert cluster.trains
    assert cluster.size == 4
    assert cluster.status.restarts.total == 0


@JUMPS
@pytest.mark.parametrize("moment", [0.5, 2.2, 4.0])
def test_while_the_first_world_comes_to_be(jump: float, moment: float) -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.run(moment)
    cluster.jump(jump)
    cluster.run(200)
    assert cluster.trains
    assert cluster.size == 4


@JUMPS
def test_during_the_back_off_after_failures(jump: float) -> None:
    cluster = started()
    for _ in range(2):
        cluster.agent(2).fail()
        cluster.run(20)
    cluster.agent(2).fail()
    cluster.run(1)
    assert "backing off" in cluster.plans[-1].reason
    cluster.jump(jump)
    cluster.run(60)
    assert cluster.trains
    assert cluster.size == 4
