"""What the processes between an agent and its workers have in common."""

from __future__ import annotations

import ctypes
import gc
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when `parent` dies: a worker must not outlive its agent."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux
    if os.getppid() != parent:
        os._exit(0)  # it died before the prctl call


def freeze() -> None:
    """Keep garbage collection in a forked process from copying the pages that it shares with this one."""
    gc.collect()
    gc.freeze()
