"""Simulate the operator at sizes that no machine here can run, with what docs/performance.md says was measured.

Writes the values that docs/scale.md is made of, and prints its tables. `python scripts/generate.py` writes the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.simulation import measured, page, report

MEASURED = harness.ROOT / "docs" / "performance.md"
RESULT = harness.ROOT / "benchmarks" / "results" / "simulation.json"


def round_values(value: object) -> object:
    """Four digits: further ones are those of the constants' noise."""
    if isinstance(value, float):
        return harness.round_digits(value)
    if isinstance(value, dict):
        return {key: round_values(one) for key, one in value.items()}
    return [round_values(one) for one in value] if isinstance(value, list) else value


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULT, help="the file of the values (default: %(default)s)")
    out = parser.parse_args(argv).out
    text = MEASURED.read_text()
    values = round_values(report.simulate(measured.read_hub(text), measured.read_creation(text)))
    assert isinstance(values, dict)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(values, indent=1) + "\n")
    for name, block in page.render(values).items():
        print(f"## {name}\n\n{block}\n")


if __name__ == "__main__":
    main()
