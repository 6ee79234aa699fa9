"""What happened to a job: one small frozen record each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    FORMED = "Formed"  # a world was formed
    LOST = "Lost"  # a member of it was lost
    RUNS = "Runs"  # all of it runs, and time counts from now on
    STEPPED = "Stepped"  # its first step was reported
    TRAINS = "Trains"  # it trains, as far as that is measured
    BROKE = "Broke"  # it trains no more
    EMPTIED = "Emptied"  # no pod is left, and time counts no more
    FAILED = "Failed"  # a failure was charged to the budget
    FORGIVEN = "Forgiven"  # a failure that costs nothing
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    COMPLETED = "Completed"
    GAVE_UP = "GaveUp"  # the job has failed
    STUCK = "Stuck"  # no step is made where steps were made before
    DEGRADED = "Degraded"  # the job has less than it wants


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    time: float  # seconds since the epoch
    generation: int = 0
    cause: str = ""  # of the world; of a failure or a condition, its reason
    ranks: tuple[int, ...] = ()
    size: int = 0  # pods of the world
    before: int = 0  # pods of the world before it, or 0
    seconds: float | None = None  # what a recovery took, or how long a world that broke had made no step
    count: int = 1  # how many such things happened
    message: str = ""
