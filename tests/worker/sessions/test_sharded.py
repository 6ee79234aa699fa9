"""A sharded model in worlds of different sizes: from the shards if all exist, otherwise from the checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from elasticjob.errors import ConfigurationError
from elasticjob.sessions.session import Session
from elasticjob.torchcompat import sharding
from torch_features import needs_fsdp_on_cpu
from worker.fake_hub import FakeHub, World
from worker.fake_pods import Pod, Pods, Steps
from worker.gang_helper import run_gang
from worker.sessions.test_session import check_history

pytestmark = [pytest.mark.timeout(400), needs_fsdp_on_cpu]
PROGRAM = str(Path(__file__).parents[1] / "programs" / "ej_sharded.py")
STAGES = Path(PROGRAM).with_name("stages_program.py")
BUILT = Path(PROGRAM).with_name("built_program.py")


@dataclass
class Play:
    """Pods that train a sharded model, and what they wrote."""

    hub: FakeHub
    pods: Pods
    steps: Steps
    arguments: tuple[str, ...]
    shards: int | None = 2
    env: dict[str, str | None] = field(default_factory=dict)
    members: dict[str, Pod] = field(default_factory=dict)

    def command(self, *more: str, folder: Path | None = None) -> tuple[str, ...]:
        shards = () if self.shards is None else ("--shards", str(self.shards))
        return (PROGRAM, "--out", str(folder or self.steps.folder), *shards, *self.arguments, *more)

    def join(self, *more: str) -> None:
        name = f"pod-{len(self.members)}"
        self.members[name] = self.pods.start(name, *self.command(*more), launcher="elasticjob-run", env=self.env)

    def kill(self, *pods: str) -> None:
        for pod in pods:
            self.members[pod].signal_all(signal.SIGKILL)
        for pod in pods:
            self.hub.declare_lost(pod)

    def await_world(self, size: int, after: World | None = None) -> World:
        world = self.hub.wait_for_world(size, 0 if after is None else after.generation, timeout=150)
        self.steps.wait_for_world(size, world.generation, timeout=150)
        return world

    def await_checkpoint(self) -> None:
        """A thread writes it while the training goes on: no step tells that it exists."""
        saved = Path(self.arguments[self.arguments.index("--checkpoints") + 1])
        self.steps.wait(lambda _: any(saved.glob("step-*")))

    def count_threads(self) -> dict[int, int]:
        """Of each worker that lives, by its process."""
        found = {}
        for pid in {line["pid"] for line in self.steps.read()}:
            with contextlib.suppress(psutil.NoSuchProcess):
                found[pid] = psutil.Process(pid).num_threads()
        return found

    def has_few_more(self, before: dict[int, int]) -> bool:
        """Each group has three threads. Those of the last world but one may not be collected yet."""
        now = self.count_threads()
        return all(now[pid] < before[pid] + 12 for pid in now.keys() & before.keys())

    def meshes(self, world: World) -> list[list[int]]:
        """The shapes of mesh in one world; there should be one."""
        found = {tuple(line["mesh"]) for line in self.steps.read() if line["generation"] == world.generation}
        return [list(shape) for shape in found]

    def check_numbers(self, below: int) -> None:
        """The worlds before this generation trained as one process does that nobody disturbs."""
        lines = self.steps.read()
        described = [line for line in lines if "size" in line]
        check_descriptions(lines, described)
        last = max(line["step"] for line in described if line["generation"] < below)
        undisturbed = Steps(self.steps.folder.with_name("undisturbed"))
        script, *arguments = self.command("--epochs", str(last // 20 + 1), folder=undisturbed.folder)
        elsewhere = ("--checkpoints", str(undisturbed.folder.with_name("other")))
        run_gang(Path(script), 1, *arguments, *elsewhere, "--step-seconds=0", timeout=150)
        sizes = {line["step"]: line["size"] for line in undisturbed.read()}
        disturbed = {line["step"]: line["size"] for line in described if line["step"] in sizes}
        assert disturbed == pytest.approx({step: sizes[step] for step in disturbed}, rel=1e-3), "the same training"
        assert max(disturbed) >= last


def check_descriptions(lines: Sequence[dict[str, Any]], described: Sequence[dict[str, Any]]) -> None:
    """A loss may cut off the description of a step that is done: only that of the last step of a world."""
    last: dict[int, int] = {}
    for line in lines:
        last[line["generation"]] = max(line["step"], last.get(line["generation"], 0))
    bare = {(line["generation"], line["step"]) for line in lines}
    bare -= {(line["generation"], line["step"]) for line in described}
    assert bare <= last.items(), "steps without a description, though no loss ended their world"


def has_reached(step: int, lines: Sequence[dict[str, Any]]) -> bool:
    return bool(lines[-1]["step"] >= step)


@pytest.fixture
def play(hub: FakeHub, pods: Pods, tmp_path: Path) -> Play:
    return Play(hub, pods, Steps(tmp_path / "out"), ("--checkpoints", str(tmp_path / "saved")))


@pytest.mark.usefixtures("backend_if_long")
def test_shards_are_cut_anew_or_read_again(play: Play) -> None:
    play.shards = None
    play.join()
    play.join()
    two = play.await_world(2)
    play.join()
    three = play.await_world(3, two)
    assert play.meshes(three) == [[3]]
    play.hub.remove(three.pods[0])
    assert play.members[three.pods[0]].wait() == 0
    again = play.await_world(2, three)
    lines = play.steps.read()
    check_history(lines, repeated=0)
    assert len({line["pid"] for line in lines}) == 3, "nobody was started twice"

    play.await_checkpoint()
    play.hub.set_size(1)
    play.kill(again.pods[0])
    alone = play.await_world(1, again)
    survivor = play.members[again.pods[1]]
    assert "a lost rank takes its shards with it: going back to the last checkpoint" in survivor.log
    before = max(line["step"] for line in play.steps.read() if line["generation"] == again.generation)
    first = min(line["step"] for line in play.steps.read() if line["generation"] == alone.generation)
    assert first % 10 == 0 and 0 < first <= before + 1, "it goes on from a checkpoint"
    play.hub.stop()
    play.check_numbers(below=alone.generation)


@pytest.mark.usefixtures("backend_if_long")
def test_the_ranks_of_a_pod_get_their_shards_from_one_of_them(play: Play) -> None:
    """The first rank of each pod keeps the model, and a pod that leaves takes nothing with it."""
    play.shards, play.env = None, {"PET_NPROC_PER_NODE": "2"}
    play.join()
    play.join()
    two = play.hub.wait_for_world(2, timeout=150)
    play.steps.wait_for_world(4, two.generation, timeout=150)
    play.join()
    three = play.hub.wait_for_world(3, two.generation, timeout=150)
    play.steps.wait_for_world(6, three.generation, timeout=150)
    assert play.meshes(three) == [[6]]
    play.hub.remove(three.pods[0])
    assert play.members[three.pods[0]].wait() == 0
    last = play.hub.wait_for_world(2, three.generation, timeout=150)
    play.steps.wait_for_world(4, last.generation, timeout=150)
    lines = play.steps.read()
    check_history(lines, repeated=0)
    assert len({line["pid"] for line in lines}) == 6, "nobody was started twice"
    play.hub.stop()
    play.check_numbers(below=last.generation + 1)


@pytest.mark.parametrize(("seed", "losses"), [(1, 1), pytest.param(2, 3, marks=pytest.mark.long)])
@pytest.mark.usefixtures("backend")
def test_copies_of_shards_outlive_a_loss(play: Play, seed: int, losses: int) -> None:
    dice = random.Random(seed)
    play.hub.set_size(4)
    for _ in range(4):
        play.join()
    world = play.await_world(4)
    assert play.meshes(world) == [[2, 2]]
    threads = play.count_threads()
    for loss in range(1, losses + 1):
        reached = play.steps.read()[-1]["step"] + 3
        play.steps.wait(partial(has_reached, reached))
        time.sleep(dice.random() / 10)  # anywhere in a step
        play.hub.set_size(3)
        play.kill(dice.choice(world.pods))
        world = play.await_world(3, world)
        assert play.meshes(world) == [[1, 3]], "all share one copy, where the model does not fit twice"
        play.hub.set_size(4)
        play.join()
        world = play.await_world(4, world)
        assert play.meshes(world) == [[2, 2]]
        check_history(play.steps.read(), repeated=loss)
    assert len({line["pid"] for line in play.steps.read()}) == 4 + losses, "nobody was started twice"
    play.hub.wait_for(lambda: play.has_few_more(threads), 30, f"groups of old worlds go: {threads}")
    play.hub.stop()
    play.check_numbers(below=world.generation)


@pytest.mark.parametrize(("seed", "losses"), [(1, 2), pytest.param(2, 8, marks=pytest.mark.long)])
@pytest.mark.usefixtures("backend_if_long")
def test_a_loss_costs_the_steps_since_the_last_copy(play: Play, seed: int, losses: int) -> None:
    dice = random.Random(seed)
    play.shards, play.arguments = None, (*play.arguments, "--copy-every", "1")
    play.hub.set_size(3)
    for _ in range(3):
        play.join()
    world = play.await_world(3)
    for _ in range(losses):
        reached = play.steps.read()[-1]["step"] + dice.choice((1, 4, 8))
        play.steps.wait(partial(has_reached, reached))
        time.sleep(dice.random() / 10)  # anywhere in a step
        play.hub.set_size(2)
        play.kill(dice.choice(world.pods))
        two = play.await_world(2, world)
        play.hub.set_size(3)
        play.join()
        world = play.await_world(3, two)
    lines = play.steps.read()
    assert len({line["pid"] for line in lines}) == 3 + losses, "nobody was started twice"
    check_copies(lines)
    play.hub.stop()
    play.check_numbers(below=world.generation)


@pytest.mark.usefixtures("backend_if_long")
def test_survivors_tell_which_shards_they_have(play: Play) -> None:
    play.shards, play.arguments = None, (*play.arguments, "--copy-every", "1")
    play.hub.set_size(4)
    for _ in range(4):
        play.join()
    four = play.await_world(4)
    play.steps.wait(partial(has_reached, 8))  # there are copies
    first, second, third, last = four.pods
    play.hub.set_size(2)
    play.kill(last)
    play.hub.unwanted.add(second)  # it has no place in the next world
    two = play.await_world(2, four)
    told = [(who, said["state"]["shards"]) for _, who, said in play.hub.history if said.get("state", {}).get("shards")]
    assert sorted(told) == sorted([(first, [0, 3]), (second, [0, 1]), (third, [1, 2])]), "its own, and a copy"
    assert set(two.pods) == {first, third}
    lines = play.steps.read()
    assert len({line["pid"] for line in lines}) == 4, "nobody was started twice"
    check_copies(lines)


def check_copies(lines: Sequence[dict[str, Any]]) -> None:
    """No step is missing, at most two that were done are repeated, and all ranks have one model after each."""
    spans: dict[int, list[int]] = {}
    hashes: dict[tuple[int, int], set[str]] = {}
    for line in lines:
        spans.setdefault(line["generation"], []).append(line["step"])
        if "hash" in line:
            hashes.setdefault((line["generation"], line["step"]), set()).add(line["hash"])
    assert all(len(found) == 1 for found in hashes.values())
    ordered = [spans[generation] for generation in sorted(spans)]
    repeated = [max(before) + 1 - min(after) for before, after in itertools.pairwise(ordered)]
    assert all(0 <= count <= 3 for count in repeated), repeated


@pytest.mark.usefixtures("backend_if_long")
def test_lost_copies_are_read_from_the_checkpoint(play: Play) -> None:
    play.hub.set_size(4)
    for _ in range(4):
        play.join()
    world = play.await_world(4)
    play.await_checkpoint()
    play.hub.set_size(2)
    play.kill(world.pods[0], world.pods[2])  # the two copies of the first shard
    play.steps.wait(lambda found: found[-1]["generation"] > world.generation, timeout=150)
    before = max(line["step"] for line in play.steps.read() if line["generation"] == world.generation)
    first = min(line["step"] for line in play.steps.read() if line["generation"] > world.generation)
    assert first % 10 == 0 and 0 < first <= before + 1, "it goes on from a checkpoint"
    assert "not all had a copy of the same step: going back to the last checkpoint" in play.members[world.pods[1]].log


@pytest.mark.usefixtures("backend")
def test_a_step_that_only_some_have_applied_is_applied_by_all(play: Play) -> None:
    play.hub.set_size(4)
    for _ in range(4):
        play.join("--break-at", "6")
    first = play.hub.wait_for_world(4, timeout=150)
    play.steps.wait(lambda found: bool(found) and found[-1]["generation"] > first.generation, timeout=150)
    lines = play.steps.read()
    assert {line["rank"] for line in lines if line["step"] == 6 and line["generation"] == first.generation} == {0, 1, 2}
    check_history(lines, repeated=0)
    assert len({line["pid"] for line in lines}) == 4, "nobody was started twice"


def test_a_torch_whose_fsdp_wants_a_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "HAS_FSDP_ON_CPU", False)
    with pytest.raises(ConfigurationError, match=r"on the CPU needs torch 2\.7 or newer, and this is torch \d"):
        Session(build=lambda mesh: pytest.fail(f"built on {mesh}"))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["apart", "alike"])
def test_stages_of_a_pipeline_are_refused(kind: str) -> None:
    """At a change every rank would get the parameters of one stage, or fail to load them."""
    for member in run_gang(STAGES, 2, kind, timeout=150):
        assert "no parameter is cut over the ranks" in member.results["said"]


def test_stages_that_are_cut_are_refused(hub: FakeHub, pods: Pods) -> None:
    hub.set_size(4)
    for pod in [pods.start(f"pod-{i}", str(STAGES), "cut", launcher="elasticjob-run") for i in range(4)]:
        assert pod.wait() == 0
        assert "the ranks have built different models" in pod.log


@pytest.mark.parametrize("kind", ["ddp", "part", "replicate"])
def test_a_built_model_may_be_reduced_by_torch(kind: str) -> None:
    """No parameter is a DTensor then, and the ranks train one model all the same."""
    first, second = (member.results["norm"] for member in run_gang(BUILT, 2, kind, timeout=150))
    assert first == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp1 by name"])
def test_a_model_of_fsdp1_is_refused_with_the_remedy(kind: str) -> None:
    """What an optimizer keeps of its parameters is of one rank's part, and a change would give it to all ranks."""
    for member in run_gang(BUILT, 2, kind, timeout=150):
        assert "Call fully_shard(model, mesh=mesh)" in member.results["refused"]
