"""The model of NCCL does what is expected of NCCL: the checks that a device could refute it by, of `make gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.gang_helper import REPOSITORY

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
