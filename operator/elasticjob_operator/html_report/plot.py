"""Plots as inline SVG, without scripts and libraries. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elasticjob_operator.client.history import Point
from elasticjob_operator.text import printable

WIDTH: Final = 960
HEIGHT: Final = 170
LEFT: Final = 64
RIGHT: Final = 16
TOP: Final = 26
BOTTOM: Final = 24


def escape(text: str) -> str:
    """Text of anybody for HTML, without control characters."""
    return html.escape(printable(text))


@dataclass(frozen=True)
class Mark:
    """A vertical line at a time, with its tooltip."""

    time: float
    text: str
    style: str = "mark"


@dataclass(frozen=True)
class Scale:
    """Maps the values of one axis to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        span = self.high - self.low
        part = (value - self.low) / span if span > 0 else 0.5
        return round(self.start + part * (self.stop - self.start), 2)


SMALLEST, LARGEST = 1e-300, 1e300  # distances of ticks, with which one can still compute


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that cover a range: steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = high / count - low / count  # of which neither is infinite
    if not SMALLEST < raw < LARGEST:
        return [low, high]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def time_ticks(seconds: float) -> list[tuple[float, str]]:
    """(seconds since the start, label), at the usual steps of a clock."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)
    weeks = math.ceil(seconds / (8 * steps[-1]))
    step = next((s for s in steps if seconds / s <= 8), steps[-1] * weeks)
    return [(t, clock(t)) for t in range(0, int(seconds) + 1, step)]


def clock(seconds: float) -> str:
    """The time since the start: `0:42`, `12:05`, `3:07:00`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def draw(
    title: str,
    points: Sequence[Point],
    *,
    start: float,
    end: float,
    style: str,
    marks: Sequence[Mark] = (),
    steps: bool = False,
    log: bool = False,
    unit: str = "",
) -> str:
    """One panel over time. `steps`: a value holds until the next one; otherwise the points are connected.

    `log`: the axis is logarithmic; values that are not positive are omitted.
    """
    finite = [p for p in points if math.isfinite(p.value)]
    at_end = ": not finite at the end" if points and not math.isfinite(points[-1].value) else ""
    if log:
        title = f"{title} (logarithmic)"
        finite = [Point(p.time, math.log10(p.value)) for p in finite if p.value > 0]
    highest = max([p.value for p in finite], default=1.0)
    lowest = min([p.value for p in finite], default=0.0)
    bottom = float(math.floor(lowest)) if log else min(0.0, lowest)
    ticks = nice_ticks(bottom, highest if highest > bottom else bottom + 1)
    if steps or log:
        ticks = [t for t in ticks if float(t).is_integer()] or ticks
    x = Scale(start, max(end, start + 1), LEFT, WIDTH - RIGHT)
    y = Scale(ticks[0], max(ticks[-1], ticks[0] + 1e-9), HEIGHT - BOTTOM, TOP)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts.append(f'<text class="title" x="{LEFT}" y="15">{escape(title + at_end)}</text>')
    parts += _grid(x, y, {tick: f"{10**tick if log else tick:g}{unit}" for tick in ticks})
    parts += [draw_mark(x, mark, HEIGHT - BOTTOM) for mark in marks]
    parts.append(_line(finite, x, y, end, style, steps=steps) if finite else _nothing())
    return "".join([*parts, "</svg>"])


def spans_decades(points: Sequence[Point]) -> bool:
    """Whether a linear axis would hide the curve: all values are positive, and the largest is 20 times the smallest."""
    values = [p.value for p in points if math.isfinite(p.value)]
    return bool(values) and min(values) > 0 and max(values) >= 20 * min(values)


def _grid(x: Scale, y: Scale, ticks: Mapping[float, str]) -> list[str]:
    parts = []
    for tick, label in ticks.items():
        at = y.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{escape(label)}</text>')
    return [*parts, *draw_times(x, HEIGHT - 6)]


def draw_times(x: Scale, y: float) -> list[str]:
    """The labels of the time axis."""
    parts = []
    for seconds, label in time_ticks(x.high - x.low):
        at = x.at(x.low + seconds)
        parts.append(f'<text class="tick" x="{at}" y="{y}" text-anchor="middle">{label}</text>')
    return parts


def draw_mark(x: Scale, mark: Mark, bottom: float) -> str:
    at = x.at(mark.time)
    return (
        f'<g class="{mark.style}"><line x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>'
        f'<line class="touch" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>'
        f"<title>{escape(mark.text)}</title></g>"
    )


def _line(points: Sequence[Point], x: Scale, y: Scale, end: float, style: str, *, steps: bool) -> str:
    ordered = sorted(points, key=lambda p: p.time)
    path = f"M{x.at(ordered[0].time)},{y.at(ordered[0].value)}"
    for point in ordered[1:]:
        path += f"H{x.at(point.time)}V{y.at(point.value)}" if steps else f"L{x.at(point.time)},{y.at(point.value)}"
    if not steps:
        dot = f'<circle class="{style}" cx="{x.at(ordered[-1].time)}" cy="{y.at(ordered[-1].value)}" r="2.5"/>'
        return f'<path class="line {style}" d="{path}"/>{dot}'
    path += f"H{x.at(max(end, ordered[-1].time))}"
    area = f"{path}V{y.at(0)}H{x.at(ordered[0].time)}Z"
    return f'<path class="area {style}" d="{area}"/><path class="line {style}" d="{path}"/>'


def _nothing() -> str:
    return f'<text class="none" x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">nothing was recorded</text>'
