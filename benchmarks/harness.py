"""The common part of all benchmarks: the result line, the options, and the output.

A result is one JSON object on one line: `{"benchmark", "case", "seconds" (or another unit): {"min", "median", "max"},
"peer", "peerValue": {...}, "ratio", "machine"}`. `ratio` is always ours divided by the peer's, of the medians: above 1
is better for a rate, below 1 for everything else. A value is null if the event did not happen within its time limit: a
system that never recovers has no median. If either median is null, there is no ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

Kind = Literal["seconds", "rate", "bytes", "steps"]
Sample = float | None

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_OUT = ROOT / ".work" / "bench"


def summarise(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Minimum, median and maximum. None counts as infinitely slow: of three samples, one affects only the maximum."""
    if not samples:
        return {"min": None, "median": None, "max": None}
    numbers = sorted(math.inf if sample is None else sample for sample in samples)
    found = {"min": numbers[0], "median": statistics.median(numbers), "max": numbers[-1]}
    return {key: round_digits(value) if math.isfinite(value) else None for key, value in found.items()}


def round_digits(value: float, digits: int = 4) -> float:
    """Round to four significant digits: further digits would not be reproducible."""
    if value == 0:
        return 0.0
    return round(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def find_ratio(ours: float | None, peer: float | None) -> float | None:
    """Ours divided by the peer's; None unless both exist."""
    if ours is None or peer is None or peer == 0:
        return None
    return round_digits(ours / peer)


@dataclass(frozen=True)
class Result:
    """One comparison: our measurement and the peer's in the same run."""

    benchmark: str
    case: str
    ours: Sequence[Sample]
    peer: str
    peer_values: Sequence[Sample]
    kind: Kind = "seconds"

    def line(self, machine: str) -> dict[str, Any]:
        """The JSON object, with its keys in the documented order."""
        ours, theirs = summarise(self.ours), summarise(self.peer_values)
        return {
            "benchmark": self.benchmark,
            "case": self.case,
            self.kind: ours,
            "peer": self.peer,
            "peerValue": theirs,
            "ratio": find_ratio(ours["median"], theirs["median"]),
            "machine": machine,
        }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_machine(*, load: bool = True) -> str:
    """The machine and its load: every result line must show a noisy machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"python {platform.python_version()}, torch {metadata.version('torch')}"
        f"{f', load {os.getloadavg()[0]:.1f}' if load else ''}"
    )


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    quick: bool
    out: Path
    repeats: int
    deadline: float  # time.monotonic() after which no new measurement starts
    extra: argparse.Namespace

    def has_time(self) -> bool:
        return time.monotonic() < self.deadline


def parse_options(
    benchmark: str,
    description: str,
    argv: Sequence[str] | None,
    *,
    budgets: tuple[float, float],
    repeats: tuple[int, int],
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
) -> Options:
    """The common options of all benchmarks; each pair is (quick, full)."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{benchmark}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where lines and plots go (default: %(default)s)")
    parser.add_argument("--repeats", type=int, help=f"measurements of each side (default: {repeats[1]})")
    parser.add_argument("--budget", type=float, help=f"seconds; begin nothing new after it (default: {budgets[1]:.0f})")
    if add_arguments is not None:
        add_arguments(parser)
    found = parser.parse_args(argv)
    budget = found.budget if found.budget is not None else budgets[0 if found.quick else 1]
    return Options(
        quick=found.quick,
        out=found.out,
        repeats=found.repeats or repeats[0 if found.quick else 1],
        deadline=time.monotonic() + budget,
        extra=found,
    )


@dataclass
class Report:
    """Prints each line when it is known, and writes all to one file: `OUT/<benchmark>.jsonl`."""

    benchmark: str
    out: Path
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = self.out / f"{self.benchmark}.jsonl"
        self.path.unlink(missing_ok=True)

    def add(self, result: Result) -> None:
        line = result.line(describe_machine())
        self.lines.append(line)
        text = json.dumps(line)
        print(text, flush=True)
        with self.path.open("a") as stream:
            stream.write(text + "\n")

    def add_all(self, results: Iterable[Result]) -> None:
        for result in results:
            self.add(result)


def say(text: str) -> None:
    """Print progress to standard error: standard output contains only result lines."""
    print(text, file=sys.stderr, flush=True)
