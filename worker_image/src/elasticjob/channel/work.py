"""What a process and its children have done so far, read from /proc: a checkpoint is written by any of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_IDLE_TICKS = 3  # of processor time (10 ms each) between two looks
_IDLE_BYTES = 1 << 20  # a process that dumps its stack and writes a log line stays far below


@dataclass(frozen=True)
class Work:
    """The totals of a process and its children, and whether one of their threads waits for a disk."""

    ticks: int = 0  # of processor time
    bytes: int = 0  # read and written
    waits_for_disk: bool = False


def measure(pid: int, proc: Path = PROC) -> Work:
    """What this process has done so far, with its children; nothing where it has ended.

    Both totals include children that were waited for, so they grow also when a child ends.
    """
    ticks = count = 0
    waits = False
    pids = [pid]
    while pids:
        folder = proc / str(pids.pop())
        ticks += sum(map(int, _read(folder / "stat").rpartition(")")[2].split()[11:15]))
        lines = (line.split() for line in _read(folder / "io").splitlines())
        count += sum(int(line[1]) for line in lines if line[0] in ("rchar:", "wchar:"))
        for thread in _list(folder / "task"):
            waits = waits or _read(thread / "stat").rpartition(")")[2].split()[:1] == ["D"]
            pids += map(int, _read(thread / "children").split())
    return Work(ticks, count, waits)


def is_idle(before: Work, after: Work) -> bool:
    """Whether nothing was done between two measurements: nothing was computed, read or written."""
    if before.waits_for_disk or after.waits_for_disk:
        return False
    return abs(after.ticks - before.ticks) <= _IDLE_TICKS and abs(after.bytes - before.bytes) <= _IDLE_BYTES


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it has ended, or the kernel does not say
        return ""


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
