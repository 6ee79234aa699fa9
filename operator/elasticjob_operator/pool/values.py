"""What the allocator is asked and what it answers: frozen values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from elasticjob_operator.pool.throughput import Model

HORIZON_SECONDS: Final = 300.0  # for which a decision is expected to hold
PATIENCE_SECONDS: Final = 7200.0  # of its share that a job may lack until its devices count double


class Objective(StrEnum):
    GOODPUT = "goodput"  # the weighted sum of speed-ups over equal shares
    COMPLETION = "completion"  # the mean time until jobs complete
    EQUAL = "equal"  # equal shares, by weight


@dataclass(frozen=True, slots=True)
class Curve:
    """The speed of a job at each of its legal sizes. One unit is the speed that the smallest size has with each device.

    As far as it grows it has to be concave: what a step adds a device gets ever less. Those of `measure` are.
    """

    sizes: tuple[int, ...]  # pods, ascending
    speeds: tuple[float, ...]
    devices: int  # of a pod


def measure(model: Model, sizes: tuple[int, ...], devices: int) -> Curve:
    """The curve of a job whose pods have so many devices."""
    speeds = model.speeds_of(sizes)
    unit = sizes[0] * devices / speeds[0]
    return Curve(sizes, tuple(unit * speed for speed in speeds), devices)


@dataclass(frozen=True)
class Request:
    """One job that shares the pool."""

    key: Hashable
    curve: Curve
    size: int = 0  # pods it has now; 0: it has not been admitted
    model: Model | None = None  # that the curve is made of; without one the curve is not in doubt
    weight: float = 1.0
    order: float = 0.0  # of arrival: the earlier is admitted first
    remaining_seconds: float | None = None  # on one device; None: not known
    served_seconds: float = 0.0  # of one device, so far: stands in for what remains where that is not known
    change_seconds: float = 0.2  # of training that a change of size costs
    behind_seconds: float = 0.0  # that it lacks against equal shares
    due_seconds: float | None = None  # until it has to be done; None: no deadline. Counts where what remains is known
    is_paid: bool = False  # whether its devices cost money: it gets no more of them than its deadline needs

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.curve.sizes

    @property
    def speed(self) -> float:
        """At the size that it has."""
        return self.curve.speeds[max(0, bisect_right(self.sizes, self.size) - 1)] if self.size else 0.0


class Limit(StrEnum):
    """What keeps a job from having more."""

    NONE = ""  # it has all that it may have
    OTHERS = "pool"  # other jobs gain more from the devices
    ROOM = "room"  # there are too few devices for its smallest size
    CHANGE = "cost"  # a change would gain less than it costs
    DEADLINE = "deadline"  # it keeps its deadline, and more would cost more


@dataclass(frozen=True, slots=True)
class Grant:
    """What one job gets."""

    size: int  # pods; 0: it is not admitted
    ideal: int  # pods, if changes were free
    limit: Limit = Limit.NONE
    gain: float = 0.0  # speed compared with the size that it has, minus one
    next_gain: float = 0.0  # what one more step in size would add to the speed
    is_late: bool = False  # at this size it will not be done when it has to be
