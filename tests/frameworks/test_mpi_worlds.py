"""Worlds of MPI that end, fail, abort and are killed at random: what they leave behind, and how their ranks end.

200 histories by hand: `MPI_HISTORIES=200 make frameworks PYTEST_ARGS="-k mpi4py_worlds"`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from frameworks.environment import BIN, require

PROGRAM = Path(__file__).parents[1] / "worker/programs/mpi_worlds.py"
HISTORIES = int(os.environ.get("MPI_HISTORIES", "2"))

pytestmark = [
    pytest.mark.timeout(120 + 40 * HISTORIES),
    pytest.mark.skipif(not (BIN / "torchrun").exists(), reason="no environment with the frameworks: make frameworks"),
]


def test_mpi4py_worlds_leave_nothing_behind() -> None:
    require("mpi4py")
    command = [str(BIN / "python"), str(PROGRAM), os.environ.get("MPI_SEED", "0"), str(HISTORIES)]
    played = subprocess.run(command, capture_output=True, text=True, check=False)
    assert played.returncode == 0, played.stderr
    told = json.loads(played.stdout.splitlines()[-1])
    assert told["wrong"] == 0, played.stdout
    assert told["worlds"] >= HISTORIES


OPEN = """
import sys, types
fake = types.ModuleType("mpi4py.MPI")
fake.Get_library_version = lambda: "Open MPI v5.0.11, package: Open MPI"
sys.modules["mpi4py.MPI"] = fake
import mpi4py
mpi4py.MPI = fake
import elasticjob.mpi
"""

LATE = (
    "from mpi4py import MPI; import os; os.environ.update(RANK='0', WORLD_SIZE='2', MASTER_ADDR='h', MASTER_PORT='1')"
)

REFUSED = {
    OPEN: "mpi4py uses the MPI library Open MPI v5.0.11",
    f"{LATE}; import elasticjob.mpi": "import elasticjob.mpi before mpi4py",
    f"{LATE}; os.environ['MASTER_PORT'] = '65536'; import elasticjob.mpi": "use elasticjob.mpi without a Session",
    "import sys; sys.modules['mpi4py'] = None; import elasticjob.mpi": "mpi4py is not installed",
}


@pytest.mark.parametrize("program", REFUSED, ids=["open-mpi", "late", "session", "missing"])
def test_what_mpi4py_cannot_do_is_refused_with_the_remedy(program: str) -> None:
    require("mpi4py")
    played = subprocess.run([str(BIN / "python"), "-c", program], capture_output=True, text=True, check=False)
    assert played.returncode == 1
    assert "ConfigurationError: " in played.stderr
    assert REFUSED[program] in played.stderr


def test_mpi4py_alone_is_a_world_of_one() -> None:
    require("mpi4py")
    program = "from elasticjob.mpi import MPI; print(MPI.COMM_WORLD.size, MPI.COMM_WORLD.allreduce(3))"
    played = subprocess.run([str(BIN / "python"), "-c", program], capture_output=True, text=True, check=False)
    assert (played.returncode, played.stdout) == (0, "1 3\n"), played.stderr
