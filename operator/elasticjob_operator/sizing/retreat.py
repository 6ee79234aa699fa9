"""Sizes at which the script cannot start. Pure.

A job that fails at its start in each world since it has grown or shrunk, by a loss or by its user, has no world of that
size any more. One that has grown goes back to the size that worked: sizes between the two are left out, too. One that
has shrunk tries the next smaller size, as a script that divides by the number of ranks works again with fewer.

They are tried again when what may have mended the script changes, and one of them when somebody asks for it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.model.revise import revise
from elasticjob_operator.times import parse_time

STABLE_SECONDS = 30.0  # a world that ran for this long did not fail at its start
LEAST_SECONDS, TIMES_LONGER = 10.0, 5  # nor did one that ran for so long, and so much longer than what failed next
TRIES = 2  # a single failure may have another cause
MOST_TRIED = 16  # smaller sizes, one after the other
MOST_SIZES = 256  # that are left out


@dataclass(frozen=True, slots=True)
class FailedChange:
    """The script has trained with `worked` pods, and failed at its start in `worlds` consecutive worlds of `failed`."""

    worked: int
    failed: int
    worlds: int

    @property
    def left_out(self) -> range:
        """The sizes that no world has any more."""
        return range(min(self.failed, max(self.worked + 1, self.failed - MOST_SIZES + 1)), self.failed + 1)


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


def should_go_back(change: FailedChange, others: int, *, is_last_try: bool) -> bool:
    """Whether to leave the size that fails now. `others`: the largest legal size without it, 0 if there is none.
    `is_last_try`: another failure would end the job.
    """
    return others > 0 and (change.worlds >= TRIES or is_last_try)


def leave_out(room: api.CapacityStatus | None, change: FailedChange, cause: str) -> api.CapacityStatus:
    """`cause`: of all that may have let it fail, but for the size."""
    room = room or api.CapacityStatus()
    sizes = sorted({*room.failed_sizes, *change.left_out})[-MOST_SIZES:]
    return revise(room, failed_sizes=sizes, cause=cause)


def keep(room: api.CapacityStatus | None, cause: str, asked: int | None) -> api.CapacityStatus | None:
    """What is left of it when the spec has changed: pods that were withdrawn are tried again at once, sizes that failed
    only if the cause may have gone. `asked`: the size that somebody has asked for now, and not before.
    """
    if room is None or room.cause != cause:
        return None
    return api.CapacityStatus(failed_sizes=[size for size in room.failed_sizes if size != asked], cause=cause)


def describe(sizes: Sequence[int]) -> str:
    """Why no world has these sizes. They are sorted."""
    spans: list[list[int]] = []
    for size in sizes:
        if spans and spans[-1][-1] == size - 1:
            spans[-1].append(size)
        else:
            spans.append([size])
    which = " and ".join(str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans)
    return (
        f"the script trained with another number of pods and failed at its start: no world has {which} until what may"
        " mend it changes, such as the template, or spec.replicas is set to such a size anew. Mend the script, or write"
        " the sizes that work as elasticPolicy.replicaIncrementStep or replicaDiscreteValues"
    )
