"""Every row of docs/lifecycle.md has a test scenario."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STORIES = {
    name
    for folder in ("controller/simulation", "integration", "integrations")
    for file in (ROOT / "tests" / folder).glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "lifecycle.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| Event"))
]


@pytest.mark.parametrize("row", ROWS, ids=[r[0] for r in ROWS])
def test_the_row_is_a_story(row: list[str]) -> None:
    assert len(row) == 4
    assert row[3].strip("`") in STORIES


def test_there_are_rows() -> None:
    assert len(ROWS) > 40
