"""What the processes between an agent and its workers have in common."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NEVER = 2**31 - 1  # objects until the next collection: the most that gc takes
_thresholds: tuple[int, int, int] | None = None  # those before the pause


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when `parent` dies: a worker must not outlive its agent."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux
    if os.getppid() != parent:
        os._exit(0)  # it died before the prctl call


def await_end(pid: int, seconds: float) -> None:
    """Return when this process has ended, also if nobody has waited for it yet, or after so many seconds."""
    try:
        ended = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return  # it has ended, or this is not Linux
    try:
        await_readable(ended, seconds)
    finally:
        os.close(ended)


def await_readable(file: int, timeout: float | None) -> bool:
    """Whether it is readable before `timeout` seconds have passed. Unlike `select`, for any number of open files."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def age(pid: int) -> float:
    """Seconds since a process was started, to a hundredth."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def pause_collection() -> None:
    """Let garbage lie, in this process and those forked from it, until `resume_collection`.

    Imports make a million objects and hardly any garbage: looking for it takes a fifth of their CPU time. The collector
    stays enabled, so that whatever an import says about it holds.
    """
    global _thresholds  # noqa: PLW0603 - a forked process knows what its parent did
    if gc.get_threshold()[0] != _NEVER:
        _thresholds = gc.get_threshold()
        gc.set_threshold(_NEVER, *_thresholds[1:])


def resume_collection() -> None:
    """Collect garbage as before `pause_collection`, unless somebody has set other thresholds meanwhile."""
    if _thresholds is not None and gc.get_threshold()[0] == _NEVER:
        gc.set_threshold(*_thresholds)


def freeze() -> None:
    """Keep garbage collection in a forked process from copying the pages that it shares with this one.

    Without a collection first, which takes a tenth of a second, and would make holes in those pages.
    """
    gc.freeze()
