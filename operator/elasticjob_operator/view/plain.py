"""Tables in kubectl's style: without lines, for both awk and people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_GAP: Final = 3


class PlainTable(Table):
    """A table with few segments, where every row fits into the width.

    Where one does not, rich lays it out: it measures and wraps each cell, which takes half a second for 1,000 rows.
    """

    def __init__(self, *columns: str) -> None:
        super().__init__(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
        for column in columns:
            self.add_column(column, no_wrap=True, overflow="fold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [[column.header, *column.cells] for column in self.columns]
        widths = [_width(cells) for cells in columns]
        if None in widths or sum(filter(None, widths)) + _GAP * (len(widths) - 1) > options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from _lay_out(console, columns, [width or 0 for width in widths])


def _width(cells: Sequence[object]) -> int | None:
    """Of a column, in cells of a terminal; None if one of its cells is more than a line in one style."""
    widest = 0
    for cell in cells:
        text = cell.plain if isinstance(cell, Text) and not cell.spans else cell
        if not isinstance(text, str) or not text.isprintable():
            return None
        widest = max(widest, cell_len(text))
    return widest


def _lay_out(console: Console, columns: Sequence[Sequence[object]], widths: list[int]) -> Iterator[Segment]:
    """One segment for all rows up to the next cell with a style: a console handles each one by itself."""
    plain: list[str] = []
    for row in zip(*columns, strict=True):
        for cell, width in zip(row, widths, strict=True):
            text = cell.plain if isinstance(cell, Text) else str(cell)
            if isinstance(cell, Text) and cell.style:
                yield from (Segment("".join(plain)), Segment(text, console.get_style(cell.style)))
                plain = []
            else:
                plain.append(text)
            plain.append(" " * (width - cell_len(text) + _GAP))
        plain.append("\n")
    yield Segment("".join(plain))
