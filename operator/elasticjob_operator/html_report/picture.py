"""The picture of a job: tiles, plots and tables of its history, for the report and the dashboard. Pure.

All text from the cluster is escaped, and its control characters are replaced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elasticjob_operator.client.history import OPEN, History, Sample, World
from elasticjob_operator.client.model import Happening
from elasticjob_operator.history.goodput import Loss
from elasticjob_operator.html_report.bars import draw_shares, draw_stays
from elasticjob_operator.html_report.plot import Mark, clock, draw, escape, spans_decades
from elasticjob_operator.view import words

_MAX_METRICS: Final = 4
CATEGORIES: Final[Mapping[str, str]] = {
    Loss.START: "starting",
    Loss.RESCALE: "announced changes",
    Loss.RESTART: "failures and lost members",
    Loss.CHECKPOINT: "waiting for checkpoints",
    Loss.STALL: "worlds without a step",
    Loss.REPEATED: "steps made again",
    OPEN: "not yet assigned to a cause",
}


@dataclass(frozen=True)
class Picture:
    """HTML fragments, in the order in which a page shows them."""

    tiles: str
    plots: str
    lost: str
    worlds: str
    notable: str  # empty where nothing happened


def build_picture(history: History, last: Sample | None, now: float) -> Picture:
    """`last`: the latest sample; `now` stands for the time axis of a job without any history."""
    start = history.start if history.start is not None else now
    end = max(history.end or start, start + 1)
    marks = _marks(history, start)
    plots = [draw("World size (pods)", history.sizes, start=start, end=end, style="size", marks=marks, steps=True)]
    if history.stays:
        spread = last.processes // last.world_size if last and last.world_size else 1
        plots.append(draw_stays(history.stays, start=start, end=end, processes=max(1, spread), marks=marks))
    plots.append(
        draw("Throughput (steps a second)", history.throughput, start=start, end=end, style="rate", marks=marks)
    )
    for name in list(history.metrics)[:_MAX_METRICS] or ["loss"]:
        points = history.metrics.get(name, ())
        log = spans_decades(points)
        plots.append(draw(name, points, start=start, end=end, style="loss", marks=marks, log=log))
    return Picture(
        tiles=_tiles(history, last),
        plots="".join(plots),
        lost=_lost(history.lost, last),
        worlds=_worlds(history.worlds, start),
        notable=_notable(history.notable, start) if history.notable else "",
    )


def _marks(history: History, start: float) -> list[Mark]:
    found = []
    for world in history.worlds:
        if world.time is None:
            continue
        cost = f", {words.seconds_exact(world.seconds)}" if world.seconds is not None else ""
        text = f"{clock(world.time - start)} generation {world.generation}: {world.size} pods: {world.cause}{cost}"
        found.append(Mark(world.time, text, "fault" if is_failure(world) else "mark"))
    return found


def is_failure(world: World) -> bool:
    """Whether the generation was caused by a failure, as opposed to a requested change."""
    return any(word in world.cause for word in ("lost", "failed"))


def _tiles(history: History, last: Sample | None) -> str:
    tiles: list[tuple[str, str]] = []
    if last is not None:
        trained, lost = last.training_seconds, last.lost_seconds
        tiles.append((words.goodput(last.measured, trained, lost), "goodput: time that trained"))
        tiles.append((words.duration(trained), "trained"))
        tiles.append((words.duration(lost), "lost to starts and recoveries"))
    costs = [w.seconds for w in history.worlds if w.seconds is not None]
    tiles.append((str(max(0, len(history.worlds) - 1)), "rescales"))
    if costs:
        tiles.append((words.seconds_exact(sorted(costs)[len(costs) // 2]), f"median recovery of {len(costs)}"))
        tiles.append((words.seconds_exact(max(costs)), "longest recovery"))
    if last is not None and last.step is not None:
        total = f" of {last.total_steps}" if last.total_steps and last.step <= last.total_steps else ""
        tiles.append((str(last.step), f"steps{total}"))
    if last is not None and "loss" in last.not_finite:
        tiles.append(("not finite", "loss"))
    elif last is not None and math.isfinite(last.metrics.get("loss", math.nan)):
        tiles.append((f"{last.metrics['loss']:.4g}", "loss"))
    cells = (f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in tiles)
    return f'<div class="tiles">{"".join(cells)}</div>'


def _worlds(worlds: Sequence[World], start: float) -> str:
    if not worlds:
        return '<p class="soft">No world was formed yet.</p>'
    rows = []
    for world in worlds:
        style = ' class="bad"' if is_failure(world) else ""
        when = clock(world.time - start) if world.time is not None else "-"
        cause = ": ".join(filter(None, (world.cause, world.who))) or "-"
        rows.append(
            f'<tr><td class="n">{world.generation}</td><td class="n">{when}</td><td class="n">{world.size}</td>'
            f'<td{style}>{escape(cause)}</td><td class="n">{words.seconds_exact(world.seconds)}</td></tr>'
        )
    return build_table(("Generation", "At", "Pods", "Cause", "Seconds without training"), rows)


def _notable(events: Sequence[Happening], start: float) -> str:
    rows = []
    for event in events:
        when = clock(event.time - start) if event.time is not None else "-"
        style = ' class="bad"' if event.type == "Warning" else ""
        rows.append(
            f'<tr><td class="n">{when}</td><td{style}>{escape(event.reason)}</td><td>{escape(event.message)}</td></tr>'
        )
    return build_table(("At", "Event", "Message"), rows)


def build_table(titles: Iterable[str], rows: Iterable[str]) -> str:
    """A table of rows that are HTML already."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _lost(lost: Mapping[str, float], last: Sample | None) -> str:
    if last is None or last.training_seconds + last.lost_seconds <= 0:
        return '<p class="soft">No world has trained yet.</p>'
    trained, total = last.training_seconds, last.training_seconds + last.lost_seconds
    known = {category: lost[category] for category in CATEGORIES if lost.get(category)}
    shares = {"trained": (trained, "trained")} | {CATEGORIES[c]: (s, str(c)) for c, s in known.items()}
    rows = [
        f'<tr><td>{label}</td><td class="n">{words.seconds_exact(seconds)}</td>'
        f'<td class="n">{words.share(seconds, total - seconds)}</td></tr>'
        for label, (seconds, _) in shares.items()
    ]
    return draw_shares("How the time was spent", shares) + build_table(("Spent on", "Time", "Share"), rows)
