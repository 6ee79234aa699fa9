"""Replicas that become different are noticed; all go back to what they agreed on, and the rank that is wrong leaves."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
import torch

from elasticjob import env
from elasticjob.data import samplers
from elasticjob.errors import ReplicasDifferError
from elasticjob.sessions import machine, replicas
from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState
from elasticjob.sessions.replicas import Replicas, Verdict
from elasticjob.sessions.worlds import Worlds
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods, Steps
from worker.sessions.test_session import Story

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("digests", "guilty"),
    [
        pytest.param([7, 7, 7], None, id="all equal"),
        pytest.param([7], None, id="one alone"),
        pytest.param([7, 8, 7], {1}, id="one of three"),
        pytest.param([8, 7, 7, 7], {0}, id="rank 0"),
        pytest.param([7, 8, 7, 9, 7], {1, 3}, id="two of five, each in its own way"),
        pytest.param([7, 8], set(), id="one of two: nobody knows which"),
        pytest.param([7, 8, 7, 8], set(), id="two of four"),
        pytest.param([7, 8, 9], set(), id="all differ: the script is like that"),
        pytest.param([7, 7, 8, 9], set(), id="half is no majority"),
    ],
)
def test_who_is_guilty(digests: list[int], guilty: set[int] | None) -> None:
    assert replicas.judge(digests) == guilty


@pytest.mark.parametrize(
    ("shards", "digests", "guilty"),
    [
        pytest.param(2, [7, 1, 7, 1, 7, 1], None, id="all replicas equal"),
        pytest.param(2, [7, 1, 7, 2, 7, 1], {3}, id="one of three replicas of the second shard"),
        pytest.param(2, [8, 1, 7, 1, 7, 2], {0, 5}, id="one of each shard"),
        pytest.param(2, [7, 7, 7, 7, 7, 8], {5}, id="equal shards are no replicas of each other"),
        pytest.param(2, [7, 1, 7, 2], set(), id="one of two: nobody knows which"),
        pytest.param(2, [7, 1, 8, 2, 9, 1], {3}, id="nobody knows it of the first shard, but of the second"),
        pytest.param(2, [7, 1, 8, 2, 9, 3], set(), id="all differ"),
        pytest.param(1, [7, 7, 8], {2}, id="one shard"),
        pytest.param(3, [7, 1, 2], None, id="one replica: nothing to compare"),
    ],
)
def test_who_is_guilty_of_the_replicas_of_a_shard(shards: int, digests: list[int], guilty: set[int] | None) -> None:
    assert replicas.judge(digests, shards) == guilty


G, N = frozenset({1}), frozenset[int]()


@pytest.mark.parametrize(
    ("guilty", "rank", "in_vain", "verdict"),
    [
        pytest.param(None, 0, False, Verdict.GO_ON, id="equal"),
        pytest.param(None, 0, True, Verdict.GO_ON, id="equal again"),
        pytest.param(G, 0, False, Verdict.GO_BACK, id="another rank is wrong"),
        pytest.param(G, 0, True, Verdict.GO_BACK, id="now it is known who is wrong"),
        pytest.param(G, 1, False, Verdict.LEAVE, id="this rank is wrong"),
        pytest.param(G, 1, True, Verdict.LEAVE, id="now it is known that it is this rank"),
        pytest.param(N, 0, False, Verdict.GO_BACK, id="nobody knows who is wrong"),
        pytest.param(N, 0, True, Verdict.STOP, id="nobody knows, and going back did not help"),
    ],
)
def test_what_a_rank_does(guilty: frozenset[int] | None, rank: int, in_vain: bool, verdict: Verdict) -> None:
    assert replicas.decide(guilty, rank, in_vain) is verdict


@pytest.mark.parametrize(("text", "every"), [("", 0), ("0", 0), ("100", 100), (" 7 ", 7)])
def test_how_often(text: str, every: int) -> None:
    assert replicas.read_every({env.COMPARE_EVERY_STEPS: text}) == every
    assert replicas.read_every({}) == 0


@pytest.mark.parametrize("text", ["-1", "often", "1.5"])
def test_a_number_that_is_none_is_named(text: str) -> None:
    with pytest.raises(env.SettingsError, match="ELASTICJOB_COMPARE_EVERY_STEPS"):
        replicas.read_every({env.COMPARE_EVERY_STEPS: text})


class Run:
    """A small training run in one process; its steps use random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.sampler = samplers.ElasticDistributedSampler(96, global_batch_size=8, rank=0, world_size=1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        state = ReplicatedModelState(self.model, self.optimizer, (lambda *_: None, lambda *_: None))
        self.memory = Memory(state, self.sampler, {"scheduler": self.scheduler})
        self.parameters = list(self.model.parameters())

    def make_steps(self, count: int) -> None:
        for _ in range(count):
            self.memory.begin()
            torch.autograd.backward(self.model(torch.randn(8, 4)).square().mean())
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.sampler.advance(8)
            self.memory.commit()

    def look(self) -> tuple[object, ...]:
        """Everything that must be the same if the same steps are made again."""
        statistics = self.model.state_dict()["1.running_mean"].tolist()
        return (replicas.digest(self.memory), self.memory.committed, self.sampler.state_dict(), statistics)


def test_steps_after_going_back_are_those_made_before() -> None:
    run = Run()
    run.make_steps(3)
    kept = run.memory.copy()
    found = []
    for _ in range(3):
        run.make_steps(4)
        found.append(run.look())
        run.memory.go_back(kept)
        assert (run.memory.committed, run.sampler.used) == (2, 24)
    assert found[0] == found[1] == found[2]


def test_a_copy_reuses_the_memory_of_the_one_before() -> None:
    run = Run()
    run.make_steps(1)
    first = run.memory.copy()
    addresses = [tensor.data_ptr() for tensor in first.tensors]
    run.make_steps(1)
    second = run.memory.copy(first)
    assert second.step == 1
    assert [tensor.data_ptr() for tensor in second.tensors] == addresses


def test_any_bit_changes_the_digest() -> None:
    run = Run()
    run.make_steps(1)
    before = replicas.digest(run.memory)
    assert replicas.digest(run.memory) == before
    run.parameters[0].data.view(torch.int32)[3, 1] ^= 1
    assert replicas.digest(run.memory) != before
    run.parameters[0].data.view(torch.int32)[3, 1] ^= 1
    run.optimizer.state[run.parameters[-1]]["exp_avg"].view(torch.int32)[0] ^= 1 << 30
    assert replicas.digest(run.memory) != before


class World(Worlds):
    """A world of three whose other ranks do as they are told; this is rank 0."""

    rank, size = 0, 3
    state = machine.State(generation=1)

    def __init__(self, run: Run) -> None:
        self.run = run
        self.guilty: set[int] | None = set()  # of the ranks; None: the world is lost
        self.compared: list[int] = []  # steps

    def exchange(self, digest: int) -> list[int]:
        self.compared.append(self.run.memory.committed)
        if self.guilty is None:
            raise RuntimeError("Connection closed by peer")
        return [digest + (rank in self.guilty) * (1 + rank) for rank in range(3)]


def compare_every(every: int) -> tuple[Run, World, Replicas]:
    run = Run()
    world = World(run)
    compared = Replicas(run.memory, world, every)
    compared.enter()
    return run, world, compared


def test_it_compares_after_the_first_step_and_so_many_more_and_at_the_end_of_an_epoch() -> None:
    run, world, compared = compare_every(5)
    for _ in range(12):
        run.make_steps(1)
        assert not compared.check()
    assert run.sampler.is_over()
    assert world.compared == [0, 5, 10, 11]


@pytest.mark.parametrize("guilty", [{1}, {1, 2}])
def test_the_others_go_back_to_the_step_that_all_agreed_on(guilty: set[int]) -> None:
    run, world, compared = compare_every(4)
    run.make_steps(1)
    assert not compared.check()
    agreed = run.look()
    world.guilty = guilty
    run.make_steps(4)
    assert compared.check()
    assert run.look()[:3] == agreed[:3]


def test_a_world_that_is_lost_during_a_comparison_goes_back() -> None:
    """Another rank may have learnt in it that the states differ."""
    run, world, compared = compare_every(4)
    run.make_steps(1)
    assert not compared.check()
    agreed = run.look()
    run.make_steps(4)
    world.guilty = None
    with pytest.raises(RuntimeError, match="Connection closed"):
        compared.check()
    assert run.look()[:3] == agreed[:3]


def test_what_the_script_did_between_two_epochs_stays() -> None:
    run, world, compared = compare_every(100)
    run.make_steps(12)
    assert not compared.check()
    run.scheduler.step()
    rate = run.scheduler.get_last_lr()
    run.sampler.set_epoch(1)
    compared.keep()
    run.make_steps(12)
    world.guilty = {2}
    assert compared.check()
    assert run.scheduler.get_last_lr() == rate
    assert (run.memory.committed, run.sampler.epoch, run.sampler.used) == (11, 1, 0)


def test_a_difference_that_stays_and_blames_nobody_is_an_error() -> None:
    run, world, compared = compare_every(3)
    run.make_steps(1)
    world.guilty = {1, 2}
    assert compared.check()
    run.make_steps(1)
    with pytest.raises(ReplicasDifferError, match=r"ranks differ again.*step -1.*health\.compareEverySteps to 0"):
        compared.check()


def start(story: Story, size: int, *args: str) -> None:
    story.hub.set_size(size)
    for index in range(size):
        more = ("--flip-in", str(size), "--step-seconds", "0.02", *args)
        story.start(f"pod-{index}", *more, env={env.COMPARE_EVERY_STEPS: "7"})


def went_back(log: str) -> tuple[int, int]:
    """(the step after which the replicas differed, the step that all went back to)."""
    found = re.search(r"After step (\d+), .* going back to step (\d+), which all agreed on", log)
    assert found is not None, log
    return int(found[1]), int(found[2])


@pytest.mark.usefixtures("backend")
def test_two_ranks_that_differ_go_back_and_repeat_the_same_steps(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    story = Story(hub, pods, steps)
    start(story, 2)
    world = story.wait_for(2)
    first, flipped = (story.members[pod] for pod in world.pods)
    hub.wait_for(lambda: all("which all agreed on" in pod.log for pod in (first, flipped)), timeout=120)
    noticed, agreed = went_back(flipped.log)
    assert went_back(first.log) == (noticed, agreed)
    assert agreed < noticed <= agreed + 7
    hub.wait_for(lambda: max(line["step"] for line in steps.read()) > noticed + 21, timeout=120)
    lines = [line for line in steps.read() if line["generation"] == world.generation]
    made: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line["t"]):
        made[line["step"]].append(line)
    assert sorted(made) == list(range(min(made), max(made) + 1)), "no step is left out"
    flip = int(re.findall(r"a bit flips after step (\d+)", flipped.log)[0])
    for step in range(agreed + 1, noticed):
        assert len(made[step]) == 4, f"step {step} is made twice by both ranks"
        assert len({tuple(line["used"]) for line in made[step]}) == 1, "from the same place in the data"
        assert len({line["hash"] for line in made[step][2:]}) == 1, "the ranks are equal again"
        if step <= flip:
            assert len({line["hash"] for line in made[step]}) == 1, "the same step from the same state"
    after = [line["hash"] for step in range(noticed, max(made)) for line in made[step][-2:]]
    assert len(set(after)) == len(after) / 2
    assert not hub.failures(), "nobody is accused"


@pytest.mark.long
def test_a_script_that_leaves_its_epochs_early_stays_in_the_last_one(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    story = Story(hub, pods, steps)
    start(story, 2, "--epoch-steps=5")
    flipped = story.members[story.wait_for(2).pods[1]]
    hub.wait_for(lambda: "which all agreed on" in flipped.log, timeout=120)
    noticed, agreed = went_back(flipped.log)
    hub.wait_for(lambda: max(line["step"] for line in steps.read()) > noticed + 7, timeout=120)
    places: dict[int, list[list[int]]] = defaultdict(list)
    for line in sorted(steps.read(), key=lambda line: line["t"]):
        places[line["step"]].append(line["used"])
    (epoch, _), *_ = places[noticed]
    assert epoch > places[agreed][0][0], "the last agreement was in an earlier epoch"
    assert places[agreed + 1][2:] == [[epoch, 48], [epoch, 48]]
    assert not hub.failures()


@pytest.mark.usefixtures("backend_if_long")
def test_the_one_of_three_that_differs_leaves_and_the_others_go_on(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    story = Story(hub, pods, steps)
    start(story, 3)
    world = story.wait_for(3)
    guilty = story.members[world.pods[1]]
    hub.set_size(1)
    assert guilty.wait(120) == 1
    assert "corrupt state: after step" in guilty.log.rpartition("elasticjob: error: ")[2]
    after = story.wait_for(2, world)
    assert after.pods == [world.pods[0], world.pods[2]]
    survivors = [story.members[name] for name in after.pods]
    (noticed, agreed), other = (went_back(pod.log) for pod in survivors)
    assert other == (noticed, agreed)
    lines = steps.read()
    assert min(line["step"] for line in lines if line["generation"] == after.generation) == agreed + 1
    hashes: dict[int, set[str]] = defaultdict(set)
    for line in lines:
        if line["generation"] == after.generation:
            hashes[line["step"]].add(line["hash"])
    assert all(len(found) == 1 for found in hashes.values()), "parameters differ between ranks"
    state = hub.agents[guilty.name].state
    assert state["phase"] == "failed"
    assert state["failure"]["message"].startswith("corrupt state: after step ")
