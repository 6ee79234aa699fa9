"""Runs `tests/stores`: clients of stores, in environments of their own, which `make test` and `make clouds` make."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stores_fixture import CLOUDS_MISSING, CLOUDS_PYTHON, MISSING, PYTHON, ROOT

needs_clouds = pytest.mark.skipif(not CLOUDS_PYTHON.exists(), reason=CLOUDS_MISSING)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("python", "name"),
    [
        pytest.param(PYTHON, "s3.py", id="s3", marks=pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)),
        pytest.param(CLOUDS_PYTHON, "gcs.py", id="google", marks=needs_clouds),
        pytest.param(CLOUDS_PYTHON, "az.py", id="azure", marks=needs_clouds),
    ],
)
def test_an_archive_in_a_store_that_speaks_the_protocol_of(python: Path, name: str) -> None:
    command = [str(python), "-m", "pytest", "-c", "tests/stores/pytest.ini", "--confcutdir=tests/stores"]
    command.append(f"tests/stores/{name}")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=280)
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stdout[-3000:]
