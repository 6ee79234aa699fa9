"""Sizes at which the script cannot start. Pure.

A job that has trained with fewer pods, and fails at its start in each world since it has grown, goes back to the size
that worked, until its spec changes. One that has trained with more pods, and fails since it has shrunk, by a loss or by
its user, has no world of that size any more: a script that divides by the number of ranks works again with fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.times import parse_time

STABLE_SECONDS = 30.0  # a world that ran for this long did not fail at its start
LEAST_SECONDS, TIMES_LONGER = 10.0, 5  # nor did one that ran for so long, and so much longer than what failed next
TRIES = 2  # a single failure may have another cause
MOST_SIZES = 16  # that are left because fewer pods did not work


@dataclass(frozen=True, slots=True)
class FailedChange:
    """The script has trained with `worked` pods, and failed at its start in `worlds` consecutive worlds of `failed`."""

    worked: int
    failed: int
    worlds: int

    @property
    def is_growth(self) -> bool:
        return self.failed > self.worked


def find_failed_change(worlds: Sequence[api.WorldStatus], measured: api.Measured, now: float) -> FailedChange | None:
    """Whether the last world, which has just failed, and those before it of the same size never trained."""
    if not worlds:
        return None
    first = next((i for i in range(len(worlds), 0, -1) if worlds[i - 1].size != worlds[-1].size), 0)
    if not first:
        return None
    times = [parse_time(world.time) for world in worlds[first - 1 :]]
    ends = [*times[1:], now]
    lives = [0.0 if t is None or end is None else end - t for t, end in zip(times, ends, strict=True)]
    steps = measured is api.Measured.STEPS
    trained = steps and worlds[first - 1].lost_seconds is not None
    if not trained and lives[0] < min(STABLE_SECONDS, max(LEAST_SECONDS, TIMES_LONGER * max(lives[1:]))):
        return None
    for world, life in zip(worlds[first:], lives[1:], strict=True):
        if world.lost_seconds is not None if steps else life >= STABLE_SECONDS:
            return None
    return FailedChange(worlds[first - 1].size, worlds[-1].size, len(worlds) - first)


def should_go_back(change: FailedChange, spec: api.Spec, others: int, *, is_last_try: bool) -> bool:
    """Whether to leave the size that fails now. `others`: the largest legal size without it, 0 if there is none.
    `is_last_try`: another failure would end the job.
    """
    if change.worlds < TRIES and not is_last_try:
        return False
    if change.is_growth:
        return spec.min_replicas <= change.worked
    return others > 0


def describe_shrunk(sizes: Sequence[int]) -> str:
    """The sizes that were left because fewer pods did not work."""
    which = " and ".join(map(str, sizes))
    return (
        f"the script trained with more pods and failed at its start with {which}: no world has {which} until the spec"
        " changes. Mend the script, or write the sizes that work as elasticPolicy.replicaIncrementStep or"
        " replicaDiscreteValues"
    )


def describe(room: api.CapacityStatus) -> str:
    return (
        f"the script trained with {room.worked_size} pods and failed at its start with {room.failed_size}: it goes on"
        f" with {room.worked_size} until the spec changes. Mend the script, or set spec.replicas to {room.worked_size}"
    )
