"""Processes that never outlive a benchmark, and pods that die like pods.

Every process started here carries a mark in its environment, and so does everything it starts, in whatever
session or process group. Killing by the mark is what the kernel does to a container's cgroup: the whole pod at
once. At exit, by whatever road, everything that still carries this run's mark is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

MARK = "ELASTICJOB_BENCHMARK"
RUN = uuid.uuid4().hex[:12]


def find_marked(mark: str) -> list[int]:
    """Ids of all processes whose environment carries the mark, or one that begins with it."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if any(item.startswith(needle) for item in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return sorted(found)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_marked(mark: str, seconds: float = 5.0) -> None:
    """Kill until nobody with the mark is left: a process may have forked while we looked."""
    until = time.monotonic() + seconds
    while pids := find_marked(mark):
        send(pids, signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.01)


class Pod:
    """One started program and everything below it, with a log file of its own."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.mark = f"{RUN}/{name}/{uuid.uuid4().hex[:8]}/"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                list(command),
                env={**env, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def signal_all(self, number: signal.Signals) -> float:
        """Signal every process of the pod at once; returns when that began."""
        pids = find_marked(self.mark)
        began = time.time()
        send(pids, number)
        return began

    def signal_first(self, number: signal.Signals) -> float:
        """Signal the pod's first process alone: what a kubelet does with SIGTERM."""
        began = time.time()
        send([self.process.pid], number)
        return began

    def close(self) -> None:
        kill_marked(self.mark)
        self.process.wait()


def _clean_up() -> None:
    kill_marked(RUN)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def install_clean_up() -> None:
    """Make SIGTERM and SIGHUP end the run through `atexit` too."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)


atexit.register(_clean_up)
