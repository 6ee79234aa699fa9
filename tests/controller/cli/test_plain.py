"""The short way to lay out a table looks as rich's own, for text of every kind."""

from __future__ import annotations

import io
import re

import pytest
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from elasticjob_operator.cli import common
from elasticjob_operator.view.plain import PlainTable

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CELLS: dict[str, str | Text] = {
    "short": "a",
    "style": Text("Running", style="green"),
    "styles": Text.assemble(("half", "red"), " and half"),
    "wide": "数字 ✓",
    "markup": "[red]:smile:",
    "lines": "two\nlines",
    "tab": "a\tb",
    "control": "\x1b[31mred\x07",
    "direction": "a\u202eb",
    "empty": "",
    "long": "x" * 70,
}


def shown(table: Table, width: int) -> list[str]:
    out = common.SafeConsole(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    with out.capture() as captured:
        out.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def both(cell: str | Text) -> tuple[PlainTable, Table]:
    short = PlainTable("NAME", "PHASE", "AGE")
    long = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="")
    for column in ("NAME", "PHASE", "AGE"):
        long.add_column(column, no_wrap=True, overflow="fold")
    for table in (short, long):
        table.add_row("digits", cell, "3m")
        table.add_row("another-name", "-", cell)
    return short, long


@pytest.mark.parametrize("width", [120, 40])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_it_looks_the_same(cell: str | Text, width: int) -> None:
    """Apart from the colour of spaces."""
    short, long = ([COLOUR.sub("", line).rstrip() for line in shown(table, width)] for table in both(cell))
    assert short == long
    assert len(short) >= 3


def test_colours_stay() -> None:
    assert any("\x1b[32mRunning" in line for line in shown(both(CELLS["style"])[0], 120))


def test_the_cells_between_two_colours_are_one_piece_where_the_table_fits() -> None:
    short, _ = both(CELLS["style"])
    out = common.SafeConsole(file=io.StringIO(), width=120)
    pieces = [piece for piece in out.render(short) if piece.text.strip()]
    assert [piece.text.split() for piece in pieces] == [
        ["NAME", "PHASE", "AGE", "digits"],
        ["Running"],
        ["3m", "another-name", "-"],
        ["Running"],
    ]
    assert pieces[1] == pieces[3] == Segment("Running", Style.parse("green"))
