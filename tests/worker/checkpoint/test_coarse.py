"""Parameters of few bits: what an optimizer counts in more of them is restored as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from worker.gang_helper import clean_environment

PROGRAM = Path(__file__).parents[1] / "programs" / "coarse_program.py"


def test_the_numbers_of_an_optimizer_keep_their_precision(tmp_path: Path) -> None:
    """torch casts them to the type of the parameter: a rank that has loaded its state would train something else."""
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    ran = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert len(lines) == 12
    assert [line for line in lines if len(line) > 2] == []
