"""`python -m benchmarks.table [OUT]`: the result lines as Markdown tables, for docs/performance.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness


def format_values(values: dict[str, float | None]) -> str:
    """The median, and the range if there is one."""

    def show(value: float | None) -> str:
        return "never" if value is None else f"{value:.4g}"

    if values["min"] == values["max"]:
        return show(values["median"])
    return f"{show(values['median'])} ({show(values['min'])}–{show(values['max'])})"


def format_table(lines: Sequence[dict[str, Any]]) -> str:
    """The lines of one benchmark, one per row."""
    rows = ["| case | ours | peer | peer's value | ratio |", "|---|---|---|---|---|"]
    for line in lines:
        ours = format_values(line.get("seconds") or line["rate"])
        unit = " s" if "seconds" in line else ""
        ratio = "–" if line["ratio"] is None else f"{line['ratio']:.3g}"
        peer = format_values(line["peerValue"]) + unit
        rows.append(f"| {line['case']} | {ours}{unit} | {line['peer']} | {peer} | {ratio} |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=harness.DEFAULT_OUT)
    for path in sorted(parser.parse_args(argv).out.glob("*.jsonl")):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        if lines:
            print(f"### {path.stem}\n\n{format_table(lines)}\n\nMachine: {lines[-1]['machine']}\n")


if __name__ == "__main__":
    main()
