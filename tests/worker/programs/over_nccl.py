"""Runs a script with a session over the tests' model of NCCL, and polls its device as CUDA does: SCRIPT ARGUMENTS"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import elasticjob
from elasticjob.torchcompat import devices
from worker import fake_nccl

if __name__ == "__main__":
    os.environ.setdefault(fake_nccl.VARIABLE, "")
    backend = fake_nccl.choose()
    devices.register_wait(fake_nccl.NAME, fake_nccl.poll)
    elasticjob.Session = functools.partial(elasticjob.Session, backend=backend)  # type: ignore[misc, assignment]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
