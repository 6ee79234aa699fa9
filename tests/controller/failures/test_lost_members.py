"""Members that were lost, and whose pods end when the next world trains already."""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster
from elasticjob_operator import api
from elasticjob_operator.failures import lost_members
from elasticjob_operator.failures.classify import Failure


def member(uid: str, rank: int) -> api.Member:
    return api.Member(pod=f"pod-{uid}", uid=uid, rank=rank)


def noted(uid: str, rank: int, generation: int) -> api.LostMember:
    return api.LostMember(uid=uid, rank=rank, generation=generation)


@pytest.mark.parametrize(
    ("before", "lost", "awaited", "after"),
    [
        pytest.param([], [member("a", 1)], {"a", "b"}, [noted("a", 1, 7)], id="lost"),
        pytest.param([], [member("a", 1)], {"b"}, [], id="its pod is gone"),
        pytest.param([noted("a", 1, 5)], [member("b", 0)], {"a", "b"}, [noted("b", 0, 7), noted("a", 1, 5)], id="two"),
        pytest.param([noted("a", 1, 5)], [], {"b"}, [], id="counted"),
        pytest.param(
            [], [member(str(i), i) for i in range(40)], {str(i) for i in range(40)},
            [noted(str(i), i, 7) for i in range(32)], id="many",
        ),
    ],
)  # fmt: skip
def test_lost_members_are_remembered_until_their_pods_have_ended(
    before: list[api.LostMember], lost: list[api.Member], awaited: set[str], after: list[api.LostMember]
) -> None:
    assert lost_members.update(before, lost, 7, awaited) == after


def test_the_end_of_a_pod_is_the_failure_of_the_rank_that_it_had() -> None:
    failure = Failure("p", exit_code=137)
    assert lost_members.place(failure, [noted("a", 1, 5)], "b") == failure
    found = lost_members.place(failure, [noted("b", 0, 6), noted("a", 1, 5)], "a")
    assert (found.rank, found.generation, found.exit_code) == (1, 5, 137)


def last_failure(cluster: Cluster) -> tuple[int | None, int | None, int | None] | None:
    """Rank, generation and exit code."""
    found = cluster.status.last_failure
    return None if found is None else (found.rank, found.generation, found.exit_code)


def test_the_next_world_is_formed_before_the_kubelet_tells_of_the_end() -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(60)
    cluster.kill(2)
    cluster.run_until(lambda: cluster.generation == 2)
    assert last_failure(cluster) is None, "nobody knows yet how it ended"
    cluster.run(5)
    assert last_failure(cluster) == (2, 1, 137)
    assert cluster.status.rendezvous.lost == []
    cluster.run(120)
    present = cluster.generation
    cluster.agent(0).fail()
    cluster.run_until(lambda: cluster.status.restarts.user == 1)
    assert last_failure(cluster) == (0, present, 1), "a failure of the present world still counts"


def test_a_member_that_came_back_fails_in_the_present_world() -> None:
    cluster = Cluster(make_spec(2, 4))
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(60)
    cluster.cut_off(cluster.agent(2))
    cluster.run_until(lambda: cluster.size == 3 and cluster.trains)
    assert [one.rank for one in cluster.status.rendezvous.lost] == [2]
    cluster.heal_partition()
    cluster.run_until(lambda: "digits-worker-2" in cluster.world and cluster.trains)
    assert cluster.status.rendezvous.lost == []
    present, rank = cluster.generation, cluster.world.index("digits-worker-2")
    cluster.kill(2)
    cluster.run(5)
    found = last_failure(cluster)
    assert found == (rank, present, 137)
