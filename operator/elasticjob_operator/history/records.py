"""The records of a job's history: small frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    FORMED = "Formed"  # a world was formed
    LOST = "Lost"  # a member of it was lost
    RUNS = "Runs"  # all of its members run, and time counts from now on
    STEPPED = "Stepped"  # its first step was reported
    TRAINS = "Trains"  # it is training, as far as that is measured
    BROKE = "Broke"  # it no longer trains
    SAVED = "Saved"  # its steps have waited for checkpoints
    RECEIVED = "Received"  # its ranks have given each other the state that some lacked
    EMPTIED = "Emptied"  # no pod is left, and time stops counting
    FAILED = "Failed"  # a failure was charged to the budget
    FORGIVEN = "Forgiven"  # a failure that was not charged
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    COMPLETED = "Completed"
    GAVE_UP = "GaveUp"  # the job has failed
    STUCK = "Stuck"  # no step is reported, although steps were reported before
    STRAGGLES = "Straggles"  # a member is slower than the others
    SICK = "Sick"  # a rule of the job has found something
    DEGRADED = "Degraded"  # the job has less than it wants


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    time: float  # seconds since the epoch
    generation: int = 0
    cause: str = ""  # cause of the world, or reason of the failure or condition
    ranks: tuple[int, ...] = ()
    size: int = 0  # pods of the world
    before: int = 0  # pods of the world before it, or 0
    seconds: float | None = None  # of a recovery or transfer, without a step before a world broke, or waited for saves
    who: str = ""  # whom the cause of a world is about
    step: int | None = None  # the first one of a world, or the last one before it broke
    step_seconds: float | None = None
    count: int = 1  # how many such things happened, or bytes
    message: str = ""
    revision: int = 0  # of the code of a world
