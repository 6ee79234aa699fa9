"""What the log lines of a run say: when a world was there, how long nobody trained, and where the time went.

Pure: takes lines, returns values. A world is there when every one of its ranks has made its first step in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One step of one rank. `step` is 0 for the first one in this world."""

    t: float
    node: int
    pid: int
    rank: int
    world: int
    step: int
    count: int = 0


@dataclass(frozen=True)
class Mark:
    """Something else that happened to a process: see `scripts/lines.py`."""

    t: float
    node: int
    pid: int
    mark: str


@dataclass(frozen=True)
class Formed:
    """A world that is there: the first step of each rank."""

    first: Mapping[int, Step]

    @property
    def began(self) -> float:
        return min(step.t for step in self.first.values())

    @property
    def complete(self) -> float:
        return max(step.t for step in self.first.values())

    def node_of(self, rank: int) -> int:
        return self.first[rank].node


def parse_line(node: int, text: str) -> Step | Mark | None:
    """One line of a script's log; anything else that was printed there is no line of ours."""
    try:
        raw = json.loads(text)
        if "mark" in raw:
            return Mark(float(raw["t"]), node, int(raw["pid"]), str(raw["mark"]))
        return Step(
            float(raw["t"]),
            node,
            int(raw["pid"]),
            int(raw["rank"]),
            int(raw["world"]),
            int(raw["step"]),
            int(raw.get("count", 0)),
        )
    except (ValueError, KeyError, TypeError):
        return None


def find_world(steps: Iterable[Step], size: int, after: float) -> Formed | None:
    """The first world of this size whose first steps were all made after `after`."""
    first: dict[int, Step] = {}
    for step in sorted(steps, key=lambda step: step.t):
        if step.t <= after or step.world != size or step.step != 0:
            continue
        first[step.rank] = step  # a rank that tried twice counts with its later try
        if len(first) == size:
            return Formed(first)
    return None


def find_pause(steps: Iterable[Step], world: Formed) -> float | None:
    """From the last step of the world before to the first step of every rank in this one."""
    before = [step.t for step in steps if step.t < world.began]
    return world.complete - max(before) if before else None


def find_longest_gap(steps: Iterable[Step], begin: float, end: float) -> float:
    """The longest time in [begin, end] in which nobody made a step."""
    times = sorted(step.t for step in steps if begin <= step.t <= end)
    return max(later - earlier for earlier, later in pairwise([begin, *times, end]))


def find_stale(steps: Iterable[Step], world: Formed, node: int, after: float) -> list[Step]:
    """Steps that a node of this world still made in it after `after`. A process that outlives it may join another."""
    old = {step.pid for step in world.first.values() if step.node == node}
    later = sorted((step for step in steps if step.pid in old and step.t > after), key=lambda step: step.t)
    return list(takewhile(lambda step: step.step != 0, later))


PHASES = ("detect", "stop", "regroup", "rendezvous", "spawn", "import", "connect", "first step")


def find_phases(event: float, world: Formed, marks: Sequence[Mark], moments: Mapping[str, float]) -> dict[str, float]:
    """Where the time between the event and the new world went, along the rank that was last to be there.

    `moments` are what the launcher saw after the event, whichever it can see: `told` (the first survivor
    was told, or saw the failure), `stopped` (the last old worker is gone), `world` (the new world was announced).
    A moment that nobody saw takes no time of its own: it falls to the next phase. A launcher that shows none has
    one phase, `rendezvous`, for all that comes before the new process.
    """
    last = max(world.first.values(), key=lambda step: step.t)
    mine = {mark.mark: mark.t for mark in marks if mark.pid == last.pid}
    ends = {
        "detect": moments.get("told"),
        "stop": moments.get("stopped"),
        "regroup": moments.get("world"),
        "rendezvous": None if moments else mine.get("script"),
        "spawn": mine.get("script"),
        "import": mine.get("imported"),
        "connect": mine.get("connected"),
        "first step": world.complete,
    }
    spent, now = dict.fromkeys(PHASES, 0.0), event
    for phase in PHASES:
        end = ends[phase]
        if end is not None and end > now:
            spent[phase], now = end - now, end
    return spent


class Tail:
    """Reads what is new in the logs of all nodes: `DIRECTORY/<node>/*.jsonl`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.steps: list[Step] = []
        self.marks: list[Mark] = []
        self._offsets: dict[Path, int] = {}

    def read(self) -> None:
        for path in self.directory.glob("*/*.jsonl"):
            with path.open("rb") as stream:
                stream.seek(self._offsets.get(path, 0))
                new = stream.read()
            complete = new.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + complete
            for text in new[:complete].decode().splitlines():
                found = parse_line(int(path.parent.name), text)
                if isinstance(found, Step):
                    self.steps.append(found)
                elif found is not None:
                    self.marks.append(found)
