"""The checker: reads the workers' records of their training, and reports where two worlds trained at once. Pure.

Each line is one step of one worker: (time, event, generation, rank, pod). A step of collective training needs all
members, so a world *trains* while every one of its members makes steps: a worker that continues alone, cut off or just
resumed, does no harm. `check(strict=True)` forbids even that: if no worker was cut off or paused, all members of a
generation have stopped before any starts in a later one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    t: float
    event: str  # start, step, stop, done, end
    generation: int
    rank: int
    step: int
    pod: str
    size: int = 0  # with start: members of the world


def read_history(file: Path) -> list[Line]:
    if not file.exists():
        return []
    lines = []
    for text in file.read_text().splitlines():
        try:
            raw = json.loads(text)
        except ValueError:  # a worker was killed while it wrote
            continue
        lines.append(Line(**{k: raw[k] for k in Line.__slots__ if k in raw}))
    return sorted(lines, key=lambda line: line.t)


@dataclass(frozen=True, slots=True)
class Told:
    """One world, as recorded by its members."""

    generation: int
    size: int
    started: float
    last: dict[str, float]  # by pod: the last step
    ranks: dict[int, set[str]]

    @property
    def whole_until(self) -> float:
        """The time of the last step that all members made; -inf if there is none."""
        if len(self.last) < max(self.size, 1):
            return float("-inf")
        return min(self.last.values())

    @property
    def any_until(self) -> float:
        return max(self.last.values(), default=float("-inf"))


def tell_worlds(lines: Iterable[Line]) -> list[Told]:
    by_generation: dict[int, list[Line]] = {}
    for line in lines:
        if line.generation and line.event in ("start", "step"):
            by_generation.setdefault(line.generation, []).append(line)
    worlds = []
    for generation, told in sorted(by_generation.items()):
        steps = [x for x in told if x.event == "step"]
        ranks: dict[int, set[str]] = {}
        for line in told:
            ranks.setdefault(line.rank, set()).add(line.pod)
        last = {x.pod: x.t for x in steps}
        size = max(x.size for x in told)
        worlds.append(Told(generation, size, min(x.t for x in told), last, ranks))
    return worlds


def check(lines: list[Line], *, strict: bool = True) -> list[str]:
    """The violations in this history; empty if there are none."""
    worlds, wrong = tell_worlds(lines), []
    for world in worlds:
        wrong += [
            f"generation {world.generation}: rank {rank} is held by {sorted(pods)}"
            for rank, pods in world.ranks.items()
            if len(pods) > 1
        ]
    for i, older in enumerate(worlds):
        until = older.any_until if strict else older.whole_until
        for newer in worlds[i + 1 :]:
            if until > newer.started:
                over = until - newer.started
                wrong.append(f"generation {older.generation} trained {over:.3f} s after {newer.generation} had started")
    return wrong + _check_pods(lines)


def _check_pods(lines: list[Line]) -> list[str]:
    """A worker never goes back to an older generation."""
    last: dict[str, int] = {}
    wrong = []
    for line in lines:
        if line.generation < last.get(line.pod, 0) and line.event == "step":
            wrong.append(f"{line.pod} went back from generation {last[line.pod]} to {line.generation}")
        last[line.pod] = max(line.generation, last.get(line.pod, 0))
    return wrong
