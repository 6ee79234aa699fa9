"""Saves that were not complete when their world ended, in a process that goes on in the next one.

A session keeps the step and does not repeat what the script did after it. So the `Checkpointer` of the next world asks
for the save again, and does not let the script end as if it had been made. Who had begun it may be lost by then: what
it has left in the directory tells the others.
"""

from __future__ import annotations

from pathlib import Path

from elasticjob.checkpoint import files
from elasticjob.context import agreement

_owed: dict[Path, int] = {}


def begin(directory: Path, step: int) -> None:
    """A save begins, or would have."""
    _owed[directory] = step


def end(directory: Path) -> None:
    """The last save is complete, or training goes on from an earlier one."""
    _owed.pop(directory, None)


def find(directory: Path) -> int | None:
    """The step whose save began in an earlier world of this training and did not end; None if there is none."""
    if directory not in _owed and agreement.has_state():
        return files.find_torn(directory)
    return _owed.get(directory)
