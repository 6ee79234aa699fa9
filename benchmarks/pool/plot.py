"""The sizes of all jobs over time as an SVG, written by hand: small, sharp, and the same from every machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.pool.engine import Result

WIDTH, ROW, LEFT, TOP = 860, 190, 46, 30
COLOURS = ("#3182bd", "#e6550d", "#31a354", "#756bb1", "#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc", "#636363", "#dd1c77")


def draw_sizes(path: Path, results: Sequence[tuple[str, Result]]) -> None:
    """One band of stacked sizes a policy, on one axis of time."""
    end = max(time for _, found in results for time, _ in found.sizes)
    rows = [_row(i, title, found, end) for i, (title, found) in enumerate(results)]
    height = TOP + len(results) * ROW + 24
    hours = range(int(end // 3600) + 1)
    ticks = "".join(
        f'<text x="{LEFT + h * 3600 / end * (WIDTH - LEFT - 10):.0f}" y="{height - 8}">{h} h</text>' for h in hours
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="#fff"/>{"".join(rows)}{ticks}</svg>\n'
    )


def _row(index: int, title: str, found: Result, end: float) -> str:
    """Each job is a band whose height is its size; devices that nobody has stay white."""
    top, bottom = TOP + index * ROW, TOP + index * ROW + ROW - 40
    scale = (WIDTH - LEFT - 10) / end
    names = sorted({name for _, sizes in found.sizes for name in sizes})
    times = [time for time, _ in found.sizes] + [max(job.ended or 0.0 for job in found.jobs)]
    bands = []
    floor = [0] * len(found.sizes)
    for number, name in enumerate(names):
        upper, lower = [], []
        for i, (time, sizes) in enumerate(found.sizes):
            low, high = floor[i], floor[i] + sizes.get(name, 0)
            floor[i] = high
            for x in (time, times[i + 1]):
                upper.append((x, high))
                lower.append((x, low))
        points = [
            (LEFT + x * scale, bottom - y / found.capacity * (bottom - top)) for x, y in (*upper, *reversed(lower))
        ]
        bands.append(
            f'<path d="{_path(points)}" fill="{COLOURS[number % len(COLOURS)]}" stroke="#fff" stroke-width=".4"/>'
        )
    mean = found.mean / 60
    label = f'<text x="{LEFT}" y="{top - 8}">{title}: mean completion {mean:.0f} min</text>'
    axis = f'<text x="4" y="{top + 8}">{found.capacity}</text><text x="4" y="{bottom}">0</text>'
    frame = f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - 10}" fill="none" stroke="#888"/>'
    return label + axis + "".join(bands) + frame


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Without the points that change nothing."""
    kept: list[tuple[float, float]] = []
    for x, y in ((round(x, 1), round(y, 1)) for x, y in points):
        if len(kept) > 1 and kept[-1][1] == kept[-2][1] == y:
            kept[-1] = (x, y)
        elif not kept or kept[-1] != (x, y):
            kept.append((x, y))
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in kept) + "Z"
