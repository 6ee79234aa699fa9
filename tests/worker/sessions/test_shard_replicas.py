"""Replicas of a shard that become different are noticed, like those of a whole model."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from elasticjob import env
from torch_features import needs_fsdp_on_cpu
from worker.fake_hub import World
from worker.sessions.test_replicas import went_back
from worker.sessions.test_session import check_history
from worker.sessions.test_sharded import Play, play

__all__ = ["play"]  # a fixture

pytestmark = [pytest.mark.timeout(400), needs_fsdp_on_cpu]


def start(play: Play, size: int, flip_rank: int) -> World:
    play.env[env.COMPARE_EVERY_STEPS] = "7"
    play.hub.set_size(size)
    for _ in range(size):
        play.join("--flip-in", str(size), "--flip-rank", str(flip_rank), "--step-seconds", "0.02")
    return play.await_world(size)


def by_step(lines: list[dict[str, Any]], world: World) -> dict[int, list[str]]:
    """The hashes that the ranks of a world wrote, in the order of time."""
    found: dict[int, list[str]] = defaultdict(list)
    for line in lines:
        if line["generation"] == world.generation and "hash" in line:
            found[line["step"]].append(line["hash"])
    return found


@pytest.mark.parametrize(
    ("size", "shards", "guilty", "mesh"),
    [
        pytest.param(6, 2, 3, [1, 5], id="3 replicas of 2 shards"),
        pytest.param(3, 1, 0, [2, 1], id="3 replicas of the whole, rank 0", marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("backend_if_long")
def test_the_replica_that_differs_leaves(play: Play, size: int, shards: int, guilty: int, mesh: list[int]) -> None:
    play.shards = shards
    world = start(play, size, guilty)
    wrong = play.members[world.pods[guilty]]
    play.hub.set_size(size - 1)
    assert wrong.wait(150) == 1
    assert f"the parameters of rank {guilty} differ from those of most of its replicas" in wrong.log
    after = play.await_world(size - 1, world)
    assert after.pods == [pod for pod in world.pods if pod != wrong.name]
    assert play.meshes(after) == [mesh]
    assert {went_back(play.members[pod].log) for pod in after.pods} == {(14, 7)}
    assert play.hub.agents[wrong.name].state["failure"]["message"].startswith("corrupt state: after step 14")
    play.steps.wait(lambda lines: lines[-1]["step"] >= 22, timeout=150)
    play.hub.stop()
    lines = play.steps.read()
    hashes = by_step(lines, after)
    assert min(hashes) == 8, "it goes on from the step that all agreed on"
    assert all(len(set(found)) == 1 for found in hashes.values()), "all ranks have one model after each step"
    assert len({line["pid"] for line in lines}) == size, "nobody was started twice"
    before = by_step(lines, world)
    assert {step for step, found in before.items() if len(set(found)) > 1} == {11, 12, 13}, "the replicas did differ"
    play.check_numbers(below=after.generation + 1)


@pytest.mark.parametrize(
    ("size", "shards", "flipped"),
    [
        pytest.param(4, 2, 2, id="2 replicas of 2 shards"),
        pytest.param(2, 1, 1, id="2 replicas of the whole", marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("backend_if_long")
def test_two_replicas_that_differ_go_back(play: Play, size: int, shards: int, flipped: int) -> None:
    play.shards = shards
    world = start(play, size, flipped)
    play.hub.wait_for(lambda: all("which all agreed on" in pod.log for pod in play.members.values()), timeout=150)
    assert {went_back(pod.log) for pod in play.members.values()} == {(14, 7)}
    play.steps.wait(lambda lines: lines[-1]["step"] >= 22, timeout=150)
    hashes = by_step(play.steps.read(), world)
    assert not play.hub.failures(), "nobody is accused"
    for step in range(8, 14):
        assert len(hashes[step]) == 2 * size, f"step {step} is made twice by all ranks"
        assert len(set(hashes[step][:size])) == (1 if step <= 10 else 2), "the replicas differ after the flip"
        assert len(set(hashes[step][size:])) == 1, "the replicas are equal again"
        assert step > 10 or len(set(hashes[step])) == 1, "the same step from the same state"
    assert all(len(set(found)) == 1 for step, found in hashes.items() if step not in range(11, 14))


@pytest.mark.usefixtures("backend")
def test_some_know_that_all_were_equal_and_others_do_not(play: Play) -> None:
    """Ranks 1 and 3, the only ones with the second shard, are cut off: they go back, and have what the others need."""
    play.env[env.COMPARE_EVERY_STEPS] = "6"  # and in no step in which ranks compare their settings
    play.hub.set_size(4)
    for _ in range(4):
        play.join("--doubt-at", "6")
    first = play.hub.wait_for_world(4, timeout=150)
    play.steps.wait(lambda found: bool(found) and found[-1]["generation"] > first.generation, timeout=150)
    lines = play.steps.read()
    assert {line["rank"] for line in lines if line["step"] == 6 and line["generation"] == first.generation} == {0, 2}
    check_history(lines, repeated=0)
    assert len({line["pid"] for line in lines}) == 4, "nobody was started twice"
