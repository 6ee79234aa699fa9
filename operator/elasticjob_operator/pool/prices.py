"""What progress of each job is worth: the objective by name. Pure.

The allocator maximises the sum of what the speeds of all jobs are worth. All that an objective says is in the prices.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from elasticjob_operator.pool.values import PATIENCE_SECONDS, Objective, Request

ELASTICITY: Final = 0.7  # of speed in devices, over all jobs: n devices are as fast as n**0.7


@dataclass(frozen=True, slots=True)
class Price:
    """What speed is worth to the pool. Up to the speed of its share, that of a job that lacks some of it is worth more.

    No more than its share: of two jobs that gain alike, the one that had less would get all, until it had had more.
    """

    each: float = 0.0
    bonus: float = 0.0  # as a share of it
    fair: float = 0.0  # the speed at an equal share

    def value(self, speed: float) -> float:
        return self.each * (speed + self.bonus * min(speed, self.fair))


NOTHING: Final = Price()


def find_prices(requests: Sequence[Request], capacity: int, objective: Objective) -> list[Price]:
    """One price a request, in their order; every one is finite and above zero."""
    fair = _find_fair_speeds(requests, capacity)
    each = _price_completion(requests) if objective is Objective.COMPLETION else [1.0 / speed for speed in fair]
    return [
        Price(price * max(one.weight, 1e-6), max(0.0, one.behind_seconds) / PATIENCE_SECONDS, speed)
        for price, one, speed in zip(each, requests, fair, strict=True)
    ]


def _find_fair_speeds(requests: Sequence[Request], capacity: int) -> list[float]:
    """The speed of each job if the devices were shared equally, by weight."""
    total = sum(max(one.weight, 1e-6) for one in requests)
    return [_speed_at_share(one, capacity * max(one.weight, 1e-6) / total) for one in requests]


def _speed_at_share(request: Request, share: float) -> float:
    """The speed at the largest legal size within so many devices, or at the smallest of all."""
    curve = request.curve
    index = bisect_right(curve.sizes, share / curve.devices) - 1
    return max(curve.speeds[max(0, index)], 1e-9)


def _price_completion(requests: Sequence[Request]) -> list[float]:
    """heSRPT (Berg, Vesilo and Harchol-Balter, 2020): what a second less of the i-th longest job saves all of them.

    The shortest job of m has the highest price, about that of m jobs which wait for it, and the longest has 1. Where
    the rest of a job is not known, what it has had stands in for it: most jobs that have run for long run for long.
    """
    power = 1.0 / (1.0 - ELASTICITY)
    order = sorted(range(len(requests)), key=lambda i: (-_rest(requests[i]), requests[i].order, str(requests[i].key)))
    prices = [1.0] * len(requests)
    for rank, index in enumerate(order, start=1):
        prices[index] = (rank**power - (rank - 1) ** power) ** (1.0 / power)
    return prices


def _rest(request: Request) -> float:
    rest = request.served_seconds if request.remaining_seconds is None else request.remaining_seconds
    return max(0.0, rest) if math.isfinite(rest) else math.inf


def next_lags(requests: Sequence[Request], speeds: Sequence[float], capacity: int, seconds: float) -> list[float]:
    """The seconds of its share that each job lacks, after it had this speed for so long; never below zero."""
    return [
        max(0.0, one.behind_seconds + (1.0 - speed / fair) * max(0.0, seconds))
        for one, speed, fair in zip(requests, speeds, _find_fair_speeds(requests, capacity), strict=True)
    ]
