"""How fast a job is at each size: what it has measured, what that says of other sizes, and how sure that is. Pure.

A step of n pods takes `a/n + b + c(n - 1)` seconds: work that is shared, work that is not, and communication that grows
(the form of Optimus, EuroSys 2018). None of the three is ever negative, so no model, whatever a job reports, promises
more than twice the speed for twice the pods. Before anything is measured a prior stands for them; each measurement
moves the estimate by ridge regression, and old measurements count ever less.

Where the batch of a job grows with its size, its speed is counted in samples, and a sample of a larger batch is worth
less: that which the larger batch averages away is only the noise of the gradient. With the noise scale p (the batch
that is noise by half), a sample in a batch B is worth (p + A) / (p + B) of one in a batch A: the statistical efficiency
of Pollux (OSDI 2021), and AdaScale's gain over the ratio of the batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

HALF_LIFE_SECONDS: Final = 1800.0  # after which a measurement counts half
MOST_WEIGHT: Final = 60.0  # of the measurements of one size, in reports
LEAST_WEIGHT: Final = 10.0  # of the measurements of a size, however old
NOISE: Final = 0.1  # relative error of one report
FASTEST, SLOWEST = 1e-7, 1e6  # seconds of a step; what lies beyond is not believed
LARGEST: Final = 2**31  # samples of a batch, and so of the noise scale

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
    batch: int = 0  # samples of a step; 0: the batch does not grow, and a step is worth the same at every size


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
    noise: float | None = None  # the noise scale, in samples; None: not measured, so every sample is worth the same

    def learn(self, size: int, seconds: float, now: float, weight: float = 1.0, batch: int = 0) -> Model:
        """With one more report of the seconds that a step takes at this size; nonsense teaches nothing.

        Steps of a batch that grows say nothing of steps that are worth the same at every size, and the other way round.
        """
        if size < 1 or not math.isfinite(seconds) or not FASTEST <= seconds <= SLOWEST or not weight > 0:
            return self
        if not 0 <= batch <= LARGEST:
            return self
        points = {n: point for n, point in self.points.items() if bool(point.batch) == bool(batch)}
        known = points.get(size)
        points[size] = Point(seconds, min(weight, MOST_WEIGHT), now, batch)
        if known is not None and known.batch == batch:
            kept = known.weight * _decay(now - known.at)
            mean = (kept * known.seconds + weight * seconds) / (kept + weight)
            points[size] = Point(mean, min(kept + weight, MOST_WEIGHT), max(now, known.at), batch)
        return replace(self, points=MappingProxyType(points))

    def hear_noise(self, scale: float | None) -> Model:
        """With the noise scale that was reported last, in samples; nonsense is ignored."""
        if scale is None or scale == self.noise or not 0 <= scale <= LARGEST:
            return self
        return replace(self, noise=scale)

    @property
    def grows(self) -> bool:
        """Whether the batch of the job grows with its size, so that the points are of steps of the optimizer."""
        return self._least_batch > 0

    @cached_property
    def latest(self) -> float:
        """When the last report came; 0 before the first."""
        return max((point.at for point in self.points.values()), default=0.0)

    @cached_property
    def fit(self) -> Fit:
        """As of the last report: a job that says nothing (it waits, it is suspended) forgets nothing."""
        weighted = [(n, self._seconds(p), self._weigh(p)) for n, p in self.points.items()]
        return _fit([one for one in weighted if one[2] > 1e-3 and FASTEST <= one[1] <= SLOWEST])

    def _weigh(self, point: Point) -> float:
        """Old measurements never count for nothing: what a size was once measured to be says more than the prior."""
        return max(point.weight * _decay(self.latest - point.at), min(point.weight, LEAST_WEIGHT))

    def _seconds(self, point: Point) -> float:
        """Of a step, or where the batch grows, of as many samples as the smallest known batch has."""
        return point.seconds * self._least_batch / point.batch if point.batch else point.seconds

    @cached_property
    def _least_batch(self) -> int:
        return min((point.batch for point in self.points.values()), default=0)

    def speed(self, size: int) -> float:
        return self.speeds_of((size,))[0]

    def speeds_of(self, sizes: Sequence[int]) -> list[float]:
        """Steps a second at each size; where the batch grows, those of the smallest known batch that teach as much."""
        seconds = self.fit.seconds_of(sizes)
        if self.noise is None or not self._least_batch:
            return [1.0 / one for one in seconds]
        fixed, each = self._batch_line
        worths = (find_worth(self.noise, fixed + each * size, self._least_batch) for size in sizes)
        return [worth / one for worth, one in zip(worths, seconds, strict=True)]

    @cached_property
    def _batch_line(self) -> tuple[float, float]:
        """The batch as a part that stays and one that comes with each pod: by the smallest and the largest known size.

        If only one size is known, all of it comes with the pods.
        """
        low, high = min(self.points), max(self.points)
        small, large = self.points[low].batch, self.points[high].batch
        each = max(0.0, (large - small) / (high - low)) if high > low else large / high
        fixed = large - each * high
        return (fixed, each) if fixed >= 0 else (0.0, large / high)


def find_worth(noise: float, batch: float, than: float) -> float:
    """What a sample in this batch teaches, compared with one in a batch of `than`, which is above 0."""
    return (noise + than) / (noise + batch)


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
