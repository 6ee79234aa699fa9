"""The hang watch: a world that reported steps and stopped doing so is stuck; say where, then restart it.

Most ranks of such a world wait in a collective; the one that is somewhere else holds them up.

The watch is active only for scripts that report steps, because only they tell slow from stuck. The limit follows what
was seen: a step may take many times the usual one (a checkpoint, an evaluation) before it counts as a hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
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


def collect_stacks(folder: Path, workers: Mapping[int, int], patience: float = 2.0) -> dict[int, str]:
    """Ask workers (pids by local rank) for their stacks; those that answer, by local rank.

    One that has not offered it is not asked: the signal would end it.
    """
    files = {rank: file for rank, pid in workers.items() if (file := stacks_file(folder, pid)).exists()}
    sizes = {rank: _size(file) for rank, file in files.items()}
    for rank in files:
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[rank], signal.SIGUSR2)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(_size(files[rank]) == sizes[rank] for rank in files):
        time.sleep(0.05)
    time.sleep(0.05)  # the last lines
    found = {rank: file.read_text(errors="replace")[sizes[rank] :] for rank, file in files.items()}
    return {rank: text for rank, text in found.items() if text}


@dataclass(frozen=True)
class Place:
    """Where a main thread is."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} in {self.function}"


_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def find_main_stack(stacks: str) -> str:
    """The lines of the main thread, the innermost call first: the last block of what faulthandler wrote."""
    blocks = re.split(r"\n(?=[A-Z].*most recent call first)", stacks)
    python = [block for block in blocks if "C stack" not in block.partition("\n")[0]]
    return "\n".join(line for line in python[-1].splitlines() if _FRAME.match(line)) if python else ""


def find_places(main_stack: str) -> list[Place]:
    """The calls of a stack, the innermost first."""
    found = (_FRAME.match(line) for line in main_stack.splitlines())
    return [Place(match[1], int(match[2]), match[3]) for match in found if match]


# Code from which a call returns when the other ranks have made it too.
_WAITING = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/", "/torch/cuda/__init__.py")
_OWN = str(Path(__file__).parents[1]) + os.sep


def is_waiting(places: Sequence[Place]) -> bool:
    """Whether this rank waits for others: it is inside a collective, or a backward pass that reduces gradients."""
    return bool(places) and (any(part in places[0].file for part in _WAITING) or places[0].file.startswith(_OWN))


BLOCKED_SECONDS = 1.0
_BLOCKED_TICKS = 3  # of processor time (10 ms each) within that time


@dataclass(frozen=True)
class Look:
    """The workers of a pod at one moment, by local rank."""

    stacks: Mapping[int, str]  # of the main threads
    ticks: Mapping[int, int]  # processor time used so far, by all threads


def look_at(folder: Path, workers: Mapping[int, int]) -> Look:
    """Look at workers (pids by local rank). A worker that does not answer has no stack."""
    stacks = {rank: find_main_stack(text) for rank, text in collect_stacks(folder, workers, 0.5).items()}
    return Look(stacks, {rank: count_ticks(pid) for rank, pid in workers.items()})


def is_blocked(before: Look, after: Look) -> bool:
    """Whether all workers are blocked in a collective: two looks see the same calls, and no work between them.

    A slow collective copies data, and a thread that writes a checkpoint uses the processor: neither is blocked.
    """
    if not after.ticks or before.ticks.keys() != after.ticks.keys() or before.stacks != after.stacks:
        return False
    waits = all(is_waiting(find_places(after.stacks.get(rank, ""))) for rank in after.ticks)
    return waits and all(ticks - before.ticks[rank] <= _BLOCKED_TICKS for rank, ticks in after.ticks.items())


def count_ticks(pid: int) -> int:
    """The processor time that a process has used; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def find_own_place(places: Sequence[Place]) -> Place | None:
    """The innermost call in the user's code, which says more than where a library is."""
    own = (p for p in places if "/site-packages/" not in p.file and "/lib/python3" not in p.file)
    return next((p for p in own if not p.file.startswith((_OWN, "<"))), places[0] if places else None)


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
