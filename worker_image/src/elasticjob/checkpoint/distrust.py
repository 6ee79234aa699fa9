"""Checkpoints that were saved while a replica was wrong are restored last, and their snapshots in memory not at all."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from elasticjob.checkpoint import files, memory
from elasticjob.context import agreement

_log = logging.getLogger("elasticjob.checkpoint.distrust")


def watch(directory: Path, snapshots: memory.Snapshots | None) -> None:
    """From now on, mark the checkpoints in this directory when the ranks go back to an earlier step."""
    agreement.on_going_back(str(directory), partial(_distrust, directory, snapshots))


def _distrust(directory: Path, snapshots: memory.Snapshots | None, step: int) -> None:
    if snapshots is not None:
        snapshots.keep_only("", 0)
    try:
        marked = files.distrust(directory, step)
    except OSError as error:
        _log.warning("the checkpoints after step %d in %s could not be marked: %s", step, directory, error)
        return
    if marked:
        _log.warning("the checkpoints of steps %s in %s are restored last", ", ".join(map(str, marked)), directory)
