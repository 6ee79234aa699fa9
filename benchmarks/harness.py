"""The common part of all benchmarks: the result line, the options, and the output.

A result is one JSON object on one line: `{"benchmark", "case", "seconds" (or another unit): {"min", "median", "max"},
"repeats", "peer", "peerValue": {...}, "ratio", "machine", "load", "date", "command"}`. `ratio` is always ours divided
by the peer's, of the medians: above 1 is better for a rate, below 1 for everything else. A value is null if the event
did not happen within its time limit: a system that never recovers has no median. If either median is null, there is no
ratio.

With `--keep`, the result is also kept in `benchmarks/results`, from which the tables of the documentation are rendered.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

Kind = Literal["seconds", "rate", "bytes", "steps", "count"]
Sample = float | None

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_OUT = ROOT / ".work" / "bench"
KEPT = ROOT / "benchmarks" / "results"
PLOTS = ROOT / "docs" / "img"


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

    def line(self, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object, with its keys in the documented order. `conditions` says where, when and how it was made."""
        ours, theirs = summarise(self.ours), summarise(self.peer_values)
        return {
            "benchmark": self.benchmark,
            "case": self.case,
            self.kind: ours,
            "repeats": len(self.ours),
            "peer": self.peer,
            "peerValue": theirs,
            "ratio": find_ratio(ours["median"], theirs["median"]),
            **conditions,
        }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"python {platform.python_version()}, torch {metadata.version('torch')}"
    )


def find_today() -> str:
    return datetime.now(UTC).date().isoformat()


def describe_command(module: str, argv: Sequence[str]) -> str:
    """The command of a measurement, without the options that say where its results go."""
    kept, words = [], iter(argv)
    for word in words:
        if word == "--out":
            next(words, None)
        elif word != "--keep" and not word.startswith("--out="):
            kept.append(word)
    return shlex.join(["python", "-m", f"benchmarks.{module}", *kept])


def describe_conditions(command: str) -> dict[str, Any]:
    """Where, when and how a result is made: every result line must show a noisy machine."""
    load = round(os.getloadavg()[0], 1)
    return {"machine": describe_machine(), "load": load, "date": find_today(), "command": command}


def keep(out: Path, result: str, plots: str) -> None:
    """Keep a result and those of its plots that the documentation shows, and render the documentation's tables."""
    KEPT.mkdir(exist_ok=True)
    shutil.copy(out / result, KEPT / result)
    for plot in out.glob(plots):
        if (PLOTS / plot.name).exists():
            shutil.copy(plot, PLOTS / plot.name)
    subprocess.run([sys.executable, str(ROOT / "scripts" / "generate.py")], check=True)


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    quick: bool
    out: Path
    repeats: int
    deadline: float  # time.monotonic() after which no new measurement starts
    command: str
    keep: bool
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
        allow_abbrev=False,
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where lines and plots go (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the result for the tables of docs/performance.md")
    parser.add_argument("--repeats", type=int, help=f"measurements of each side (default: {repeats[1]})")
    parser.add_argument("--budget", type=float, help=f"seconds; begin nothing new after it (default: {budgets[1]:.0f})")
    if add_arguments is not None:
        add_arguments(parser)
    words = sys.argv[1:] if argv is None else argv
    found = parser.parse_args(words)
    budget = found.budget if found.budget is not None else budgets[0 if found.quick else 1]
    return Options(
        quick=found.quick,
        out=found.out,
        repeats=found.repeats or repeats[0 if found.quick else 1],
        deadline=time.monotonic() + budget,
        command=describe_command(benchmark, words),
        keep=found.keep,
        extra=found,
    )


@dataclass
class Report:
    """Prints each line when it is known, and writes all to one file: `OUT/<name>.jsonl`."""

    name: str
    options: Options
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.options.out.mkdir(parents=True, exist_ok=True)
        self.path = self.options.out / f"{self.name}.jsonl"
        self.path.unlink(missing_ok=True)

    def add(self, result: Result) -> None:
        line = result.line(describe_conditions(self.options.command))
        self.lines.append(line)
        text = json.dumps(line)
        print(text, flush=True)
        with self.path.open("a") as stream:
            stream.write(text + "\n")

    def add_all(self, results: Iterable[Result]) -> None:
        for result in results:
            self.add(result)

    def finish(self) -> None:
        """Everything was measured: keep it, if that is wanted. An unfinished run replaces nothing."""
        if self.options.keep:
            keep(self.options.out, self.path.name, f"{self.name}*.png")


def say(text: str) -> None:
    """Print progress to standard error: standard output contains only result lines."""
    print(text, file=sys.stderr, flush=True)
