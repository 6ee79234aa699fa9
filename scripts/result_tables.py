"""Fills the generated blocks of the documentation from the committed results of the benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "docs" / "performance.md", ROOT / "docs" / "scale.md")


def read_blocks() -> dict[str, str]:
    """Name -> Markdown, of every table that a page may have."""
    sys.path.insert(0, str(ROOT))
    from benchmarks import performance, tables
    from benchmarks.scoreboard import page as board_page
    from benchmarks.simulation import page as scale_page

    blocks = {f"simulation {name}": text for name, text in scale_page.render(_read("simulation.json")).items()}
    for name, board in performance.BOARDS.items():
        found = _read(f"{name}.json") if (RESULTS / f"{name}.json").exists() else None
        blocks[name] = board_page.render(found, board.command, as_matrix=board.as_matrix, goals=board.goals)
    for name, table in performance.TABLES.items():
        blocks[name] = tables.render(table, read_lines(RESULTS / f"{table.file}.jsonl"))
    return blocks


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def generate() -> dict[Path, str]:
    blocks = read_blocks()
    from benchmarks.blocks import fill

    return {path: fill(path.read_text(), blocks) for path in PAGES}
