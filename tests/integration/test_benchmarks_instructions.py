"""The regression guard of what is computed: instructions are the same on a busy machine, unlike seconds."""

from __future__ import annotations

import platform
import runpy
import sys
from importlib.metadata import version
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.instructions import counting

KEPT = harness.KEPT / "instructions.jsonl"
HEADROOM = 1.1  # other libraries of C, other patch releases of Python


def read_kept() -> dict[str, dict[str, Any]]:
    lines = runpy.run_path(str(harness.ROOT / "scripts" / "result_tables.py"))["read_lines"](KEPT)
    return {line["case"]: line for line in lines}


def find_obstacle(module: str) -> str:
    """Why nothing of this module can be compared here; "" if it can."""
    if not counting.is_available():
        return "valgrind is missing; on Debian: apt-get install valgrind"
    if platform.machine() != "x86_64":
        return f"{KEPT.name} is of x86_64, not of {platform.machine()}"
    here = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    if module == "session_cases":
        here["torch"] = version("torch")
    machines = [line["machine"] for line in read_kept().values()]
    strange = [
        f"{name} {found}" for name, found in here.items() if not all(f"{name} {found}" in one for one in machines)
    ]
    return f"{KEPT.name} is not of {', '.join(strange)}" if strange else ""


@pytest.mark.timeout(2 * counting.SECONDS)
@pytest.mark.parametrize("module", counting.MODULES)
def test_no_case_takes_more_instructions_than_before(module: str) -> None:
    if obstacle := find_obstacle(module):
        pytest.skip(obstacle)
    kept = {case: line["count"]["median"] for case, line in read_kept().items()}
    counts = counting.count(module)
    assert counts.keys() <= kept.keys(), f"a new case: python -m benchmarks.instructions --keep, and commit {KEPT.name}"
    slower = [
        f"{case}: {found:,} instructions, at most {kept[case] * HEADROOM:,.0f} ({found / kept[case] - 1:.1%} more)"
        for case, found in counts.items()
        if found > kept[case] * HEADROOM
    ]
    advice = "make it cheaper, or run `python -m benchmarks.instructions --keep` and give the reason in the commit"
    assert not slower, "\n".join([f"more than {KEPT.relative_to(harness.ROOT)} allows: {advice}", *slower])
