"""How fast a job is at each size: what it has measured, what that says of other sizes, and how sure that is. Pure.

A step of n pods takes `a/n + b + c(n - 1)` seconds: work that is shared, work that is not, and communication that grows
(the form of Optimus, EuroSys 2018). None of the three is ever negative, so no model, whatever a job reports, promises
more than twice the speed for twice the pods. Before anything is measured a prior stands for them; each measurement
moves the estimate by ridge regression, and old measurements count ever less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

HALF_LIFE_SECONDS: Final = 1800.0  # after which a measurement counts half
MOST_WEIGHT: Final = 60.0  # of the measurements of one size, in reports
NOISE: Final = 0.1  # relative error of one report
FASTEST, SLOWEST = 1e-7, 1e6  # seconds of a step; what lies beyond is not believed

# Of a job that takes one second on one pod: (shared, not shared, growth), and how far each may be off.
PRIOR: Final = (0.95, 0.05, 0.003)
SPREAD: Final = (0.2, 0.1, 0.005)

Vector = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one size."""

    seconds: float  # of a step, a mean
    weight: float  # in reports
    at: float  # of the last report, seconds since the epoch


@dataclass(frozen=True, slots=True)
class Fit:
    """The three terms, and their covariance."""

    terms: Vector
    covariance: tuple[Vector, Vector, Vector]

    def seconds(self, size: int) -> float:
        return self.seconds_of((size,))[0]

    def seconds_of(self, sizes: Iterable[int]) -> list[float]:
        """Of a step at each size."""
        a, b, c = self.terms
        return [max(FASTEST, a / size + b + c * (size - 1)) for size in sizes]

    def doubt(self, size: int, than: int) -> float:
        """Standard deviation of the speed at `size` relative to that at `than`, as a share of it."""
        seconds = self.seconds(size)
        ratio = seconds / self.seconds(than)
        u = (1.0 / size - ratio / than, 1.0 - ratio, size - 1.0 - ratio * (than - 1.0))
        one, two, three = self.covariance
        spread = u[0] * _dot(one, u) + u[1] * _dot(two, u) + u[2] * _dot(three, u)
        return math.sqrt(max(0.0, spread)) / seconds


@dataclass(frozen=True)
class Model:
    """The throughput of one job. `learn` gives the next one."""

    points: Mapping[int, Point] = field(default_factory=lambda: MappingProxyType({}))  # by size in pods

    def learn(self, size: int, seconds: float, now: float, weight: float = 1.0) -> Model:
        """With one more report of the seconds that a step takes at this size; nonsense teaches nothing."""
        if size < 1 or not math.isfinite(seconds) or not FASTEST <= seconds <= SLOWEST or not weight > 0:
            return self
        known = self.points.get(size)
        point = Point(seconds, min(weight, MOST_WEIGHT), now)
        if known is not None:
            kept = known.weight * _decay(now - known.at)
            mean = (kept * known.seconds + weight * seconds) / (kept + weight)
            point = Point(mean, min(kept + weight, MOST_WEIGHT), max(now, known.at))
        return Model(MappingProxyType({**self.points, size: point}))

    @property
    def latest(self) -> float:
        """When the last report came; 0 before the first."""
        return max((point.at for point in self.points.values()), default=0.0)

    @cached_property
    def fit(self) -> Fit:
        """As of the last report: a job that says nothing (it waits, it is suspended) forgets nothing."""
        weighted = [(n, p.seconds, p.weight * _decay(self.latest - p.at)) for n, p in self.points.items()]
        return _fit([point for point in weighted if point[2] > 1e-3])

    def speed(self, size: int) -> float:
        """Steps a second."""
        return 1.0 / self.fit.seconds(size)


def _decay(seconds: float) -> float:
    return math.exp2(-max(0.0, seconds) / HALF_LIFE_SECONDS)


def _features(size: int) -> Vector:
    return (1.0 / size, 1.0, size - 1.0)


def _dot(one: Vector, two: Vector) -> float:
    return one[0] * two[0] + one[1] * two[1] + one[2] * two[2]


def _fit(points: list[tuple[int, float, float]]) -> Fit:
    """Ridge regression of relative errors around the prior, which is scaled to what was measured."""
    total = sum(weight for _, _, weight in points)
    scale = sum(w * s / _dot(PRIOR, _features(n)) for n, s, w in points) / total if total else 1.0
    precision = [1.0 / (spread * scale) ** 2 for spread in SPREAD]
    matrix = [[precision[i] if i == j else 0.0 for j in range(3)] for i in range(3)]
    right = [precision[i] * PRIOR[i] * scale for i in range(3)]
    for size, seconds, weight in points:
        x, w = _features(size), weight / (NOISE * seconds) ** 2
        for i in range(3):
            right[i] += w * x[i] * seconds
            for j in range(3):
                matrix[i][j] += w * x[i] * x[j]
    inverse = _invert(matrix, precision)
    terms = _solve_positive(matrix, right, precision)
    return Fit(terms, inverse)


def _solve_positive(matrix: list[list[float]], right: list[float], least: list[float]) -> Vector:
    """The solution in which terms that would be negative are 0."""
    free = [0, 1, 2]
    while free:
        solved = _solve(
            [[matrix[i][j] for j in free] for i in free], [right[i] for i in free], [least[i] for i in free]
        )
        negative = [i for i, value in zip(free, solved, strict=True) if value < 0]
        if not negative:
            found = dict(zip(free, solved, strict=True))
            return (found.get(0, 0.0), found.get(1, 0.0), found.get(2, 0.0))
        free = [i for i in free if i not in negative]
    raise AssertionError("a positive definite matrix and a positive right side have a term above zero")


def _solve(matrix: list[list[float]], right: list[float], least: list[float]) -> list[float]:
    """Gauss, of a matrix that is positive definite and so needs no pivots.

    It is the sum of a diagonal (`least`) and of squares. So no pivot is below that diagonal, unless by rounding: sizes
    whose reports differ by the factor of a million leave none of it.
    """
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i, row in enumerate(rows):
        row[i] = max(row[i], least[i])
        for below in rows[i + 1 :]:
            factor = below[i] / row[i]
            for j in range(i, len(row)):
                below[j] -= factor * row[j]
    solved = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        rest = sum(rows[i][j] * solved[j] for j in range(i + 1, len(rows)))
        solved[i] = (rows[i][-1] - rest) / rows[i][i]
    return solved


def _invert(matrix: list[list[float]], least: list[float]) -> tuple[Vector, Vector, Vector]:
    columns = [_solve(matrix, [1.0 if i == j else 0.0 for i in range(3)], least) for j in range(3)]
    one, two, three = ((column[0], column[1], column[2]) for column in columns)
    return (one, two, three)
