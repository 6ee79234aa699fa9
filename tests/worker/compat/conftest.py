"""A world of one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticjob.compat.horovod as hvd
from worker.gang_helper import clean_environment


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """This process is the only rank, with a folder for commits."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("ELASTICJOB_CHECKPOINTS", str(tmp_path))
    hvd.init()
    yield
    hvd.shutdown()
