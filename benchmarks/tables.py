"""Tables of the documentation, from the result lines of the benchmarks (see `harness`). Pure.

A table names the cases that are its rows and columns: a column has a pattern such as `{} x 100: create`, and the row is
what stands for `{}`. `performance` describes the tables of docs/performance.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Line = Mapping[str, Any]
Of = Literal["ours", "ratio", "more"]
KINDS = ("seconds", "rate", "bytes", "steps", "count")
NOTHING = "–"


@dataclass(frozen=True)
class Goal:
    """The most that is wanted: of our value, of the ratio, or of what ours takes more than the peer."""

    limit: float
    of: Of = "ours"
    at: str = ""  # the head of the only column in which it counts

    def is_missed(self, line: Line) -> bool:
        value = line["ratio"] if self.of == "ratio" else find_more(line) if self.of == "more" else find_ours(line)
        return value is None or value > self.limit


@dataclass(frozen=True)
class Row:
    """One row: what stands for `{}` in the patterns of the columns. CPU seconds per second are a share of a core."""

    case: str
    label: str = ""
    goal: Goal | None = None
    is_share: bool = False


@dataclass(frozen=True)
class Column:
    """One column. In the pattern, `{}` is the row and `*` anything. `both` is ours, the peer's, and the ratio."""

    head: str
    pattern: str = "{}"
    show: Literal["ours", "both", "peer", "name", "ratio", "more"] = "ours"

    def find(self, lines: Iterable[Line]) -> dict[str, Line]:
        """Row -> line, in the order of the lines."""
        pattern = re.escape(self.pattern).replace(r"\{\}", "(.+)").replace(r"\*", ".*?")
        matches = ((re.fullmatch(pattern, line["case"]), line) for line in lines)
        return {match[1]: line for match, line in matches if match}


@dataclass(frozen=True)
class Table:
    """One table: the file of its lines, the command that makes the file, its columns, and its rows.

    `others`: rows that the file has in addition, in its order, each if the first column has it.
    """

    file: str
    command: str
    columns: Sequence[Column]
    rows: Sequence[Row] = ()
    others: bool = False


def find_kind(line: Line) -> str:
    return next(kind for kind in KINDS if kind in line)


def find_ours(line: Line) -> float | None:
    value: float | None = line[find_kind(line)]["median"]
    return value


def find_more(line: Line) -> float | None:
    ours, peer = find_ours(line), line["peerValue"]["median"]
    return None if ours is None or peer is None else ours - peer


def format_number(value: float) -> str:
    """Three digits, and all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """In the largest unit of which there is at least one."""
    size, unit = next((one for one in units if abs(value) >= one[0]), units[-1])
    return f"{format_number(value / size)} {unit}"


FORMATS: Mapping[str, Callable[[float], str]] = {
    "seconds": lambda value: format_scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))) if value else "0 s",
    "bytes": lambda value: format_scaled(value, ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))),
    "rate": format_number,
    "steps": format_number,
    "count": format_number,
    "share": lambda value: f"{value:.1%}",
}


def format_median(values: Mapping[str, float | None], kind: str) -> str:
    """The median. Without any measurement, all three are null as well as after an event that never happened."""
    return "never" if values["median"] is None else FORMATS[kind](values["median"])


def format_values(values: Mapping[str, float | None], kind: str) -> str:
    """The median, and the range if there is one."""
    if values["min"] == values["max"]:
        return format_median(values, kind)
    ends = ["never" if values[end] is None else FORMATS[kind](values[end] or 0.0) for end in ("min", "max")]
    return f"{format_median(values, kind)} ({' to '.join(ends)})"


def format_cell(line: Line, column: Column, row: Row) -> str:
    kind = find_kind(line)
    values, peers, ratio, more = line[kind], line["peerValue"], line["ratio"], find_more(line)
    has_peer = line["peer"] != "none"
    kind = "share" if row.is_share else kind
    match column.show:
        case "ours":
            return format_values(values, kind)
        case "both" if has_peer:
            shown = f"{format_median(values, kind)}, {format_median(peers, kind)}"
            return shown if ratio is None else f"{shown} ({format_number(ratio)})"
        case "both":
            return format_median(values, kind)
        case "peer" if has_peer:
            return format_values(peers, kind)
        case "name" if has_peer:
            return str(line["peer"])
        case "ratio" if ratio is not None:
            return format_number(ratio)
        case "more" if more is not None:
            return FORMATS[kind](more)
        case _:
            return NOTHING


def format_goal(goal: Goal, kind: str) -> str:
    limit = f"{goal.limit:g} times the peer" if goal.of == "ratio" else FORMATS[kind](goal.limit)
    return f"{limit}{' more' if goal.of == 'more' else ''}{f' at {goal.at}' if goal.at else ''}"


def render_row(row: Row, columns: Sequence[tuple[Column, Mapping[str, Line]]], *, has_goals: bool) -> list[str]:
    """The cells of one row. One that misses the goal is bold."""
    cells, kind = [row.label or row.case], "seconds"
    for column, found in columns:
        line = found.get(row.case)
        if line is None:
            cells.append(NOTHING)
            continue
        kind = "share" if row.is_share else find_kind(line)
        cell, goal = format_cell(line, column, row), row.goal
        counts = goal is not None and column.show in (goal.of, "both") and goal.at in ("", column.head)
        cells.append(f"**{cell}**" if counts and goal is not None and goal.is_missed(line) else cell)
    return [*cells, *([format_goal(row.goal, kind) if row.goal else ""] if has_goals else [])]


def describe(table: Table, lines: Sequence[Line]) -> str:
    """When, where and how the lines were measured, and what the second number is."""

    def find(key: str) -> list[Any]:
        return list(dict.fromkeys(line[key] for line in lines))

    def span(values: Sequence[float], digits: int) -> str:
        ends = [f"{end:.{digits}f}" for end in (min(values), max(values))]
        return ends[0] if ends[0] == ends[1] else " to ".join(ends)

    commands = ", ".join(f"`{command}`" for command in find("command"))
    where = f"{', '.join([*find('date'), *find('machine')])}, load {span(find('load'), 1)}"
    count = span(find("repeats"), 0)
    text = f"{where}: {commands}. Each value is {'one measurement' if count == '1' else f'the median of {count}'}."
    peers = [name for name in find("peer") if name != "none"]
    if any(column.show == "both" for column in table.columns) and peers:
        text += f" After the comma: {', '.join(peers)}; in parentheses: the ratio."
    return text


def join(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)])


def render(table: Table, lines: Sequence[Line]) -> str:
    """The table; without lines, the command that makes them."""
    if not lines:
        return f"Not measured yet: `{table.command}` makes this table."
    columns = [(column, column.find(lines)) for column in table.columns]
    known = {row.case for row in table.rows}
    rows = [*table.rows, *(Row(case) for case in (columns[0][1] if table.others else ()) if case not in known)]
    used = [line for row in rows for _, found in columns if (line := found.get(row.case)) is not None]
    has_goals = any(row.goal for row in rows)
    head = ["", *(column.head for column in table.columns), *(["goal: at most"] if has_goals else [])]
    return f"{describe(table, used or lines)}\n\n" + join(
        head, (render_row(row, columns, has_goals=has_goals) for row in rows)
    )
