"""A sharded model over worlds of different sizes: from the shards where all are there, else from the checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub, World
from worker.fake_pods import Pods, Steps
from worker.test_session import check_history

pytestmark = pytest.mark.timeout(400)
PROGRAM = str(Path(__file__).parent / "programs" / "ej_sharded.py")


def test_shards_are_cut_anew_or_read_again(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    steps = Steps(tmp_path / "out")
    command = (PROGRAM, "--out", str(steps.folder), "--checkpoints", str(tmp_path / "saved"))

    def await_world(size: int, after: World | None = None) -> World:
        world = hub.wait_for_world(size, 0 if after is None else after.generation, timeout=150)
        steps.wait_for_world(size, world.generation, timeout=150)
        return world

    members = {f"pod-{i}": pods.start(f"pod-{i}", *command, launcher="elasticjob-run") for i in range(2)}
    two = await_world(2)
    members["pod-2"] = pods.start("pod-2", *command, launcher="elasticjob-run")
    three = await_world(3, two)
    hub.remove(three.pods[0])
    assert members[three.pods[0]].wait() == 0
    again = await_world(2, three)
    lines = steps.read()
    check_history(lines, repeated=0)
    assert len({line["pid"] for line in lines}) == 3, "nobody was started twice"

    steps.wait(lambda found: found[-1]["step"] >= 12)  # there is a checkpoint
    hub.set_size(1)
    members[again.pods[0]].signal_all(signal.SIGKILL)
    hub.declare_lost(again.pods[0])
    alone = await_world(1, again)
    survivor = members[again.pods[1]]
    assert "a lost rank takes its shards with it: going back to the last checkpoint" in survivor.log
    before = max(line["step"] for line in steps.read() if line["generation"] == again.generation)
    first = min(line["step"] for line in steps.read() if line["generation"] == alone.generation)
    assert first % 10 == 0 and 0 < first <= before + 1, "it goes on from a checkpoint"

    hub.stop()
    undisturbed = Steps(tmp_path / "undisturbed")
    env: dict[str, str | None] = {"ELASTICJOB_HUB_URL": None, "PET_RDZV_BACKEND": None}
    alone_command = (PROGRAM, "--out", str(undisturbed.folder), "--checkpoints", str(tmp_path / "other"))
    epochs = str(before // 20 + 1)
    more = ("--epochs", epochs, "--step-seconds", "0")
    assert pods.start("alone", "--standalone", *alone_command, *more, env=env).wait(150) == 0
    sizes = {line["step"]: line["size"] for line in undisturbed.read()}
    disturbed = {line["step"]: line["size"] for line in steps.read() if line["step"] in sizes}
    assert disturbed == pytest.approx({step: sizes[step] for step in disturbed}, rel=1e-3), "the same training"
    assert max(disturbed) >= before


def test_copies_of_shards_outlive_a_loss(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    steps = Steps(tmp_path / "out")
    command = (PROGRAM, "--shards", "2", "--out", str(steps.folder), "--checkpoints", str(tmp_path / "saved"))

    def await_world(size: int, after: World | None = None) -> World:
        world = hub.wait_for_world(size, 0 if after is None else after.generation, timeout=150)
        steps.wait_for_world(size, world.generation, timeout=150)
        return world

    def meshes(world: World) -> list[list[int]]:
        return [line["mesh"] for line in steps.read() if line["generation"] == world.generation]

    hub.set_size(4)
    members = {f"pod-{i}": pods.start(f"pod-{i}", *command, launcher="elasticjob-run") for i in range(4)}
    four = await_world(4)
    assert meshes(four)[0] == [2, 2]
    steps.wait(lambda found: found[-1]["step"] >= 3)
    hub.set_size(3)
    members[four.pods[1]].signal_all(signal.SIGKILL)
    hub.declare_lost(four.pods[1])
    three = await_world(3, four)
    assert meshes(three)[0] == [1, 3], "all share one copy, where the model does not fit twice"
    hub.set_size(4)
    members["pod-4"] = pods.start("pod-4", *command, launcher="elasticjob-run")
    again = await_world(4, three)
    assert meshes(again)[0] == [2, 2]
    lines = steps.read()
    check_history(lines, repeated=1)
    assert len({line["pid"] for line in lines}) == 5, "nobody was started twice"

    steps.wait(lambda found: found[-1]["step"] >= 12)  # there is a checkpoint
    hub.set_size(2)
    both = (again.pods[0], again.pods[2])  # the two copies of the first shard
    for pod in both:
        members[pod].signal_all(signal.SIGKILL)
    for pod in both:
        hub.declare_lost(pod)
    steps.wait(lambda found: found[-1]["generation"] > again.generation, timeout=150)
    before = max(line["step"] for line in steps.read() if line["generation"] == again.generation)
    first = min(line["step"] for line in steps.read() if line["generation"] > again.generation)
    assert first % 10 == 0 and 0 < first <= before + 1, "it goes on from a checkpoint"
    assert "not all had a copy of the same step: going back to the last checkpoint" in members[again.pods[1]].log


def test_a_step_that_only_some_have_applied_is_applied_by_all(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    steps = Steps(tmp_path / "out")
    command = (PROGRAM, "--shards", "2", "--out", str(steps.folder), "--checkpoints", str(tmp_path / "saved"))
    hub.set_size(4)
    for i in range(4):
        pods.start(f"pod-{i}", *command, "--break-at", "6", launcher="elasticjob-run")
    first = hub.wait_for_world(4, timeout=150)
    steps.wait(lambda found: bool(found) and found[-1]["generation"] > first.generation, timeout=150)
    lines = steps.read()
    assert {line["rank"] for line in lines if line["step"] == 6 and line["generation"] == first.generation} == {0, 1, 2}
    check_history(lines, repeated=0)
    assert len({line["pid"] for line in lines}) == 4, "nobody was started twice"
