"""The stacks of workers: each describes its threads when its agent asks, and dumps that of its main thread on SIGUSR2.

The answer comes from the thread that reads the control channel. It needs the GIL, so a worker whose native code keeps
the GIL is silent; only such a one gets the signal. The handler runs in the main thread and reads that thread alone,
even while native code blocks it or keeps the GIL. Without the GIL nobody may read the stack of a thread that runs:
faulthandler crashes the process in one of some ten to a hundred dumps.

The signal is a risk: it ends a process that has no handler, and a script may use it itself. So it goes only to a worker
that is connected (an exec closes the connection), has a handler, and has not said that this one is the script's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import re
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from elasticjob.channel import processes

# In the worker.


def _file_of(folder: Path, pid: int) -> Path:
    """The file to which a worker writes its stacks on SIGUSR2."""
    return folder / f"stacks-{pid}.txt"


def offer(folder: Path) -> bool:
    """In the worker: dump the stack of the main thread on SIGUSR2, even while native code blocks.

    Returns False if the script has its own handler for the signal.
    """
    if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return False  # the script has its own handler
    there = _file_of(folder, os.getpid())
    unseen = there.with_suffix(".new")
    try:
        file = unseen.open("w")
    except OSError:
        return False
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=False, chain=False)
    unseen.replace(there)  # the agent sends the signal once the file is there: before, it ends the process
    _open_files.append(file)  # faulthandler needs it open
    return True


_open_files: list[IO[str]] = []


def is_offered() -> bool:
    """Whether SIGUSR2 still dumps the stack: the script may have set a handler of its own since."""
    return bool(_open_files) and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


_MOST_CALLS: Final = 100  # as many as faulthandler writes
MOST_CHARACTERS: Final = 32_768


def describe_main_thread() -> str:
    """In the worker: the stack of the main thread, in the form of faulthandler."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else "\n".join(["Stack (most recent call first):", *_describe(frame), ""])


def _describe(frame: types.FrameType) -> list[str]:
    calls = itertools.islice(traceback.walk_stack(frame), _MOST_CALLS)
    return [f'  File "{call.f_code.co_filename}", line {line} in {call.f_code.co_name}' for call, line in calls]


def describe_other_threads() -> str:
    """In the worker: the stacks of all Python threads but the main one and the caller, in the form of faulthandler."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    skipped = (threading.main_thread().ident, threading.get_ident())
    blocks = []
    for ident, frame in sys._current_frames().items():
        if ident in skipped:
            continue
        title = f"Thread {names.get(ident, ident)} (most recent call first):"
        blocks.append("\n".join([title, *_describe(frame)]))
    return "\n\n".join(blocks)[:MOST_CHARACTERS]


# In the agent.


PATIENCE: Final = 2.0  # seconds


def collect(folder: Path, workers: Mapping[int, int], patience: float = PATIENCE) -> dict[int, str]:
    """Request stack dumps by signal from workers (pids by local rank); return the ones received, by local rank.

    Workers without a handler are skipped: the signal would terminate them. `patience` is in seconds.
    """
    files = {rank: file for rank, pid in workers.items() if (file := _file_of(folder, pid)).exists() and _handles(pid)}
    sizes = {rank: _size(file) for rank, file in files.items()}
    for rank in files:
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[rank], signal.SIGUSR2)
    deadline = time.monotonic() + patience
    found = {rank: _read(file, sizes[rank]) for rank, file in files.items()}
    while time.monotonic() < deadline and not all(is_whole(text) for text in found.values()):
        time.sleep(0.05)
        found = {rank: _read(file, sizes[rank]) for rank, file in files.items()}
    return {rank: text for rank, text in found.items() if text}


def _handles(pid: int) -> bool:
    process = processes.read(pid)
    return process is not None and process.catches(signal.SIGUSR2)


def _read(file: Path, begin: int) -> str:
    return file.read_text(errors="replace")[begin:]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


# What they say.


def is_whole(stacks: str) -> bool:
    """Whether a dump has been written to its end: to the module with which the main thread began.

    A dump of more calls than faulthandler writes never looks whole.
    """
    main = find_main_stack(stacks).splitlines()
    return stacks.endswith("\n") and bool(main) and main[-1].endswith(" in <module>")


@dataclass(frozen=True)
class Place:
    """The position of a main thread in the code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} in {self.function}"


_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def find_main_stack(stacks: str) -> str:
    """The main thread's lines, innermost call first: the last block of Python that faulthandler wrote.

    "" where another thread took the signal, since the main one is in a system call that does not return.
    """
    blocks = re.split(r"\n(?=[A-Z].*most recent call first)", stacks)
    python = [block for block in blocks if "C stack" not in block.partition("\n")[0]]
    frames = [line for line in python[-1].splitlines() if _FRAME.match(line)] if python else []
    return "" if frames and frames[-1].endswith(" in _bootstrap") else "\n".join(frames)


def find_places(main_stack: str) -> list[Place]:
    """The calls of a stack, innermost first."""
    found = (_FRAME.match(line) for line in main_stack.splitlines())
    return [Place(match[1], int(match[2]), match[3]) for match in found if match]
