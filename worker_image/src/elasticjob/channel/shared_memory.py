"""The agent's folder in shared memory, for snapshots: it outlives the workers, and goes when the agent ends.

The agent holds a lock in it as long as it lives, so that another agent can tell a folder that a killed one has left:
pods that are processes of one host share /dev/shm.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - each agent has a folder of its own in it
_PREFIX: Final = "elasticjob-memory-"
_locks: list[int] = []  # held until the process ends


def claim(where: Path = SHARED_MEMORY) -> Path | None:
    """A new folder that only this user can enter; None where there is no shared memory. It is removed at exit."""
    remove_stale(where)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=where))  # mode 0700
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    _locks.append(lock)
    atexit.register(_remove, folder, os.getpid())
    return folder


def remove_stale(where: Path) -> None:
    """Remove the folders of agents that have ended."""
    for path in where.glob(f"{_PREFIX}*/lock"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # of another user, or just removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:
            continue  # in use
        finally:
            os.close(lock)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker must not
        shutil.rmtree(folder, ignore_errors=True)
