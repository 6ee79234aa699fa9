"""The plots of the benchmarks, drawn without a display, and small enough to be part of the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks import cases, goodput

from benchmarks.timeline import PHASES

COLOURS = ("#8c510a", "#d8b365", "#c7c7c7", "#9ecae1", "#3182bd", "#5ab4ac", "#01665e", "#2ca02c")


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _middle(outcomes: Sequence[cases.Outcome]) -> cases.Outcome | None:
    """The outcome with the median time: phases are of one run, since means of phases would not add up to any run."""
    done = sorted((o for o in outcomes if o.recovery is not None), key=lambda o: o.recovery or 0.0)
    return done[len(done) // 2] if len(done) * 2 > len(outcomes) else None


def draw_phases(
    path: Path, found: Mapping[tuple[str, str], Sequence[cases.Outcome]], names: Mapping[str, str], limit: float = 8.0
) -> None:
    """A stacked bar for each case and launcher, by phase. Longer bars are cut and labelled."""
    rows = [(case, launcher) for case, launcher in found]
    figure, axes = _figure(10, 1.2 + 0.28 * len(rows))
    for row, key in enumerate(rows):
        outcome = _middle(found[key])
        if outcome is None or outcome.recovery is None:
            axes.text(0.05, row, f"never ({found[key][-1].note})", va="center", fontsize=7, color="#a50026")
            continue
        phases = outcome.phases or {"first step": outcome.recovery}
        left = 0.0
        for phase, colour in zip(PHASES, COLOURS, strict=True):
            width = min(phases.get(phase, 0.0), max(0.0, limit - left))
            axes.barh(row, width, left=left, color=colour, height=0.75)
            left += width
        axes.text(min(left, limit) + 0.05, row, f"{outcome.recovery:.2f} s", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [f"{case} | {names[launcher]}" for case, launcher in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, limit * 1.08)
    axes.set_xlabel("seconds from the event to the first step of every rank (median run)")
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=phase) for phase, colour in zip(PHASES, COLOURS, strict=True)]
    axes.legend(handles=handles, fontsize=7, ncols=len(PHASES), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    _save(figure, path)


def draw_goodput(path: Path, series: Sequence[goodput.Series], every: float) -> None:
    """The work kept over time, and the kills."""
    figure, axes = _figure(8, 4.5)
    for one in series:
        axes.plot(
            [t for t, _ in one.points],
            [count - (one.points[0][1] if one.points else 0) for _, count in one.points],
            label=f"{one.launcher}: {one.share:.1%} of the ideal",
        )
    for kill in max((one.kills for one in series), key=len, default=[]):
        axes.axvline(kill, color="#d73027", linewidth=0.5, alpha=0.6)
    axes.set_xlabel(f"seconds; a red line is a SIGKILL (one in {every:.0f} s)")
    axes.set_ylabel("steps done and kept")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    _save(figure, path)


def draw_lines(
    path: Path, series: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str, *, log: bool = True
) -> None:
    """Curves over a logarithmic size."""
    figure, axes = _figure(8, 4.5)
    for label, points in series.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=label)
    axes.set_xscale("log", base=2)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    _save(figure, path)


def draw_bars(path: Path, rows: Mapping[str, Mapping[str, float]], xlabel: str) -> None:
    """Groups of horizontal bars: `rows[case][series]`."""
    who = list(dict.fromkeys(name for row in rows.values() for name in row))
    figure, axes = _figure(8, 1.2 + 0.3 * len(rows) * max(1, len(who)))
    for offset, name in enumerate(who):
        places = [index * (len(who) + 1) + offset for index, row in enumerate(rows.values()) if name in row]
        values = [row[name] for row in rows.values() if name in row]
        bars = axes.barh(places, values, height=0.85, label=name)
        axes.bar_label(bars, fmt="%.3g", fontsize=7, padding=2)
    axes.set_yticks([index * (len(who) + 1) + (len(who) - 1) / 2 for index in range(len(rows))], list(rows), fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(xlabel)
    axes.legend(fontsize=8)
    _save(figure, path)
