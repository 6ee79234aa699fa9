"""Sessions: the process keeps its memory while the world changes. Real processes, real losses, bitwise equality."""

from __future__ import annotations

import itertools
import random
import signal
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from elasticjob.channel.place import Place
from elasticjob.sessions.process_groups import ProcessGroups, is_world_failure
from worker.fake_hub import FakeHub, World
from worker.fake_pods import STEPS, Pod, Pods, Steps
from worker.gang_helper import lines_of, run_alone, run_gang

pytestmark = pytest.mark.timeout(300)
PROGRAM = str(Path(__file__).parents[1] / "programs" / "ej_session.py")


class Story:
    """Starts members and checks what must always hold of what they wrote."""

    def __init__(self, hub: FakeHub, pods: Pods, steps: Steps, launcher: str = "elasticjob-run") -> None:
        self.hub, self.pods, self.steps, self.launcher = hub, pods, steps, launcher
        self.members: dict[str, Pod] = {}

    def start(self, name: str, *more: str, env: dict[str, str | None] | None = None) -> None:
        command = [PROGRAM, "--out", str(self.steps.folder), *more]
        self.members[name] = self.pods.start(name, *command, launcher=self.launcher, env=env)

    def wait_for(self, size: int, after: World | None = None) -> World:
        world = self.hub.wait_for_world(size, newer_than=0 if after is None else after.generation, timeout=120)
        self.steps.wait_for_world(size, world.generation)
        return world


def check_history(lines: list[dict[str, Any]], repeated: int) -> None:
    """All ranks have the same parameters after each step, no step is skipped, at most `repeated` are done twice."""
    hashes: dict[tuple[int, int], set[str]] = defaultdict(set)
    ranges: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if "hash" in line:
            hashes[line["generation"], line["step"]].add(line["hash"])
        ranges[line["generation"]].append(line["step"])
    assert all(len(found) == 1 for found in hashes.values()), "parameters differ between ranks"
    again = 0
    for before, after in itertools.pairwise(sorted(ranges)):
        gap = min(ranges[after]) - max(ranges[before])
        assert gap <= 1, f"steps are missing between generations {before} and {after}"
        again += 1 - gap
    assert again <= repeated, f"{again} steps were done twice"


def test_announced_changes_lose_no_step_and_no_process(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    story = Story(hub, pods, steps)
    story.start("pod-0")
    story.start("pod-1")
    world = story.wait_for(2)
    story.start("pod-2")
    world = story.wait_for(3, world)
    hub.remove(world.pods[0])
    assert story.members[world.pods[0]].wait() == 0
    world = story.wait_for(2, world)
    lines = steps.read()
    check_history(lines, repeated=0)
    assert len({line["pid"] for line in lines}) == 3, "nobody was started twice"
    assert all(agent.state["inProcess"] for agent in hub.agents.values())
    assert not hub.failures()
    kept = {pod: states[0]["inProcess"] for pod in ("pod-0", "pod-2") if (states := ready_states(hub, pod))}
    assert kept == {"pod-0": False, "pod-2": True}, "the newcomer's script ran before it was ready"


def ready_states(hub: FakeHub, pod: str) -> list[dict[str, Any]]:
    states = [message["state"] for _, who, message in hub.history if who == pod and "state" in message]
    return [state for state in states if state["phase"] == "ready"]


def test_a_script_without_a_session_is_started_in_a_world(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    """The pod was told that the others keep their memory; this script cannot, and trains all the same."""
    hub.in_process = True
    hub.set_size(1)
    pod = pods.start("pod-0", str(STEPS), "--out", str(steps.folder))
    world = hub.wait_for_world(1, timeout=120)
    steps.wait_for_world(1, world.generation)
    assert "before it created an elasticjob.Session" in pod.log
    assert not hub.failures(), "it costs nothing of the restart budget"
    assert not hub.agents["pod-0"].state["inProcess"]


@pytest.mark.parametrize("setting", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_the_author_may_decide(hub: FakeHub, pods: Pods, steps: Steps, setting: str) -> None:
    env: dict[str, str | None] = {"ELASTICJOB_IN_PROCESS": setting}
    hub.set_size(1)
    story = Story(hub, pods, steps)
    story.start("pod-0", env=env)
    world = story.wait_for(1)
    story.start("pod-1", env=env)
    world = story.wait_for(2, world)
    assert [state["inProcess"] for state in ready_states(hub, "pod-0")] == [setting == "1"] * 2
    survivors = {line["pid"] for line in steps.read() if line["rank"] == 0}
    assert len(survivors) == (1 if setting == "1" else 2)


@pytest.mark.parametrize(
    "victims", [pytest.param([0], id="rank 0"), pytest.param([1, 2], id="two at once", marks=pytest.mark.long)]
)
@pytest.mark.usefixtures("backend")
def test_a_loss_repeats_at_most_one_step(hub: FakeHub, pods: Pods, steps: Steps, victims: list[int]) -> None:
    hub.set_size(3)
    story = Story(hub, pods, steps)
    for i in range(3):
        story.start(f"pod-{i}")
    world = story.wait_for(3)
    hub.set_size(1)
    names = [world.pods[rank] for rank in victims]
    for name in names:
        story.members[name].signal_all(signal.SIGKILL)
    after = story.wait_for(3 - len(victims), world)
    assert after.pods == [pod for pod in world.pods if pod not in names]
    check_history(steps.read(), repeated=1)
    survivors = {line["pid"] for line in steps.read() if line["generation"] == after.generation}
    assert survivors <= {line["pid"] for line in steps.read() if line["generation"] == world.generation}


@pytest.mark.usefixtures("backend")
def test_a_loss_in_the_middle_of_a_regroup(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    story = Story(hub, pods, steps)
    story.start("pod-0")
    story.start("pod-1")
    world = story.wait_for(2)
    hub.set_size(1)
    story.start("pod-2")
    hub.wait_for(lambda: "ready" in hub.phases("pod-2"), timeout=120)
    story.members[world.pods[0]].signal_all(signal.SIGKILL)  # the grow is being announced or carried out
    hub.wait_for_world(2, newer_than=world.generation, timeout=120)
    last = hub.world
    assert last is not None
    steps.wait_for_world(2, last.generation)
    check_history(steps.read(), repeated=2)


@pytest.mark.usefixtures("backend")
def test_a_silent_member_does_not_hold_the_others(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    story = Story(hub, pods, steps)
    story.start("pod-0")
    story.start("pod-1")
    world = story.wait_for(2)
    hub.set_size(1)
    paused = story.members[world.pods[1]]
    paused.pause()
    hub.declare_lost(world.pods[1])
    alone = story.wait_for(1, world)
    paused.resume()
    story.wait_for(2, alone)
    old = [line for line in steps.read() if line["generation"] == world.generation]
    both = max(line["step"] for line in old if line["rank"] == 0)  # it may stop between such a step and its line
    late = [line for line in old if line["t"] > alone.announced_at and line["step"] > both]
    assert not late, "the old world made no step after the new one began"
    check_history(steps.read(), repeated=1)


def test_a_crashed_worker_comes_back_as_a_newcomer(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    hub.set_size(1)
    story = Story(hub, pods, steps)
    story.start("pod-0")
    world = story.wait_for(1)
    story.start("pod-1")
    world = story.wait_for(2, world)
    workers = {line["rank"]: line["pid"] for line in steps.read() if line["generation"] == world.generation}
    killer = next(p for p in story.members[world.pods[1]].workers() if p.pid == workers[1])
    killer.send_signal(signal.SIGKILL)
    again = hub.wait_for_world(2, newer_than=world.generation, timeout=120)
    steps.wait_for_world(2, again.generation)
    check_history(steps.read(), repeated=1)
    now = {line["rank"]: line["pid"] for line in steps.read() if line["generation"] == again.generation}
    assert now[0] == workers[0], "the survivor kept its process"
    assert now[1] != workers[1]
    told = {(one["generation"], one["rank"]) for one in hub.failures() if one.get("signal") == "SIGKILL"}
    assert told == {(world.generation, 1)}, "its rank in this world, and not the one that it was started with"


@pytest.mark.long
def test_the_loss_curve_does_not_depend_on_the_world(hub: FakeHub, pods: Pods, steps: Steps, tmp_path: Path) -> None:
    """A run that grows and loses a member ends where an undisturbed one does: constant global batch."""
    fixed: dict[str, str | None] = {"FIXED": "1"}
    story = Story(hub, pods, steps)
    hub.set_size(2, max_size=2)
    for i in range(3):
        story.start(f"pod-{i}", "--epochs", "16", env=fixed)
    hub.wait_for(lambda: len([a for a in hub.agents.values() if a.phase in ("ready", "running")]) == 3, timeout=120)
    world = story.wait_for(2)
    hub.set_size(1, max_size=3)
    world = story.wait_for(3, world)
    story.members[world.pods[0]].signal_all(signal.SIGKILL)
    assert [story.members[pod].wait(120) for pod in world.pods[1:]] == [0, 0]
    lines = steps.read()
    check_history(lines, repeated=1)
    alone = Steps(tmp_path / "alone")
    run_gang(
        Path(PROGRAM), 1, "--out", str(alone.folder), "--epochs=16", "--step-seconds=0", env={"FIXED": "1"}, timeout=120
    )
    undisturbed = {line["step"]: line["loss"] for line in alone.read()}
    disturbed = {line["step"]: line["loss"] for line in lines}
    assert max(undisturbed) == max(disturbed) == 16 * 20 - 1
    assert disturbed == pytest.approx(undisturbed, rel=1e-4)


def test_it_works_under_plain_torchrun(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    hub.set_size(1)
    story = Story(hub, pods, steps, launcher="torchrun")
    story.start("pod-0", "--epochs", "60")
    world = story.wait_for(1)
    story.start("pod-1", "--epochs", "60")
    story.wait_for(2, world)
    hub.stop()
    assert [pod.wait() for pod in story.members.values()] == [0, 0]
    check_history(steps.read(), repeated=0)


def test_a_compiled_model_survives(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    env: dict[str, str | None] = {"COMPILE": "1"}
    story = Story(hub, pods, steps)
    story.start("pod-0", env=env)
    story.start("pod-1", env=env)
    world = story.wait_for(2)
    hub.set_size(1)
    story.members[world.pods[0]].signal_all(signal.SIGKILL)
    story.wait_for(1, world)
    lines = steps.read()
    check_history(lines, repeated=1)
    assert len({line["pid"] for line in lines}) == 2, "the survivor kept its process"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        pytest.param("--step-seconds", "the world broke (a member was lost)", id="after a step: the agent tells"),
        pytest.param(
            "--before-seconds",
            "the world broke (",
            id="before a step: the agent, or the next collective",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_loss_is_noticed_by_a_script_that_sleeps(
    hub: FakeHub, pods: Pods, steps: Steps, where: str, said: str
) -> None:
    """Between two steps nothing tells of a loss but the agent; the session hears it before the next one."""
    story = Story(hub, pods, steps)
    for i in range(2):
        story.start(f"pod-{i}", where, "4")
    world = story.wait_for(2)
    hub.set_size(1)
    story.members[world.pods[1]].signal_all(signal.SIGKILL)
    hub.declare_lost(world.pods[1])
    story.wait_for(1, world)
    check_history(steps.read(), repeated=0)
    assert said in story.members[world.pods[0]].log


@pytest.mark.parametrize("where", ["--stuck-world", "--rest-world"])
def test_a_loss_interrupts_long_code(hub: FakeHub, pods: Pods, steps: Steps, where: str) -> None:
    """Far from any collective. A step is taken back and done again in the next world; between two steps none is."""
    story = Story(hub, pods, steps)
    hub.set_size(3)
    for i in range(3):
        story.start(f"pod-{i}", where, "3")
    world = story.wait_for(3)
    hub.set_size(2)
    story.members[world.pods[2]].signal_all(signal.SIGKILL)
    hub.declare_lost(world.pods[2])
    story.wait_for(2, world)
    lines = steps.read()
    check_history(lines, repeated=0)
    logs = "\n".join(story.members[pod].log for pod in world.pods[:2])
    assert len({line["pid"] for line in lines}) == 3, f"the survivors kept their processes:\n{logs}"


EVENTS = ("grow", "shrink", "kill")
SCHEDULES = [(seed, random.Random(seed).choices(EVENTS, k=length)) for seed, length in ((8, 3), (5, 2))]


@pytest.mark.parametrize(
    ("seed", "schedule"),
    [
        pytest.param(*SCHEDULES[0], id="grow-kill-grow"),
        pytest.param(*SCHEDULES[1], id="shrink-kill", marks=pytest.mark.long),
    ],
)
def test_any_schedule_gives_the_undisturbed_curve(
    hub: FakeHub, pods: Pods, steps: Steps, tmp_path: Path, seed: int, schedule: list[str]
) -> None:
    chance = random.Random(seed)
    fixed: dict[str, str | None] = {"FIXED": "1"}
    story = Story(hub, pods, steps)
    names = (f"pod-{i}" for i in itertools.count())
    for _ in range(2):
        story.start(next(names), env=fixed)
    world = story.wait_for(2)
    hub.set_size(1)
    for event in schedule:
        size = len(world.pods)
        if event == "grow" or size == 1:
            story.start(next(names), env=fixed)
            world = story.wait_for(size + 1, world)
            continue
        victim = chance.choice(world.pods)
        if event == "shrink":
            hub.remove(victim)
        else:
            story.members[victim].signal_all(signal.SIGKILL)
        world = story.wait_for(size - 1, world)
    hub.stop()
    lines = steps.read()
    check_history(lines, repeated=schedule.count("kill"))
    alone = Steps(tmp_path / "alone")
    last = max(line["step"] for line in lines)
    arguments = ("--out", str(alone.folder), f"--epochs={last // 20 + 1}", "--step-seconds=0")
    run_gang(Path(PROGRAM), 1, *arguments, env={"FIXED": "1"}, timeout=120)
    undisturbed = {line["step"]: line["loss"] for line in alone.read()}
    assert {line["step"]: line["loss"] for line in lines} == pytest.approx(
        {step: undisturbed[step] for step in {line["step"] for line in lines}}, rel=1e-3
    )


def test_a_dead_store_does_not_hold_a_survivor() -> None:
    """Found by chaos, seed 300: rank 0 died when its world was announced; survivors were killed while they tried."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    world = Place(generation=2, rank=1, world_size=2, address="127.0.0.1", port=port)
    answers = iter([False, False, True])
    with pytest.raises(RuntimeError) as lost:
        ProcessGroups("gloo", 60).enter(world, lambda: next(answers))
    assert is_world_failure(lost.value, lambda: False), "the session waits for the next world"


def test_a_rank_that_failed_to_enter_a_world_finds_the_others_in_the_next() -> None:
    """Found by chaos, seed 302: torch counts the groups that it could not make, and names the next one by that."""
    program = """
import threading, time
from torch.distributed import TCPStore
import torch.distributed as dist
from elasticjob.channel.place import Place
from elasticjob.sessions.process_groups import ProcessGroups
names = []
for generation, size in ((1, 2), (2, 1)):
    server = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    world = Place(generation, rank=0, world_size=size, address="127.0.0.1", port=server[0].port, group_world_size=size)
    if size == 2:  # nobody else comes, and the store goes
        threading.Timer(1.0, server.clear).start()
    try:
        ProcessGroups("gloo", 30).enter(world, lambda: False)
        print("entered", dist.group.WORLD.group_name)
    except RuntimeError:
        print("failed")
"""
    done = run_alone(program)
    assert lines_of(done.stdout) == ["failed", "entered 0"], done.stderr


def test_models_that_a_session_cannot_carry_are_refused() -> None:
    program = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from elasticjob import Session
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
plain = torch.nn.Linear(2, 2)
sharded = torch.nn.Linear(2, 2)
from torch.distributed.device_mesh import init_device_mesh
fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
for model in (sharded, DistributedDataParallel(plain)):
    try:
        Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    except ValueError as error:
        print(error)
dist.destroy_process_group()
"""
    done = run_alone(program)
    sharded, wrapped = lines_of(done.stdout)
    assert "cannot keep a sharded model: 'weight' is a DTensor" in sharded
    assert "Session(build=...)" in sharded
    assert "Give it the plain module" in wrapped


def test_errors_reach_the_script_where_no_other_world_can_come() -> None:
    """Without an agent neither a bug nor a lost world may be passed over: nobody calls the process again."""
    program = """
import torch
from elasticjob import Session
from elasticjob.errors import CollectiveFailedError
model = torch.nn.Linear(1, 1)
session = Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
for block in (session.step, session.interruptible):
    for error in (ValueError("a bug"), CollectiveFailedError("Connection closed by peer")):
        try:
            with block():
                raise error
            print("passed over")
        except (ValueError, CollectiveFailedError) as raised:
            print(raised)
"""
    done = run_alone(program)
    assert lines_of(done.stdout) == ["a bug", "Connection closed by peer"] * 2, done.stderr


@pytest.mark.parametrize(
    ("begin", "warnings"), [("", 1), ("import sys; sys.ps1 = '>>> '", 0)], ids=["script", "notebook"]
)
def test_a_second_session_without_an_agent_is_told_that_a_job_refuses_it(begin: str, warnings: int) -> None:
    """Folds of a cross-validation work on a laptop. In an interactive interpreter a cell is only repeated."""
    program = f"""
{begin}
import torch
from elasticjob import Session
for _ in range(2):
    model = torch.nn.Linear(1, 1)
    Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).close()
"""
    said = run_alone(program).stderr
    assert said.count("An ElasticJob refuses a second session in one process") == warnings, said
    assert said.count("or one after the other in jobs of their own") == warnings


@pytest.mark.parametrize("how", ["step", "caught", "own", "interrupted", "block", "caught-block", "message"])
def test_a_lost_world_is_freed_without_the_collector(hub: FakeHub, pods: Pods, steps: Steps, how: str) -> None:
    """What a session keeps of the error that has ended a block keeps the frames of the script, and their world."""
    steps.folder.mkdir(exist_ok=True)
    program = Path(PROGRAM).with_name("held_program.py")
    for pod in ("pod-0", "pod-1"):
        pods.start(pod, str(program), launcher="elasticjob-run", env={"HOW": how, "OUT": str(steps.folder)})
    steps.wait(lambda lines: any(line["step"] > 8 and line["lost"] for line in lines))
    assert {line["held"] for line in steps.read() if line["step"] > 8 and line["lost"]} == {0}
