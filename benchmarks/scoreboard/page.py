"""The scoreboard as Markdown: a summary and a table for each row, the best first; or one table of all or some. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scoreboard.cells import (
    HIGHER_IS_BETTER,
    Board,
    Cell,
    Sample,
    Unit,
    find_interval,
    find_median,
    find_standings,
    group_by_row,
)

RECOVERY, PAUSE = ": recovery", ": pause"
OURS = "ElasticJob: "
NO_PART = "not a part of this run"


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


def format_median(cell: Cell) -> str:
    return format_sample(find_median(cell.samples), cell.unit) if cell.samples else "not measured"


def format_cell(cell: Cell) -> str:
    """The median, with its interval if there was more than one repetition."""
    shown = format_median(cell)
    if len(cell.samples) <= 1 or set(cell.samples) == {None}:
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
    how = f": `{board.command}`" if board.command else ", `--quick`" if board.quick else ""
    return f"{board.date}, {board.machine}, load {lowest:.1f} to {highest:.1f}, seed {board.seed}{how}."


def render_summary(board: Board) -> str:
    rows = ["| | first | best of the other side | ours / theirs |", "|---|---|---|---|"]
    for standing in find_standings(board.cells):
        sides = [standing.peer, standing.ours] if standing.is_peers else [standing.ours, standing.peer]
        ratio = "–" if standing.ratio is None else f"{standing.ratio:.2g}"
        rows.append(f"| {standing.row} | {name_cell(sides[0])} | {name_cell(sides[1])} | {ratio} |")
    return "\n".join(rows)


def render_row(row: str, cells: Sequence[Cell]) -> str:
    """The systems that were measured, the best first, and why the others were not."""
    measured = [cell for cell in cells if cell.samples]
    if not measured:
        return ""
    has_notes = any(cell.note for cell in measured)
    head = ["system", "settings", "script", "median", "repeats", *["note"] * has_notes]
    lines = [f"**{row}**", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cell in measured:
        mark = "**" if cell.ours else ""
        shown = f"{mark}{cell.system}{mark} | {cell.settings} | {cell.script} | {format_cell(cell)}"
        lines.append(f"| {shown} | {len(cell.samples)} |{f' {cell.note} |' if has_notes else ''}")
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if not cell.samples:
            reasons.setdefault(cell.note or NO_PART, []).append(cell.system)
    absent = "; ".join(f"{', '.join(systems)} ({note})" for note, systems in reasons.items())
    return "\n".join([*lines, *(["", f"Not measured: {absent}."] if absent else [])])


@dataclass(frozen=True)
class Goal:
    """What these systems are wanted to reach in these rows: at least a share, at most anything else."""

    rows: Sequence[str]
    systems: Sequence[str]
    limit: float

    def is_missed(self, cell: Cell) -> bool:
        median = find_median(cell.samples)
        if median is None:
            return True
        return median < self.limit if cell.unit in HIGHER_IS_BETTER else median > self.limit

    def describe(self, cell: Cell) -> str:
        systems = " and ".join(name.removeprefix(OURS) for name in self.systems)
        return f"{systems}: {'pause ' if cell.row.endswith(PAUSE) else ''}{format_sample(self.limit, cell.unit)}"


def render_matrix(board: Board, goals: Sequence[Goal] = ()) -> str:
    """The summary if there are peers, and one table of medians: a row for each event, and a column for each system.

    In parentheses, the pause where it differs.
    """
    found = find_measured(board)
    cells = sorted(found.values(), key=lambda cell: not cell.ours)
    systems = list(dict.fromkeys(cell.system for cell in cells))
    rows = list(dict.fromkeys(row for row, _ in found))
    lines = [f"| | {' | '.join(systems)} |{' goal |' * bool(goals)}", f"|---|{'---|' * (len(systems) + bool(goals))}"]
    for row in rows:
        whole = row.removesuffix(PAUSE) + RECOVERY
        if row.endswith(PAUSE) and whole in rows:
            continue  # in the row of the whole recovery
        parts = (row, row.replace(RECOVERY, PAUSE)) if row.endswith(RECOVERY) else (row,)
        own = [goal for goal in goals if {*goal.rows} & {*parts}]
        texts = format_row(found, parts, systems, own)
        measured = [cell for part in parts for system in systems if (cell := found.get((part, system)))]
        wanted = "; ".join(
            dict.fromkeys(goal.describe(cell) for goal in own for cell in measured if cell.row in goal.rows)
        )
        name = row.removesuffix(RECOVERY)
        lines.append(f"| {name} | {' | '.join(texts)} |{f' {wanted} |' if goals else ''}")
    summary = [] if all(cell.ours for cell in cells) else [render_summary(board)]
    return "\n\n".join([render_heading(board), *summary, "\n".join(lines), *list_absent(board, systems)])


def list_absent(board: Board, systems: Sequence[str]) -> list[str]:
    """A paragraph that says why some cells of these systems are empty; none if none is."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in board.cells:
        if not cell.samples and cell.system in systems:
            reasons.setdefault((cell.system, cell.note or NO_PART), []).append(cell.row.removesuffix(RECOVERY))
    absent = "; ".join(f"{system}: {', '.join(rows)} ({note})" for (system, note), rows in reasons.items())
    return [f"Not measured: {absent}."] if absent else []


Measured = Mapping[tuple[str, str], Cell]  # by row and system


def find_measured(board: Board) -> Measured:
    return {(cell.row, cell.system): cell for cell in board.cells if cell.samples}


def format_row(found: Measured, parts: Sequence[str], systems: Sequence[str], goals: Sequence[Goal] = ()) -> list[str]:
    """These parts of an event, for each system."""
    return [format_parts([found[part, one] for part in parts if (part, one) in found], goals) for one in systems]


def format_parts(cells: Sequence[Cell], goals: Sequence[Goal]) -> str:
    """Recovery and, in parentheses, the pause, of one system. Bold if one of them misses its goal."""
    texts = list(dict.fromkeys(format_median(cell) for cell in cells))
    shown = f"{texts[0]} ({texts[1]})" if len(texts) > 1 else "".join(texts) or "–"
    missed = any(
        goal.is_missed(cell)
        for cell in cells
        for goal in goals
        if cell.row in goal.rows and cell.system in goal.systems
    )
    return f"**{shown}**" if missed else shown


@dataclass(frozen=True)
class Digest:
    """Some rows and systems of a board, each with its label: a row is one part of an event, or recovery and pause."""

    rows: Mapping[str, Sequence[str]]
    systems: Mapping[str, str]


def render_digest(raw: Mapping[str, Any], digest: Digest) -> str:
    """One table of medians for readers who are new here."""
    board = Board.load(raw)
    found = find_measured(board)
    lines = [f"| event | {' | '.join(digest.systems)} |", f"|---|{'---|' * len(digest.systems)}"]
    for label, parts in digest.rows.items():
        texts = format_row(found, parts, [*digest.systems.values()])
        lines.append(f"| {label} | {' | '.join(texts)} |")
    return "\n".join([f"{board.date}, {board.machine}.", "", *lines])


def render_board(board: Board) -> str:
    parts = [render_heading(board), render_summary(board)]
    parts += [render_row(row, cells) for row, cells in group_by_row(board.cells).items()]
    return "\n\n".join(part for part in parts if part)


def render(raw: Mapping[str, Any] | None, command: str, *, as_matrix: bool, goals: Sequence[Goal] = ()) -> str:
    """The block of a kept board; without one, the command that makes it."""
    if raw is None:
        return f"Not measured yet: `{command}` makes this table."
    board = Board.load(raw)
    return render_matrix(board, goals) if as_matrix else render_board(board)
