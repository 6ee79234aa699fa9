"""The hang watch: detects a world that stopped reporting steps, finds where its ranks are, and lets it restart.

Most ranks of such a world wait in a collective; a rank that is somewhere else blocks them.

The watch is active only for scripts that report steps, because otherwise a slow script cannot be told from a stuck one.
The limit adapts to the observed step time: a step may take many times longer than usual (a checkpoint, an evaluation)
before it counts as a hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from elasticjob.channel import work

LEAST_SECONDS = 120.0  # the shortest automatic limit; an explicit limit may be shorter
FACTOR = 30.0
MIN_STEPS = 3  # reports before the watch starts: the first steps compile and warm up


@dataclass
class Watch:
    """What the workers of this generation have reported, and when."""

    limit: float | None  # seconds; None: derive it from the step time; 0: off
    reports: int = 0
    last: float = 0.0
    slowest: float = 0.0
    step: int | None = None
    intervals: list[float] = field(default_factory=list)

    def report(self, now: float, step: int | None) -> None:
        """Record a worker's progress report."""
        if step is None or step == self.step:
            return
        if self.step is not None:
            self.intervals = [*self.intervals[-99:], now - self.last]
        self.reports, self.last, self.step = self.reports + 1, now, step


def find_limit(watch: Watch) -> float | None:
    """Seconds without a step that count as a hang; None if the watch is off."""
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
    """Request stack dumps from workers (pids by local rank); return the ones received, by local rank.

    Workers that did not install the handler are skipped: the signal would terminate them. `patience` is in seconds.
    """
    files = {rank: file for rank, pid in workers.items() if (file := stacks_file(folder, pid)).exists()}
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


def is_whole(stacks: str) -> bool:
    """Whether a dump has been written to its end: to the module with which the main thread began.

    A dump of more calls than faulthandler writes never looks whole.
    """
    main = find_main_stack(stacks).splitlines()
    return stacks.endswith("\n") and bool(main) and main[-1].endswith(" in <module>")


def _read(file: Path, begin: int) -> str:
    return file.read_text(errors="replace")[begin:]


REPORT = "elasticjob: hang report of generation {}: {}"
REPORT_END = "elasticjob: end of the hang report"


def format_report(generation: int, summary: str, text: str) -> str:
    """The lines for the pod's log, between the marks by which `kubectl elasticjob diagnose` finds them."""
    return f"{REPORT.format(generation, summary)}\n{text}\n{REPORT_END}"


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
    """The main thread's lines, innermost call first: the last block that faulthandler wrote."""
    blocks = re.split(r"\n(?=[A-Z].*most recent call first)", stacks)
    python = [block for block in blocks if "C stack" not in block.partition("\n")[0]]
    return "\n".join(line for line in python[-1].splitlines() if _FRAME.match(line)) if python else ""


def find_places(main_stack: str) -> list[Place]:
    """The calls of a stack, innermost first."""
    found = (_FRAME.match(line) for line in main_stack.splitlines())
    return [Place(match[1], int(match[2]), match[3]) for match in found if match]


# Functions that return only once the other ranks have called them too.
_WAITING = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/", "/torch/cuda/__init__.py")
_OWN = str(Path(__file__).parents[1]) + os.sep


def is_waiting(places: Sequence[Place]) -> bool:
    """Whether this rank waits for others: it is in a collective, or in a backward pass that reduces gradients."""
    return bool(places) and (any(part in places[0].file for part in _WAITING) or places[0].file.startswith(_OWN))


BLOCKED_SECONDS = 1.0  # between two looks
BLOCKED_LOOKS = 4  # An agent takes up to two seconds to withdraw what it said, so what counts must have lasted longer.


@dataclass(frozen=True)
class Look:
    """The workers of a pod at one moment, by local rank."""

    stacks: Mapping[int, str]  # of the main threads
    done: Mapping[int, work.Work]  # so far, by all threads and children


def look_at(folder: Path, workers: Mapping[int, int]) -> Look:
    """Look at workers (pids by local rank). A worker that does not answer has no stack."""
    stacks = {rank: find_main_stack(text) for rank, text in collect_stacks(folder, workers, 0.5).items()}
    return Look(stacks, {rank: work.measure(pid) for rank, pid in workers.items()})


def is_blocked(looks: Sequence[Look]) -> bool:
    """Whether all workers are blocked in a collective: the latest looks see the same calls, and no work between them.

    A slow collective copies data, and whoever writes a checkpoint works or waits for the disk: neither is blocked.
    """
    looks = looks[-BLOCKED_LOOKS:]
    return len(looks) == BLOCKED_LOOKS and all(_has_stayed(*pair) for pair in itertools.pairwise(looks))


def _has_stayed(before: Look, after: Look) -> bool:
    if not after.done or before.done.keys() != after.done.keys() or before.stacks != after.stacks:
        return False
    waits = all(is_waiting(find_places(after.stacks.get(rank, ""))) for rank in after.done)
    return waits and all(work.is_idle(before.done[rank], done) for rank, done in after.done.items())


def find_own_place(places: Sequence[Place]) -> Place | None:
    """The innermost call in the user's code, which is more useful than a position in a library."""
    own = (p for p in places if "/site-packages/" not in p.file and "/lib/python3" not in p.file)
    return next((p for p in own if not p.file.startswith((_OWN, "<"))), places[0] if places else None)


def stacks_file(folder: Path, pid: int) -> Path:
    """The file to which a worker writes its stacks on SIGUSR2."""
    return folder / f"stacks-{pid}.txt"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def offer_stacks(folder: Path) -> bool:
    """In the worker: dump the stacks of all threads on SIGUSR2, even while native code blocks.

    Returns False if the script has its own handler for the signal.
    """
    if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return False  # the script has its own handler
    try:
        file = stacks_file(folder, os.getpid()).open("w")
    except OSError:
        return False
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
    _open_files.append(file)  # faulthandler needs it open
    return True


_open_files: list[IO[str]] = []
