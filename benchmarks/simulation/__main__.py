"""Simulate the operator at sizes that no machine here can run, with what was measured at others.

Reads the results of the hub and of the control plane in `benchmarks/results`, writes the values that docs/scale.md is
made of beside them, and prints its tables. `python scripts/generate.py` writes the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.simulation import measured, page, report

RESULT = harness.KEPT / "simulation.json"


def round_values(value: object) -> object:
    """Four digits: further ones are those of the constants' noise."""
    if isinstance(value, float):
        return harness.round_digits(value)
    if isinstance(value, dict):
        return {key: round_values(one) for key, one in value.items()}
    return [round_values(one) for one in value] if isinstance(value, list) else value


def read_measured(folder: Path = harness.KEPT) -> measured.Measured:
    """What was measured, of the kept files."""

    def read(name: str) -> list[dict[str, Any]]:
        path = folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return measured.read(read("hub"), read("controlplane"))


def simulate(found: measured.Measured) -> dict[str, Any]:
    """The content of the file: what was measured, and what follows from it."""
    values = round_values({"measured": found.dump(), **report.simulate(found.hub, found.creation)})
    assert isinstance(values, dict)
    return values


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULT, help="the file of the values (default: %(default)s)")
    out = parser.parse_args(argv).out
    values = simulate(read_measured())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(values, indent=1) + "\n")
    for name, block in page.render(values).items():
        print(f"## {name}\n\n{block}\n")


if __name__ == "__main__":
    main()
