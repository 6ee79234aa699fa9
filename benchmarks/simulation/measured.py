"""What was measured, read from the tables of docs/performance.md, so that model and page cannot disagree. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

HUB_ROWS = {
    "connect, until the last welcome": "connect",
    "form a world, until the last agent": "form",
    "lose a member and form the next world, until the last agent; CPU": "change",
    "heartbeats, CPU per second": "heartbeats",
    "memory per agent": "memory",
}
UNITS = {"s": 1.0, "KiB": 1024.0, "MiB": 2.0**20}
_VALUE = re.compile(r"([\d.]+) (s|KiB|MiB)\b")
_SIZE = re.compile(r"\*?\*?(?:one job of )?([\d,]+)(?: x ([\d,]+)| pods)")


class PageError(ValueError):
    """The page does not have the table that was expected."""


def read_value(cell: str) -> float:
    """The first number of a cell that has a unit, in seconds or bytes: ours, where it has two."""
    found = _VALUE.search(cell)
    if found is None:
        raise PageError(f"docs/performance.md: no number with a unit in {cell!r}")
    return float(found[1]) * UNITS[found[2]]


def read_rows(page: str, heading: str) -> list[list[str]]:
    """The first table below a heading: its rows, its head included."""
    try:
        section = page[page.index(f"\n{heading}\n") :]
        table = section[section.index("\n|") :].split("\n\n")[0]
    except ValueError as error:
        raise PageError(f"docs/performance.md: no table below {heading!r}") from error
    lines = [line for line in table.strip().splitlines() if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def read_hub(page: str) -> dict[tuple[str, int], float]:
    """(what, agents) -> seconds of time or CPU, or bytes: the columns of the hub, not those of bare connections."""
    head, *rows = read_rows(page, "## Hub")
    matches = [(at, re.match(r"([\d,]+): hub", cell)) for at, cell in enumerate(head)]
    sizes = {at: int(match[1].replace(",", "")) for at, match in matches if match}
    found: dict[tuple[str, int], float] = {}
    for name, *cells in rows:
        if name in HUB_ROWS:
            found |= {(HUB_ROWS[name], agents): read_value(cells[at - 1]) for at, agents in sizes.items()}
    missing = set(HUB_ROWS.values()) - {what for what, _ in found}
    if missing or not sizes:
        raise PageError(
            f"docs/performance.md: the table of the hub lacks {', '.join(sorted(missing)) or 'its columns'}"
        )
    return found


def read_creation(page: str) -> Mapping[tuple[int, int], float]:
    """(jobs, pods of each) -> seconds until all pods exist under our operator."""
    found = {}
    for name, first, *_ in read_rows(page, "## Control plane"):
        if match := _SIZE.match(name):
            jobs, pods = (match[1], match[2]) if match[2] else ("1", match[1])
            found[int(jobs.replace(",", "")), int(pods.replace(",", ""))] = read_value(first)
    if not found:
        raise PageError("docs/performance.md: the table of the control plane has no rows like '1 x 100'")
    return found
