"""Runs a script with a session over the tests' model of NCCL, and polls its device as CUDA does: SCRIPT ARGUMENTS"""

from __future__ import annotations

import functools
import os
import runpy
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import elasticjob
from elasticjob.torchcompat import devices
from worker import fake_nccl


def poll() -> None:
    while fake_nccl._device._kernels:
        time.sleep(0)  # gives the lock back, and goes on at once


if __name__ == "__main__":
    os.environ.setdefault(fake_nccl.VARIABLE, "")
    backend = fake_nccl.choose()
    devices.register_wait(fake_nccl.NAME, poll)
    elasticjob.Session = functools.partial(elasticjob.Session, backend=backend)  # type: ignore[misc, assignment]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
