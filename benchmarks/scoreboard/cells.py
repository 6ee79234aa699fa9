"""What the scoreboard is made of: cells, their statistics, and who stands first. Pure.

A cell is one system in one row, with a sample for each repetition. A sample is None if the event never happened within
its time limit, which counts as worse than any number. A cell without samples has a reason.

The statistic of a cell is its median. The interval is the exact one of order statistics: [k-th smallest, k-th largest]
covers the median of any continuous distribution with probability 1 - 2 B(k - 1), where B is the cumulative binomial
distribution with n trials and probability 1/2 (David and Nagaraja, Order Statistics, 7.1). It needs no seed, assumes no
distribution, and admits what a few repetitions are worth: 75 % with three, 94 % with five, 97 % with six.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Sample = float | None
Unit = Literal["s", "share", "steps", "bytes", "writes"]
HIGHER_IS_BETTER = frozenset({"share"})
WANTED_COVERAGE = 0.95


@dataclass(frozen=True)
class Cell:
    """One system in one row. `note` says what happened instead of the event, or why nothing was measured.

    `phases` are those of the last repetition: see `timeline.find_phases`.
    """

    row: str
    unit: Unit
    system: str
    settings: str
    script: str
    ours: bool = False
    samples: tuple[Sample, ...] = ()
    note: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Board:
    """One run. `loads` are the machine's one-minute load averages, one for each measurement."""

    machine: str
    date: str
    seed: int
    quick: bool
    loads: tuple[float, ...] = ()
    cells: tuple[Cell, ...] = ()
    command: str = ""

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> Board:
        made = [Cell(**{**cell, "samples": tuple(cell["samples"])}) for cell in raw["cells"]]
        return cls(**{**raw, "loads": tuple(raw["loads"]), "cells": tuple(made)})


def add(cells: Sequence[Cell], new: Cell) -> tuple[Cell, ...]:
    """The cells with one more: a further sample of a known cell is added to it, and a blank never replaces samples."""
    found = {(cell.row, cell.system): cell for cell in cells}
    old = found.get((new.row, new.system), new)
    if old is not new and new.samples:
        notes = [note for note in dict.fromkeys([old.note if old.samples else "", new.note]) if note]
        new = replace(new, samples=old.samples + new.samples, note="; ".join(notes))
    elif old.samples:
        new = old
    found[new.row, new.system] = new
    return tuple(found.values())


@dataclass(frozen=True)
class Interval:
    low: Sample
    high: Sample
    coverage: float


def find_median(samples: Sequence[Sample]) -> Sample:
    """None if the median repetition never happened."""
    found = statistics.median([math.inf if sample is None else sample for sample in samples])
    return found if math.isfinite(found) else None


def find_interval(samples: Sequence[Sample], wanted: float = WANTED_COVERAGE) -> Interval:
    """The narrowest order-statistics interval of the median that covers it with at least `wanted`, or the widest."""
    ordered = sorted(math.inf if sample is None else sample for sample in samples)
    count, below, first = len(ordered), 0.0, 0
    for left_out in range((count + 1) // 2):  # on each side
        tail = below + math.comb(count, left_out) / 2**count
        if left_out and 1 - 2 * tail < wanted:
            break
        below, first = tail, left_out
    ends = [value if math.isfinite(value) else None for value in (ordered[first], ordered[-1 - first])]
    return Interval(ends[0], ends[1], max(0.0, 1 - 2 * below))


def find_order(cell: Cell) -> tuple[int, float]:
    """Sort key, best first: measured, never happened, not measured."""
    if not cell.samples:
        return 2, 0.0
    median = find_median(cell.samples)
    if median is None:
        return 1, 0.0
    return 0, -median if cell.unit in HIGHER_IS_BETTER else median


def group_by_row(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Every row in its first order of appearance, with its cells, the best first."""
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row, []).append(cell)
    return {row: sorted(found, key=find_order) for row, found in rows.items()}


@dataclass(frozen=True)
class Standing:
    """The best of each side in one row, and ours divided by theirs, if both have a median."""

    row: str
    ours: Cell | None
    peer: Cell | None
    ratio: float | None

    @property
    def is_peers(self) -> bool:
        """Whether a peer stands first."""
        return self.peer is not None and (self.ours is None or find_order(self.peer) < find_order(self.ours))


def find_standings(cells: Sequence[Cell]) -> list[Standing]:
    """One for each row that was measured; those that a peer wins come first."""
    found = []
    for row, ordered in group_by_row(cells).items():
        ours, peer = (next((c for c in ordered if c.ours is side and c.samples), None) for side in (True, False))
        if ours is None and peer is None:
            continue
        values = [find_median(cell.samples) if cell else None for cell in (ours, peer)]
        ratio = values[0] / values[1] if values[0] is not None and values[1] else None
        found.append(Standing(row, ours, peer, ratio))
    return sorted(found, key=lambda standing: not standing.is_peers)
