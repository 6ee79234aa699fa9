"""Fills the generated blocks of the documentation from the committed results of the benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "docs" / "performance.md", ROOT / "docs" / "scale.md")


def read_blocks() -> dict[str, str]:
    """Name -> Markdown, of every result file."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.scoreboard import cells
    from benchmarks.scoreboard import page as board_page
    from benchmarks.simulation import page as scale_page

    blocks = {f"simulation {name}": text for name, text in scale_page.render(_read("simulation.json")).items()}
    if (RESULTS / "scoreboard.json").exists():
        blocks["scoreboard"] = board_page.render_board(cells.Board.load(_read("scoreboard.json")))
    for path in RESULTS.glob("*.jsonl"):
        blocks[path.stem] = board_page.render_lines([json.loads(line) for line in path.read_text().splitlines()])
    return blocks


def _read(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((RESULTS / name).read_text())
    return found


def generate() -> dict[Path, str]:
    blocks = read_blocks()
    from benchmarks.blocks import fill

    return {path: fill(path.read_text(), blocks) for path in PAGES}
