"""What the processes between an agent and its workers have in common."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import time
from collections.abc import Sequence
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


def find_options(command: Sequence[str]) -> list[str]:
    """The options of the interpreter in its own command line (`sys.orig_argv`), but for `-u`."""
    found: list[str] = []
    words = iter(command[1:])
    for word in words:
        if word[:1] != "-" or word == "-":
            break
        is_last = not word.startswith("--") and word[-1] in "cm"  # a command, or the name of a module, follows
        if word.strip("-u") and not (is_last and not word[:-1].strip("-u")):
            found.append(word)
        if word.startswith("--check") or (word[1] != "-" and word[-1] in "XW"):
            found.append(next(words, ""))
        if is_last:
            break
    return found


def find_inherited() -> list[int]:
    """The open files that the next program would inherit, but for the three standard ones."""
    numbers = [int(file.name) for file in Path("/proc/self/fd").iterdir()]
    found = []
    for number in numbers:
        with contextlib.suppress(OSError):  # that of the listing
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def open_standard_files() -> None:
    """Open what is closed of the three standard files, on nothing: another file would get its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


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
