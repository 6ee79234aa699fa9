"""The hang watch: a world that reported steps and stopped doing so is stuck; say where, then restart it.

It is active only for scripts that report steps, because only they tell slow from stuck. The limit follows what
was seen: a step may take many times the usual one (a checkpoint, an evaluation) before it counts as a hang.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

LEAST_SECONDS = 120.0  # below this nothing counts as a hang unless a limit is set
FACTOR = 30.0
MIN_STEPS = 3  # reports before the watch begins: the first steps compile and warm up


@dataclass
class Watch:
    """What the workers of this generation reported, and when."""

    limit: float | None  # None: from the step time; 0: never
    reports: int = 0
    last: float = 0.0
    slowest: float = 0.0
    step: int | None = None
    intervals: list[float] = field(default_factory=list)

    def report(self, now: float, step: int | None) -> None:
        """A worker reported progress."""
        if step is None or step == self.step:
            return
        if self.step is not None:
            self.intervals = [*self.intervals[-99:], now - self.last]
        self.reports, self.last, self.step = self.reports + 1, now, step


def find_limit(watch: Watch) -> float | None:
    """Seconds without a step that count as a hang; None where the watch is off."""
    if watch.limit == 0 or watch.reports < MIN_STEPS:
        return None
    if watch.limit is not None:
        return watch.limit
    usual = sorted(watch.intervals)[len(watch.intervals) // 2]
    return max(LEAST_SECONDS, FACTOR * usual, 3 * max(watch.intervals))


def is_hung(watch: Watch, now: float) -> bool:
    limit = find_limit(watch)
    return limit is not None and now - watch.last > limit


def collect_stacks(folder: Path, workers: list[tuple[int, int]], patience: float = 2.0) -> str:
    """Ask the workers (local rank, pid) for their stacks and read what they wrote."""
    files = {local_rank: stacks_file(folder, pid) for local_rank, pid in workers}
    sizes = {local_rank: _size(file) for local_rank, file in files.items()}
    for _, pid in workers:
        try:
            os.kill(pid, signal.SIGUSR2)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(_size(files[rank]) == sizes[rank] for rank in files):
        time.sleep(0.05)
    time.sleep(0.05)  # the last lines
    parts = []
    for local_rank, file in sorted(files.items()):
        text = file.read_text(errors="replace")[sizes[local_rank] :] if file.exists() else ""
        parts.append(f"local rank {local_rank}:\n{text or 'no answer'}\n")
    return "\n".join(parts)


def stacks_file(folder: Path, pid: int) -> Path:
    """Where a worker writes its stacks when asked with SIGUSR2."""
    return folder / f"stacks-{pid}.txt"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def offer_stacks(folder: Path) -> bool:
    """The worker's side: on SIGUSR2 write all threads' stacks, even while stuck in native code."""
    if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return False  # the script's own
    try:
        file = stacks_file(folder, os.getpid()).open("w")
    except OSError:
        return False
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
    _open_files.append(file)  # it must stay open
    return True


_open_files: list[IO[str]] = []
