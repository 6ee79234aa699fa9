"""The backend of a program's session: the tests' model of NCCL if the environment wants it, see `worker.fake_nccl`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def choose() -> str | None:
    if "FAKE_NCCL" not in os.environ:
        return None
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from worker import fake_nccl

    return fake_nccl.choose()
