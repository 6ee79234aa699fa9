"""The scoreboard as Markdown: a summary, then one table for each row, the best first. Pure.

The same result lines of the other benchmarks become tables here too, for docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.scoreboard.cells import (
    Board,
    Cell,
    Sample,
    Unit,
    find_interval,
    find_median,
    find_standings,
    group_by_row,
)


def format_seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def format_bytes(value: float) -> str:
    return f"{value:.0f} B" if value < 1024 else f"{value / 1024:.1f} KiB"


FORMATS: dict[Unit, Callable[[float], str]] = {
    "s": format_seconds,
    "share": lambda value: f"{value:.1%}",
    "steps": lambda value: f"{value:.1f}",
    "bytes": format_bytes,
    "writes": lambda value: f"{value:.0f}",
}


def format_sample(value: Sample, unit: Unit) -> str:
    return "never" if value is None else FORMATS[unit](value)


def format_cell(cell: Cell) -> str:
    """The median, with its interval if there was more than one repetition."""
    if not cell.samples:
        return "not measured"
    shown = format_sample(find_median(cell.samples), cell.unit)
    if len(cell.samples) == 1:
        return shown
    interval = find_interval(cell.samples)
    ends = [format_sample(end, cell.unit) for end in (interval.low, interval.high)]
    return f"{shown} ({ends[0]} to {ends[1]}, {interval.coverage:.0%})"


def name_cell(cell: Cell | None) -> str:
    if cell is None:
        return "not measured"
    return f"{'**' if cell.ours else ''}{cell.system}{'**' if cell.ours else ''}: {format_cell(cell)}"


def render_heading(board: Board) -> str:
    lowest, highest = (min(board.loads), max(board.loads)) if board.loads else (0.0, 0.0)
    return (
        f"{board.date}, {board.machine}, load {lowest:.1f} to {highest:.1f}, seed {board.seed}"
        f"{', `--quick`' if board.quick else ''}."
    )


def render_summary(board: Board) -> str:
    rows = ["| | first | best of the other side | ours / theirs |", "|---|---|---|---|"]
    for standing in find_standings(board.cells):
        sides = [standing.peer, standing.ours] if standing.is_peers else [standing.ours, standing.peer]
        ratio = "–" if standing.ratio is None else f"{standing.ratio:.2g}"
        rows.append(f"| {standing.row} | {name_cell(sides[0])} | {name_cell(sides[1])} | {ratio} |")
    return "\n".join(rows)


def render_row(row: str, cells: Sequence[Cell]) -> str:
    lines = [f"**{row}**", "", "| system | settings | script | median | repeats | note |", "|---|---|---|---|---|---|"]
    for cell in cells:
        mark = "**" if cell.ours else ""
        shown = f"{mark}{cell.system}{mark} | {cell.settings} | {cell.script} | {format_cell(cell)}"
        lines.append(f"| {shown} | {len(cell.samples)} | {cell.note} |")
    return "\n".join(lines)


def render_board(board: Board) -> str:
    parts = [render_heading(board), render_summary(board)]
    parts += [render_row(row, cells) for row, cells in group_by_row(board.cells).items()]
    return "\n\n".join(parts)


def format_values(values: Mapping[str, float | None]) -> str:
    """The median of a result line, and the range if there is one."""

    def show(value: float | None) -> str:
        return "never" if value is None else f"{value:.4g}"

    if values["min"] == values["max"]:
        return show(values["median"])
    return f"{show(values['median'])} ({show(values['min'])}–{show(values['max'])})"


def render_lines(lines: Sequence[Mapping[str, Any]]) -> str:
    """The result lines of one benchmark (see `harness`), one per row."""
    rows = ["| case | ours | peer | peer's value | ratio |", "|---|---|---|---|---|"]
    for line in lines:
        kind = next(kind for kind in ("seconds", "rate", "bytes") if kind in line)
        unit = {"seconds": " s", "rate": "", "bytes": " B"}[kind]
        ratio = "–" if line["ratio"] is None else f"{line['ratio']:.3g}"
        peer = "" if line["peer"] == "none" else f"{format_values(line['peerValue'])}{unit}"
        named = "" if line["peer"] == "none" else line["peer"]
        rows.append(f"| {line['case']} | {format_values(line[kind])}{unit} | {named} | {peer} | {ratio} |")
    return "\n".join([*rows, "", f"Machine: {lines[-1]['machine']}."])
