"""The model of NCCL does what is expected of NCCL: the checks that a device could refute it by, of `make gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.gang_helper import PROGRAMS, REPOSITORY, run_gang

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "check",
    ["streams", *(pytest.param(one, marks=pytest.mark.long) for one in ("death", "two-communicators", "watchdog"))],
)
def test_the_model_holds_to_the_contract(check: str, tmp_path: Path) -> None:
    paths = f"{REPOSITORY}/worker_image/src:{REPOSITORY}/tests"
    subprocess.run(
        [sys.executable, "-m", "gpu.run", f"contract-{check}"],
        input=f"{tmp_path}\n",
        text=True,
        env=os.environ | {"DRY": "1", "FAKE": "1", "PYTHONPATH": paths},
        timeout=280,
        check=True,
    )
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["failures"] == [], found
    assert found["held"]


def test_a_processor_may_run_ahead() -> None:
    """`wait()` returns at once, and what needs the result is done in its order."""
    first, second = run_gang(PROGRAMS / "ahead_program.py", 2)
    assert first.results["is ahead"], "its `wait()` has returned before the other one has come"
    for member in (first, second):
        assert member.results["others are done at once"] and member.results["is done"]
        assert member.results["value"] == [4.0] * 3
        assert member.results["weight"] == [0.2] * 3
