"""What processes do, read from /proc by this module alone: `quiet`, `stillness` and `hang` draw the conclusions."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
IN_STATE_D = "in a system call that does not return (state D: a disk or a file server does not answer)"
_IDLE_TICKS = 3  # of processor time (10 ms each) between two looks
_IDLE_BYTES = 1 << 20  # a process that dumps its stack and writes a log line stays far below
_FIELDS = re.compile(r"^(?:State:\s+(\w)|(?:non)?voluntary_ctxt_switches:\s+(\d+))", re.MULTILINE)


@dataclass(frozen=True)
class Work:
    """The totals of a process and its children, and whether one of their threads waits for a disk."""

    ticks: int = 0  # of processor time
    bytes: int = 0  # read and written
    waits_for_disk: bool = False
    switches: int | None = None  # how often the main thread was scheduled so far; None: unknown


@dataclass(frozen=True)
class Glance:
    """All workers of a pod at one moment."""

    asleep: bool  # every main thread sleeps, none of them in a read from a disk
    switches: int = 0  # how often the main threads were scheduled so far
    ticks: int = 0  # processor time that the processes have used, in ticks of 10 ms


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
    switches = [int(number) for _, number in _FIELDS.findall(_read(proc / str(pid) / "status")) if number]
    return Work(ticks, count, waits, sum(switches) if switches else None)


def is_idle(before: Work, after: Work) -> bool:
    """Whether nothing was done between two measurements: nothing was computed, read or written."""
    if before.waits_for_disk or after.waits_for_disk:
        return False
    return abs(after.ticks - before.ticks) <= _IDLE_TICKS and abs(after.bytes - before.bytes) <= _IDLE_BYTES


def glance(pids: Collection[int]) -> Glance:
    """Look at these processes. One that cannot be read does not wait."""
    if not pids:
        return Glance(asleep=False)
    asleep, switches, ticks = True, 0, 0
    for pid in pids:
        try:
            status = (PROC / str(pid) / "status").read_text()
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return Glance(asleep=False)
        found = _FIELDS.findall(status)
        asleep = asleep and [state for state, _ in found if state] == ["S"]
        switches += sum(int(count) for _, count in found if count)
        ticks += int(fields[11]) + int(fields[12])
    return Glance(asleep, switches, ticks)


def is_alive(pid: int) -> bool:
    """Whether the process runs: an exited one whose exit code nobody has read does not."""
    state = _read(PROC / str(pid) / "stat").rpartition(")")[2].split()[:1]
    return bool(state) and state != ["Z"]


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
