"""Random changes of the world over a session whose copies need several ranks: copies × shards, as `--mesh 2x2` says.

With `--mesh 1x2x2` it is copies × pods of a copy × ranks of a pod, and all but the copies are shards.

The operator's own planner seats the pods: worlds have whole copies, and others wait. Every step must be, bit by bit,
that of an undisturbed run (`curve`), and no loss may cost more than the operator's own account of it says
(`membership.losses`). Histories of odd seeds keep copies of their shards in other pods, which serve a single copy.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos import curve, sessions
from chaos.sessions import PATIENCE, Event
from chaos.trials import Report
from elasticjob.context import buddies
from elasticjob_operator.api import MeshDimension
from elasticjob_operator.api.mesh import Cut, find_cut
from elasticjob_operator.membership import groups, losses
from elasticjob_operator.membership.losses import Keeping, Loss, Source
from worker.fake_hub import FakeHub, World
from worker.fake_pods import Pods, Steps

LOST = {"shrink": 1, "kill": 1, "kill-two": 2, "grow-and-kill": 1, "shrink-and-kill": 2}
KINDS = ("grow", "spare", "crash", *LOST)
SAVE_EVERY, MOST_RANKS = 10, 8  # as ej_curve saves, and has virtual ranks
COPYING = 6  # steps after which a copy that was begun with a world is there, also on a busy machine
LATE = 2  # times as many steps: a copy or a file may take longer than one step


@dataclass(frozen=True, slots=True)
class Mesh:
    """The mesh with which a history begins. Its first dimension grows and shrinks."""

    copies: int
    pods: int  # of a copy
    nproc: int = 1  # ranks of a pod

    @property
    def shards(self) -> int:
        return self.pods * self.nproc

    @property
    def size(self) -> int:
        """In pods, as the next."""
        return self.copies * self.pods

    @property
    def largest(self) -> int:
        return max(self.size, min(self.size + self.pods, MOST_RANKS // self.nproc))

    @property
    def cut(self) -> Cut:
        """As of `elasticPolicy.mesh`."""
        sizes = {"copy": None, "pod": self.pods, "rank": self.nproc}
        return find_cut([MeshDimension(name=name, size=size) for name, size in sizes.items()], self.nproc)

    @property
    def model(self) -> str:
        """Of `ej_curve`. What is only copied is no sharded model."""
        return "fsdp" if self.shards > 1 else "transformer"

    def __str__(self) -> str:
        return f"{self.copies}x{self.pods}" + (f"x{self.nproc}" if self.nproc > 1 else "")


def read_mesh(text: str) -> Mesh:
    """From an option of the command line, as "2x2"."""
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split("x")]
    if len(sizes) not in (2, 3) or not all(sizes):
        what = "COPIESxSHARDS, such as 2x2, or COPIESxPODSxRANKS, such as 1x2x2; a session has no other dimensions"
        raise argparse.ArgumentTypeError(f"{text!r}: {what}")
    return Mesh(*sizes)


@dataclass(frozen=True, slots=True)
class Change:
    """From one generation to another, and the steps that may be made again."""

    before: int
    after: int
    source: Source = Source.RANKS
    steps: int = 0


def seat(
    mesh: Mesh, world: Sequence[str], ready: Sequence[str], parts: Mapping[str, Collection[int]] | None = None
) -> list[str]:
    """Who is in the next world, by rank. Pure."""
    survivors = [one for one in world if one in ready]
    coming = [one for one in ready if one not in world]
    size = len(ready) // mesh.cut.layout.step * mesh.cut.layout.step
    return groups.choose(world, survivors, coming, size, mesh.cut.layout, parts=parts)


def count_new(kind: str, living: int, mesh: Mesh) -> int:
    """The pods that this event starts: for a growth as many as the next copy lacks. Pure."""
    return 1 if kind == "spare" else mesh.pods - living % mesh.pods if kind.startswith("grow") else 0


def make_schedule(seed: int, length: int, mesh: Mesh) -> list[Event]:
    """Events that always leave the pods of a copy; half of the losses include rank 0. Pure."""
    chance, living = random.Random(seed), mesh.size
    events: list[Event] = []
    while len(events) < length:
        kind = chance.choice(KINDS)
        most, members = living + count_new(kind, living, mesh), living // mesh.pods * mesh.pods
        after = most - LOST.get(kind, 0)
        if most > mesh.largest or after < mesh.pods or (kind in LOST and members < 2):
            continue
        first = 0 if chance.random() < 0.5 else chance.randrange(members)
        second = first + chance.randrange(1, max(2, members))
        events.append(Event(kind, (first, second % members), chance.uniform(0, 0.2)))
        living = after
    return events


def foresee(mesh: Mesh, event: Event, world: Sequence[str], ready: Sequence[str], copy_every: int) -> Loss:
    """What an event costs that is no announced change. Pure."""
    ranks = event.ranks if "two" in event.kind else event.ranks[:1]
    pods = [world[rank] for rank in ranks]
    keeping = Keeping(
        stays=True,
        copy_every=copy_every,
        save_every=SAVE_EVERY,
        keepers=buddies.find_keepers(range(len(world)), 1),
    )
    lost, emptied = ([], pods) if event.kind == "crash" else (pods, [])
    return losses.foresee(world, lost, ready, cut=mesh.cut, keeping=keeping, emptied=emptied)


def check_costs(lines: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> list[str]:
    """The changes that cost more than they may. Pure."""
    wrong = []
    for change in changes:
        # An earlier generation may have got further.
        made = max(line["step"] for line in lines if line["generation"] == change.before)
        later = [line["step"] for line in lines if change.before < line["generation"] <= change.after]
        first = min(later, default=made)
        if first < made - change.steps:
            where = f"generation {change.after} goes back from step {made} to {first}"
            wrong.append(
                f"{where}, though the state comes from {change.source}, of at most {change.steps} steps before"
            )
    return wrong


def check_groups(mesh: Mesh, before: Sequence[str], after: Sequence[str], loss: Loss) -> list[str]:
    """The copies that a loss should have left as they were, and has not. Pure."""
    old, new = groups.split(before, mesh.cut.layout), groups.split(after, mesh.cut.layout)
    return [f"the pods of copy {at} are no copy after {loss}: {after}" for at in loss.whole if old[at] not in new]


class Stage(sessions.Stage):
    """Executes a schedule; the pods that have no place in a copy wait."""

    def __init__(
        self, mesh: Mesh, hub: FakeHub, pods: Pods, steps: Steps, command: Sequence[str], copy_every: int = 0
    ) -> None:
        super().__init__(hub, pods, steps, command, nproc=mesh.nproc)
        self.mesh, self.copy_every = mesh, copy_every
        self.changes: list[Change] = []
        self.wrong: list[str] = []
        hub.seat = lambda world, ready: seat(mesh, world, ready, self._find_parts())

    @property
    def world_size(self) -> int:
        return len(self.members) // self.mesh.pods * self.mesh.pods

    def _find_parts(self) -> dict[str, Collection[int]]:
        return {agent.uid: agent.state.get("shards", ()) for agent in list(self.hub.agents.values())}

    def await_copies(self, world: World) -> None:
        """Until the first copy of a world is there, a second loss may find each shard in one pod only."""

        def are_there(lines: Sequence[Mapping[str, Any]]) -> bool:
            made: list[int] = [line["step"] for line in lines if line["generation"] == world.generation]
            return max(made) - min(made) >= COPYING

        self.steps.wait(are_there, PATIENCE)

    def act(self, event: Event, world: World) -> World:
        if self.copy_every:
            self.await_copies(world)
        living = [self.hub.agents[pod] for pod in self.members if pod in self.hub.agents]
        others = [agent.uid for agent in living if agent.uid not in world.agents]
        loss = None
        if event.kind == "crash" or event.kind.startswith("kill"):
            loss = foresee(self.mesh, event, world.agents, others, self.copy_every)
        ranks = event.ranks if "two" in event.kind else event.ranks[:1]
        lost = [world.pods[rank] for rank in ranks] if "kill" in event.kind else []
        leaving = world.pods[event.ranks[1]]
        regroups = len(self.hub.regroups)
        for _ in range(count_new(event.kind, len(self.members), self.mesh)):
            self.start_pod()
        if event.kind.startswith("shrink"):
            self.hub.remove(leaving)
            del self.members[leaving]
        if event.kind.endswith("-and-kill"):
            self.hub.wait_for(lambda: len(self.hub.regroups) > regroups, PATIENCE, "a regroup")
            time.sleep(event.delay)  # any moment of the regroup will do
        if event.kind == "crash":
            self.crash(world, world.pods[event.ranks[0]], event.ranks[1] % self.mesh.nproc)
        for pod in lost:
            self.kill(pod)
            del self.members[pod]
        if event.kind == "spare" and self.world_size == len(world.pods):
            newest = list(self.members)[-1]
            self.hub.wait_for(lambda: newest in self.hub.agents, PATIENCE, "the spare")
            return world
        found = self.await_world(self.world_size, world.generation)
        if loss is not None:
            self.changes.append(Change(world.generation, found.generation, loss.source, LATE * (loss.steps or 0)))
            self.wrong += check_groups(self.mesh, world.agents, found.agents, loss)
        elif not event.kind.endswith("-and-kill"):
            self.changes.append(Change(world.generation, found.generation))
        return found


def run_trial(
    seed: int, length: int, steps: int, mesh: Mesh, references: curve.References, directory: Path
) -> tuple[int, list[str]]:
    """The number of changes, and the violations. The history goes on until it has at least this number of steps."""
    done: list[str] = []
    copy_every = seed % 2 if mesh.model == "fsdp" else 0
    out, folder = Steps(directory / f"mesh-{seed}"), directory / f"mesh-pods-{seed}"
    folder.mkdir()
    arguments = ["--model", mesh.model, "--shards", str(mesh.shards), "--copy-every", str(copy_every)]
    arguments += ["--out", str(out.folder), "--checkpoints", str(folder / "checkpoints"), "--step-seconds", "0.01"]
    try:
        with FakeHub(size=mesh.size) as hub, Pods(folder, hub.url) as pods:
            stage = Stage(mesh, hub, pods, out, (str(curve.PROGRAM), *arguments), copy_every)
            world = stage.begin(mesh.size)
            for event in make_schedule(seed, length, mesh):
                done.append(str(event))
                world = stage.act(event, world)
            curve.await_steps(out, steps)
    except Exception:
        logs = "\n".join(f"{pod.name}: {pod.log[-1500:]}" for pod in pods.pods.values())
        return len(done), [f"seed {seed}, {mesh}, after {done}: {traceback.format_exc()}\n{logs}"]
    lines = out.read()
    right = references.find(mesh.model, max(line["step"] for line in lines) + 1)
    wrong = [*curve.check(lines, right), *check_costs(lines, stage.changes), *stage.wrong]
    return len(done), [f"seed {seed}, {mesh}, {done}: {one}" for one in wrong[:5]]


def run(seed: int, histories: int, length: int, mesh: Mesh, directory: Path) -> Report:
    """Schedules of consecutive seeds; repeat a run with `--only sessions --mesh 2x2 --seed N`."""
    report, began, references = Report(f"sessions {mesh}", seed), time.monotonic(), curve.References(directory)
    for number in range(seed, seed + histories):
        faults, wrong = run_trial(number, length, 60, mesh, references, directory)
        report.histories += 1
        report.faults += faults
        report.violations += wrong
        events = ", ".join(map(str, make_schedule(number, length, mesh)))
        print(f"{'WRONG' if wrong else 'ok':5} seed {number}: {events}", flush=True)
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report
