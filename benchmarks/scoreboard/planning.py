"""The order of the measurements, and how long each takes. Pure, given the random numbers.

Systems take turns within an event, in an order that the seed chooses anew for each round, so that neither a warm page
cache nor a slow minute of the machine always meets the same one. Slow systems are measured once, after all others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import cases
from benchmarks.launchers.catalogue import Contestant

STOP_SECONDS = 1.0


@dataclass(frozen=True)
class Task:
    """One event under one system."""

    case: cases.Case
    contestant: Contestant


def plan_events(
    chosen: Sequence[cases.Case], contestants: Sequence[Contestant], repeats: int, rng: random.Random
) -> tuple[list[Task], list[Task]]:
    """What is measured in each round, and what is measured once at the end."""

    def shuffle(case: cases.Case, among: Sequence[Contestant]) -> list[Task]:
        able = [one for one in among if case.name not in one.lacks]
        return [Task(case, one) for one in rng.sample(able, len(able))]

    fast = [one for one in contestants if not one.is_slow]
    rounds = [task for _ in range(repeats) for case in chosen for task in shuffle(case, fast)]
    return rounds, [task for case in chosen for task in shuffle(case, [one for one in contestants if one.is_slow])]


def estimate_seconds(task: Task) -> float:
    """How long a measurement takes, roughly: the start, the time to settle, the event, and the end."""
    start = task.contestant.start_seconds + STOP_SECONDS
    if task.case is cases.COORDINATOR:
        return start + cases.SETTLE + cases.SURVIVAL
    if task.case.act is None:
        return start
    waits = cases.SILENCE if task.case.act is cases.pause else 0.0
    return start + cases.SETTLE + task.contestant.event_seconds + waits


def estimate_rescale(contestant: Contestant) -> float:
    """How long a job of two takes that grows to three."""
    return contestant.start_seconds + cases.SETTLE + 2 * contestant.event_seconds + STOP_SECONDS
