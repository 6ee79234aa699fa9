"""A process that skips the destructors of its libraries has the exit status and the output of one that does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, ctypes, sys
from elasticjob_devcluster.system import processes

libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)  # a destructor
processes.skip_destructors()
atexit.register(print, "the interpreter ends")
libc.printf(b"said by a library\\n")
print("said by the script")
sys.exit({status})
"""


@pytest.mark.parametrize("status", [0, 3])
def test_status_and_output_are_kept(status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(status=status)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    assert sorted(done.stdout.splitlines()) == ["said by a library", "said by the script", "the interpreter ends"]
