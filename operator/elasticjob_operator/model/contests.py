"""Two writers who fight about the size of a job: a GitOps tool and an autoscaler, for example. Pure.

Each of them sees only that its value does not stay. The API server knows who wrote a field last. While they fight, the
job does not grow: it would regroup at every change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator.model import ownership

WINDOW_SECONDS: Final = 120.0
LEAST: Final = 4  # changes within that time, by more than one writer
MOST: Final = 8  # changes that are remembered, and writers that are looked at


@dataclass(frozen=True, slots=True)
class Change:
    at: float
    replicas: int
    writer: str


History = tuple[Change, ...]


def find_writer(metadata: Mapping[str, Any]) -> str:
    """The field manager that has written `spec.replicas` last; "" if it is not known."""
    return next(reversed([*ownership.find_writers(metadata, "replicas")]), "")


def note(history: History, replicas: int, writer: str, now: float) -> History:
    """The history with this size, if it is another one."""
    if history and history[-1].replicas == replicas:
        return history
    return (*history, Change(now, replicas, writer))[-MOST:]


@dataclass(frozen=True, slots=True)
class Contest:
    """What the writers are told, and when it is over if nobody writes any more."""

    message: str
    until: float


def find_contest(history: History, now: float) -> Contest | None:
    """Who writes the size in turn, and the remedy; None if nobody does."""
    recent = [one for one in history if one.writer and one.at > now - WINDOW_SECONDS]
    sizes = {one.writer: one.replicas for one in recent}
    again = [writer for writer in sizes if sum(one.writer == writer for one in recent) > 1]  # not who made the job
    if len(recent) < LEAST or len(again) < 2:
        return None
    writers = " and ".join(f"{writer} (to {size})" for writer, size in sorted(sizes.items()))
    message = (
        f"spec.replicas is changed in turn by {writers}, {len(recent)} times within two minutes, so the job does not "
        "grow until they stop: let all but one of them leave the field out"
    )
    return Contest(message, recent[-LEAST].at + WINDOW_SECONDS)
