"""Runs `tests/stores`: clients of stores, in an environment of their own, which `make test` makes."""

from __future__ import annotations

import os
import subprocess

import pytest

from stores_fixture import MISSING, PYTHON, ROOT


@pytest.mark.timeout(300)
@pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)
def test_an_archive_in_a_store_that_speaks_s3() -> None:
    command = [
        str(PYTHON),
        "-m",
        "pytest",
        "-c",
        "tests/stores/pytest.ini",
        "--confcutdir=tests/stores",
        "tests/stores/s3.py",
    ]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=280)
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stdout[-3000:]
