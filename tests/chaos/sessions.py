"""Random changes of the world over a session, and the checker of what its ranks wrote: (generation, step, rank).

A schedule is made from a seed alone. Real agents and workers carry it out against the small hub of the worker's tests;
every rank writes a line for each step that it committed, with a hash of its parameters.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.trials import Report
from frameworks.environment import BIN, PROGRAMS
from worker.fake_hub import FakeHub, World
from worker.fake_pods import Pod, Pods, Steps
from worker.programs.ej_session import GLOBAL_BATCH, SAMPLES

PATIENCE = 120.0
LOSSES = {"kill": 1, "kill-two": 2, "grow-and-kill": 1, "shrink-and-kill": 2, "crash": 0}


@dataclass(frozen=True, slots=True)
class Program:
    """What the pods run. It takes --out, --epochs and --step-seconds, and writes the lines that `check` reads."""

    suite: str
    path: Path
    launcher: str = "elasticjob-run"  # a path if it is in another environment
    arguments: tuple[str, ...] = ()
    repeated: int = 1  # steps that are made again after a loss, the broken one included
    every: int | None = None  # steps between checkpoints, if two losses at once may need one


PLAIN = Program("sessions", Path(__file__).resolve().parents[1] / "worker/programs/ej_session.py")
SHARDED = Program(
    "sharded", PLAIN.path.with_name("ej_sharded.py"), arguments=("--copy-every", "1"), repeated=3, every=10
)
LIGHTNING = Program("lightning", PROGRAMS / "lightning_changes.py", str(BIN / "elasticjob-run"))


@dataclass(frozen=True, slots=True)
class Event:
    """One change. `ranks` are those of the world at that time, modulo its size."""

    kind: str  # grow, shrink, or one of LOSSES
    ranks: tuple[int, int] = (0, 1)
    delay: float = 0.0  # seconds between the announcement of a change and a kill in the middle of it

    def __str__(self) -> str:
        return f"{self.kind} {self.ranks[0]}+{self.ranks[1]}"


def make_schedule(seed: int, length: int, size: int = 3, largest: int = 4) -> list[Event]:
    """Events that always leave a survivor; half of the losses include rank 0. Pure."""
    chance = random.Random(seed)
    events: list[Event] = []
    while len(events) < length:
        kind = chance.choice(("grow", "shrink", *LOSSES))
        after = size - LOSSES.get(kind, 0) + {"grow": 1, "grow-and-kill": 1, "shrink": -1}.get(kind, 0)
        if not 1 <= after <= largest or (kind != "grow" and size < 2):
            continue
        first = 0 if chance.random() < 0.5 else chance.randrange(1, 4)
        events.append(Event(kind, (first, first + chance.randrange(1, max(2, size))), chance.uniform(0, 0.2)))
        size = after
    return events


def check(lines: Sequence[dict[str, Any]], repeated: int = 1) -> list[str]:
    """The violations in this history; empty if there are none. `repeated` steps may be made again. Pure."""
    wrong: list[str] = []
    hashes: dict[tuple[int, int], set[str]] = defaultdict(set)
    ranks: dict[tuple[int, int], list[int]] = defaultdict(list)  # of a generation and rank: the steps, in order
    for line in lines:
        generation, step = line["generation"], line["step"]
        if "hash" in line:  # a sharded model's is a collective, which a loss may break
            hashes[generation, step].add(line["hash"])
        ranks[generation, line["rank"]].append(step)
        epoch, used = line["used"]
        if epoch * SAMPLES + used != (step + 1) * GLOBAL_BATCH:
            wrong.append(f"step {step} of generation {generation}: epoch {epoch} is at sample {used}")
    wrong += [f"parameters differ after step {s} of generation {g}" for (g, s), h in hashes.items() if len(h) > 1]
    for (generation, rank), steps in ranks.items():
        # A rank that missed the end of a step gets it from another, and writes no line for it.
        if any(after - before not in (1, 2) for before, after in itertools.pairwise(steps)):
            wrong.append(f"rank {rank} of generation {generation} made the steps {steps}")
    spans: dict[int, list[int]] = defaultdict(list)
    for (generation, _), steps in ranks.items():
        spans[generation] += steps
    for before, after in itertools.pairwise(sorted(spans)):
        gap = min(spans[after]) - max(spans[before])
        if not 1 - repeated <= gap <= 1:
            what = f"{1 - gap} steps are repeated" if gap < 0 else f"{gap - 1} steps are missing"
            wrong.append(f"{what} between generations {before} and {after}")
    return wrong


class Stage:
    """Executes a schedule."""

    def __init__(
        self,
        hub: FakeHub,
        pods: Pods,
        steps: Steps,
        command: Sequence[str],
        launcher: str = PLAIN.launcher,
        nproc: int = 1,
    ) -> None:
        """`command` is the program and its arguments; its processes write their steps below `steps.folder`."""
        self.hub, self.pods, self.steps = hub, pods, steps
        self.command, self.launcher, self.nproc = command, launcher, nproc
        self.members: dict[str, Pod] = {}
        self.names = (f"pod-{i}" for i in itertools.count())

    def start_pod(self) -> None:
        name = next(self.names)
        env: dict[str, str | None] = {"PET_NPROC_PER_NODE": str(self.nproc)}
        self.members[name] = self.pods.start(name, *self.command, launcher=self.launcher, env=env)

    def begin(self, size: int) -> World:
        self.hub.set_size(size)
        for _ in range(size):
            self.start_pod()
        world = self.await_world(size, 0)
        self.hub.set_size(1)
        return world

    def await_world(self, size: int, newer_than: int) -> World:
        """A world of this size in which every rank has made a step; others may come and go before it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            world = self.hub.wait_for_world(size, newer_than, max(1.0, deadline - time.monotonic()))
            if self._await_steps(world, deadline):
                return world

    def _await_steps(self, world: World, deadline: float) -> bool:
        """False where the world ended before every rank had made a step."""
        while time.monotonic() < deadline:
            made = {line["rank"] for line in self.steps.read() if line["generation"] == world.generation}
            if len(made) == len(world.pods) * self.nproc:
                return True
            if self.hub.world is not world or world.over:
                return False
            time.sleep(0.05)
        raise AssertionError(f"no step of every rank in {world}; {self.hub.describe()}")

    def kill(self, pod: str) -> None:
        self.members[pod].signal_all(signal.SIGKILL)
        self.hub.declare_lost(pod)

    def act(self, event: Event, world: World) -> World:
        """The world after this event."""
        size = len(world.pods)
        first, second = (world.pods[rank % size] for rank in event.ranks)
        regroups = len(self.hub.regroups)
        if event.kind in ("grow", "grow-and-kill"):
            self.start_pod()
            size += 1
        if event.kind in ("shrink", "shrink-and-kill"):
            self.hub.remove(second)
            size -= 1
        if event.kind.endswith("-and-kill"):
            self.hub.wait_for(lambda: len(self.hub.regroups) > regroups, PATIENCE, "a regroup")
            time.sleep(event.delay)  # any moment of the regroup will do
        if event.kind == "crash":
            self.crash(world, first)
        if "kill" in event.kind:
            self.kill(first)
            size -= 1
        if event.kind == "kill-two":
            self.kill(second)
            size -= 1
        return self.await_world(size, world.generation)

    def crash(self, world: World, pod: str, local_rank: int = 0) -> None:
        """Only the worker dies: its pod and its agent stay."""
        self.members[pod].signal_worker(self.worker_of(world, pod, local_rank), signal.SIGKILL)

    def worker_of(self, world: World, pod: str, local_rank: int = 0) -> int:
        rank = world.pods.index(pod) * self.nproc + local_rank
        return next(
            int(line["pid"])
            for line in self.steps.read()
            if (line["generation"], line["rank"]) == (world.generation, rank)
        )


def run_trial(
    seed: int, length: int, directory: Path, size: int = 3, program: Program = PLAIN
) -> tuple[int, list[str]]:
    """The number of faults, and the violations."""
    schedule, done = make_schedule(seed, length, size), []
    steps = Steps(directory / f"steps-{seed}")
    folder = directory / f"pods-{seed}"
    folder.mkdir()
    try:
        with FakeHub(size=size) as hub, Pods(folder, hub.url) as pods:
            arguments = ("--out", str(steps.folder), "--step-seconds", "0.02", "--epochs", "100000", *program.arguments)
            if program.every is not None:
                arguments += ("--checkpoints", str(directory / f"saved-{seed}"))
            stage = Stage(hub, pods, steps, (str(program.path), *arguments), program.launcher)
            world = stage.begin(size)
            for event in schedule:
                done.append(str(event))
                world = stage.act(event, world)
    except Exception:
        logs = "\n".join(f"{pod.name}: {pod.log[-1500:]}" for pod in pods.pods.values())
        return len(done), [f"seed {seed}, after {done}: {traceback.format_exc()}\n{logs}"]
    repeated = program.repeated
    if program.every is not None and any(LOSSES.get(event.kind) == 2 for event in schedule):
        repeated += program.every
    return len(done), [f"seed {seed}, {done}: {wrong}" for wrong in check(steps.read(), repeated)]


def run(seed: int, histories: int, length: int, directory: Path, program: Program = PLAIN) -> Report:
    """Schedules of consecutive seeds; repeat a run with `--only sessions --seed N`, or the program's own suite."""
    report, began = Report(program.suite, seed), time.monotonic()
    for number in range(seed, seed + histories):
        faults, wrong = run_trial(number, length, directory, program=program)
        report.histories += 1
        report.faults += faults
        report.violations += wrong
        events = ", ".join(map(str, make_schedule(number, length)))
        print(f"{'WRONG' if wrong else 'ok':5} seed {number}: {events}", flush=True)
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report
