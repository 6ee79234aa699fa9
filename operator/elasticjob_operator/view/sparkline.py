"""Small plots of one line of text, for terminals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from elasticjob_operator.client.history import Point

_BARS: Final = "▁▂▃▄▅▆▇█"
_NOTHING: Final = " "
_LARGEST: Final = 1e300  # larger numbers have no sum, and no difference


def sparkline(points: Sequence[Point], *, width: int = 24, steps: bool = False, end: float | None = None) -> str:
    """The course of a value, `width` characters wide at most. The highest value is a full bar.

    `steps`: a value holds until the next one, and zero is an empty place; each character then is a part of the time
    until `end`. Otherwise each is the mean of some values, and the lowest one is the lowest bar.
    """
    finite = [p for p in points if math.isfinite(p.value)]
    if not finite:
        return ""
    shrink = max(1.0, max(abs(p.value) for p in finite) / _LARGEST)
    finite = [Point(p.time, p.value / shrink) for p in finite]
    values = _over_time(finite, width, end) if steps else _means([p.value for p in finite], width)
    low, high = (0.0, max(values)) if steps else (min(values), max(values))
    return "".join(_bar(value, low, high, empty=steps) for value in values)


def _over_time(points: Sequence[Point], width: int, end: float | None) -> list[float]:
    """The value at the end of each part of the time."""
    start, stop = points[0].time, max(points[-1].time, end or 0.0)
    if stop <= start:
        return [points[-1].value]
    values, current, at = [], points[0].value, 0
    for part in range(width):
        until = start + (stop - start) * (part + 1) / width
        while at < len(points) and points[at].time <= until:
            current = points[at].value
            at += 1
        values.append(current)
    return values


def _means(values: Sequence[float], width: int) -> list[float]:
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def _bar(value: float, low: float, high: float, *, empty: bool) -> str:
    if empty and value <= 0:
        return _NOTHING
    if high <= low:
        return _BARS[len(_BARS) // 2]
    return _BARS[min(len(_BARS) - 1, int((value - low) / (high - low) * len(_BARS)))]
