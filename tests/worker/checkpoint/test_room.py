"""Snapshots in memory leave the script its part of /dev/shm: loaders with workers end with a bus error without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs/room_program.py"
OWN = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'  # what a container gets by default


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("state", "ends"),
    [
        pytest.param(12, "trained 14 steps beside snapshots of [12, 12] MiB", id="enough"),
        pytest.param(26, "trained 14 steps beside snapshots of [] MiB", id="too little"),
    ],
)
def test_a_loader_with_workers_has_room_beside_snapshots(state: int, ends: str) -> None:
    within = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", OWN, "sh")
    if subprocess.run([*within, "true"], capture_output=True, timeout=20, check=False).returncode:
        pytest.skip(f"{within[:2]} is not allowed here")
    ran = subprocess.run(
        [*within, sys.executable, str(PROGRAM), str(state)], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0 and ran.stdout.strip() == ends, ran.stderr[-3000:]
    told = "32 of its 64 MiB are left to the script" in ran.stderr and "emptyDir with medium Memory" in ran.stderr
    assert told == (state == 26)
