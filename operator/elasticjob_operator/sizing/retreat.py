"""Sizes at which the script cannot start. Pure.

A job that has trained with fewer pods, and fails at its start in each world since it has grown, goes back to the size
that worked, until its spec changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.times import parse_time

STABLE_SECONDS = 30.0  # a world that ran for this long did not fail at its start
TRIES = 2  # a single failure may have another cause


@dataclass(frozen=True, slots=True)
class FailedGrowth:
    """The script has trained with `small` pods, and failed at its start in `worlds` consecutive worlds of `large`."""

    small: int
    large: int
    worlds: int


def find_failed_growth(worlds: Sequence[api.WorldStatus], measured: api.Measured, now: float) -> FailedGrowth | None:
    """Whether the last world, which has just failed, and those before it of the same size never trained."""
    if not worlds:
        return None
    first = next((i for i in range(len(worlds), 0, -1) if worlds[i - 1].size != worlds[-1].size), 0)
    if not first or worlds[first - 1].size > worlds[-1].size:
        return None
    times = [parse_time(world.time) for world in worlds[first - 1 :]]
    ends = [*times[1:], now]
    lives = [0.0 if t is None or end is None else end - t for t, end in zip(times, ends, strict=True)]
    steps = measured is api.Measured.STEPS
    trained = steps and worlds[first - 1].lost_seconds is not None
    if not trained and lives[0] < STABLE_SECONDS:
        return None
    for world, life in zip(worlds[first:], lives[1:], strict=True):
        if world.lost_seconds is not None if steps else life >= STABLE_SECONDS:
            return None
    return FailedGrowth(worlds[first - 1].size, worlds[-1].size, len(worlds) - first)


def should_go_back(growth: FailedGrowth, spec: api.Spec, *, is_last_try: bool) -> bool:
    """Whether to leave the size that fails now. `is_last_try`: another failure would end the job."""
    return spec.min_replicas <= growth.small and (growth.worlds >= TRIES or is_last_try)


def describe(room: api.CapacityStatus) -> str:
    return (
        f"the script trained with {room.worked_size} pods and failed at its start with {room.failed_size}: it goes on"
        f" with {room.worked_size} until the spec changes. Mend the script, or set spec.replicas to {room.worked_size}"
    )
