"""The criteria for runs with hostile tenants, as a pure function of the recording."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.auditlog import find_foreign_deletions
from chaos.hostile import Hostile
from replicas_fixture import Audited, find_writes_without_lease

PAUSE_FACTOR, PAUSE_SPARE = 3.0, 3.0  # a pause may be so many times as long as in the quiet run, and seconds
MEMORY_FACTOR, MEMORY_SPARE = 1.2, 30.0  # MiB; from the first to the last third of one process
FILES_SPARE = 40
BUSY_SECONDS = 0.05  # that the event loop may compute at a stretch; CPU time, on a machine at its full speed
LAG_FACTOR, LAG_SPARE = 3.0, 1.0  # of the event loop: as with pauses; whoever does harm shares two cores with it
PROVOKED_SECONDS = 30.0  # a Lease that is lost so long after the suite touched it was lost for that
SERVER_SECONDS = 3.0  # for one write: a leader that waits so long twice has lost its Lease, whatever it does
LOST = "lost the Lease"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u202a-\u202e]")
LOUD = re.compile(r"^\S+ (WARNING|ERROR|CRITICAL)\b")


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one operator process."""

    t: float
    replica: str
    code: int
    asked: bool
    said: str = ""  # the last that it said


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time."""

    t: float
    replica: str
    pid: int
    rss: float  # MiB
    files: int
    leads: bool


@dataclass
class Record:
    """The recording of one run."""

    lease: tuple[str, str] = ("", "")  # its namespace and its name
    requests: Sequence[Audited] = ()
    touched: list[float] = field(default_factory=list)  # when the suite did something to the Lease or its holder
    delays: Sequence[tuple[float, float]] = ()  # of the API server for the suite's own writes: (when, seconds)
    exits: list[Exit] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    siege: tuple[float, float] = (0.0, 0.0)  # the time in which no Lease was touched: one process leads
    steps: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by job: when some rank made a step
    quiet: list[tuple[float, float]] = field(default_factory=list)  # rounds without harm
    hostile: list[tuple[float, float]] = field(default_factory=list)
    lag: dict[str, float] = field(
        default_factory=dict
    )  # "quiet", "hostile": the longest; "machine": of a process that only sleeps
    busy: dict[str, float] = field(default_factory=dict)  # "quiet", "hostile": the longest stretch of computing
    stretches: list[str] = field(default_factory=list)  # the longest ones, also at the start, with their places
    made: list[Hostile] = field(default_factory=list)  # what the API server took
    unnamed: list[Hostile] = field(default_factory=list)
    refused: int = 0
    logs: Mapping[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)  # what the good jobs did not reach


def judge(record: Record) -> dict[str, list[str]]:
    """The violations by rule, with every rule present."""
    return {
        "exits": [
            f"{e.replica} ended with {e.code}: {e.said[-600:]}"
            for e in record.exits
            if not is_fair(e, find_disturbances(record))
        ],
        "writesWithoutLease": [str(r) for r in find_writes_without_lease(record.requests, *record.lease)],
        "foreign": find_foreign_deletions(record.requests),
        "pauses": find_long_pauses(record),
        "unfinished": list(record.unfinished),
        "growth": find_growth(record.samples, record.siege, find_disturbances(record)),
        "lag": find_lag(record.lag),
        "busy": find_busy(record.busy),
        "unnamed": [f"{h.case} {h.path} was named nowhere" for h in record.unnamed],
        "logs": [line for name, text in record.logs.items() for line in find_bad_lines(name, text)],
    }


def find_disturbances(record: Record) -> list[float]:
    """The times after which a Lease may be lost: the suite touched it, or the API server was slow for everybody."""
    return [*record.touched, *(t - seconds for t, seconds in record.delays if seconds > SERVER_SECONDS)]


def is_fair(end: Exit, touched: Sequence[float]) -> bool:
    """Whether the suite ended the process or took its Lease, or nobody could have kept it."""
    provoked = any(0 <= end.t - t <= PROVOKED_SECONDS for t in touched)
    return end.asked or (end.code == 1 and LOST in end.said and provoked)


def compute_pauses(steps: Sequence[float], rounds: Sequence[tuple[float, float]]) -> list[float]:
    """The longest time without a step in each round, including an unfinished one."""
    pauses = []
    for begin, end in rounds:
        inside = [t for t in steps if begin <= t <= end]
        marks = [begin, *inside, end] if inside else [begin, end]
        pauses.append(max(b - a for a, b in itertools.pairwise(marks)))
    return pauses


def nine_of_ten(values: Sequence[float]) -> float:
    """The bound that nine of ten values do not exceed; with few values, the maximum."""
    return sorted(values)[max(0, -(-len(values) * 9 // 10) - 1)] if values else 0.0


def find_long_pauses(record: Record) -> list[str]:
    """Pauses that the quiet run does not explain, nor the waiting of anybody who writes to the API server."""
    wrong, spare = [], PAUSE_SPARE + max((seconds for _, seconds in record.delays), default=0.0)
    for job, steps in record.steps.items():
        quiet, hostile = compute_pauses(steps, record.quiet), nine_of_ten(compute_pauses(steps, record.hostile))
        limit = max(quiet, default=0.0) * PAUSE_FACTOR + spare
        if hostile > limit:
            wrong.append(f"{job} paused for {hostile:.2f} s; in the quiet run for {max(quiet, default=0.0):.2f} s")
    return wrong


def find_growth(samples: Sequence[Sample], siege: tuple[float, float], disturbed: Sequence[float] = ()) -> list[str]:
    """The growth of memory and files of the process that led throughout, from the first to the last third."""
    led = [s for s in samples if s.leads and siege[0] <= s.t <= siege[1]]
    if len(led) < 6:
        return []
    if len({s.pid for s in led}) > 1 and any(siege[0] <= t <= siege[1] for t in disturbed):
        longest = max({s.pid for s in led}, key=lambda pid: sum(s.pid == pid for s in led))
        led = [s for s in led if s.pid == longest]
    elif len({s.pid for s in led}) > 1:
        return [f"the leader changed {len({s.pid for s in led}) - 1} times although nobody touched the Lease"]
    third = len(led) // 3
    first, last = led[:third], led[-third:]
    memory = statistics.median(s.rss for s in first), statistics.median(s.rss for s in last)
    files = statistics.median(s.files for s in first), statistics.median(s.files for s in last)
    wrong = []
    if memory[1] > memory[0] * MEMORY_FACTOR + MEMORY_SPARE:
        wrong.append(f"memory grew from {memory[0]:.0f} to {memory[1]:.0f} MiB")
    if files[1] > files[0] + FILES_SPARE:
        wrong.append(f"open files grew from {files[0]:.0f} to {files[1]:.0f}")
    return wrong


def find_lag(lag: Mapping[str, float]) -> list[str]:
    limit = lag.get("quiet", 0.0) * LAG_FACTOR + LAG_SPARE + lag.get("machine", 0.0)
    longest = lag.get("hostile", 0.0)
    return [f"the event loop stood still for {longest:.3f} s, more than {limit:.3f} s"] if longest > limit else []


def find_busy(busy: Mapping[str, float]) -> list[str]:
    longest, limit = busy.get("hostile", 0.0), BUSY_SECONDS * busy.get("slowdown", 1.0)
    wrong = f"the event loop computed for up to {longest:.3f} s at a stretch, more than {limit:.3f} s"
    return [wrong] if longest > limit else []


def find_bad_lines(name: str, text: str) -> list[str]:
    """Internal errors, tracebacks, and control characters."""
    wrong = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if "this is a bug" in line or line.startswith("Traceback"):
            around = [one[:300] for one in lines[max(0, number - 1) : number + 40]]
            wrong.append("\n".join([f"{name}: {line[:300]}", *around]))
        elif CONTROL.search(line):
            wrong.append(f"{name}: a line with control characters: {line[:300]!r}")
    return wrong


def is_named(made: Hostile, logs: str, conditions: Sequence[Mapping[str, str]]) -> bool:
    """Whether a warning contains its name, or a condition of the job reports a problem."""
    bad = ("Degraded", "Failed", "Invalid")
    if any(c.get("type") in bad and c.get("status") == "True" for c in conditions):
        return True
    return any(made.name[:60] in line and LOUD.match(line) for line in logs.split("\n"))
