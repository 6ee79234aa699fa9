"""What is simulated: one policy and one price of a change a case, and the lines that come of all of them."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness import Result
from benchmarks.pool import engine, policies, workload
from benchmarks.pool.engine import Costs, Policy
from elasticjob_operator.pool.values import Objective

DEVICES: Final = 64


@dataclass(frozen=True)
class Case:
    """A policy, made anew for each day, and what a change of size costs it."""

    name: str
    make: Callable[[], Policy]
    costs: Costs


def _fix(devices: int, *, backfill: bool) -> Case:
    make = functools.partial(policies.Fixed, devices, backfill=backfill)
    return Case(make().name, make, engine.RESTART)


def _know(objective: Objective) -> Case:
    make = functools.partial(policies.Ours, objective, change=0.0, oracle=True)
    return Case(f"oracle {objective}", make, engine.FREE)


FIXED: Final = (_fix(0, backfill=False), *(_fix(size, backfill=True) for size in (0, 1, 2, 4, 8)))
PEERS: Final = (
    Case("least-attained", policies.LeastAttained, engine.RESTART),
    Case("optimus-like", policies.Optimus, engine.RESTART),
    Case("pollux-like", policies.PolluxLike, engine.RESTART),
)
OURS: Final = (
    Case("ours completion", lambda: policies.Ours(Objective.COMPLETION), engine.OURS),
    Case("ours goodput", lambda: policies.Ours(Objective.GOODPUT), engine.OURS),
    Case("ours equal", lambda: policies.Ours(Objective.EQUAL), engine.OURS),
    Case("ours completion, total unknown", lambda: policies.Ours(Objective.COMPLETION, total_known=False), engine.OURS),
)
SPLIT: Final = (  # how much of the gain is the price of a change, and how much the policy
    Case("pollux-like, our cost", lambda: policies.PolluxLike(0.15), engine.OURS),
    Case("ours completion, restarts", lambda: policies.Ours(Objective.COMPLETION, change=45.0), engine.RESTART),
    Case("ours completion, restarts, once a minute", lambda: policies.Slow(Objective.COMPLETION), engine.RESTART),
)
ORACLE: Final = (_know(Objective.COMPLETION), _know(Objective.GOODPUT))
ALL: Final = (*FIXED, *PEERS, *OURS, *SPLIT, *ORACLE)


@dataclass(frozen=True)
class Day:
    """What is kept of one simulated day; seconds."""

    mean: float
    p99: float
    makespan: float
    fairness: float  # the worst of nine in ten
    changes: float
    wasted: float  # share of the devices while jobs were there


def play(case: Case, arrivals: Sequence[workload.Arrival], seed: int, devices: int = DEVICES) -> Day:
    """One case on one day."""
    found = engine.simulate(arrivals, case.make(), engine.steady(devices), case.costs, seed=seed)
    fairness = found.fairness
    return Day(
        found.mean,
        found.p99,
        found.makespan,
        fairness[int(0.9 * len(fairness))],
        found.changes,
        found.wasted / (devices * found.makespan),
    )


Days = Mapping[str, Sequence[Day]]  # by the name of the case


def compare(days: Days, prefix: str = "") -> Iterator[Result]:
    """The ratios that the goals are about, and those that split the gain."""

    def against(what: str, ours: str, peer: str, read: Callable[[Day], float]) -> Result:
        return Result(
            "pool", f"{prefix}{what}: {ours}", [read(d) for d in days[ours]], peer, [read(d) for d in days[peer]]
        )

    fixed = _best(days, FIXED)
    oracle = _best(days, ORACLE)
    for ours in ("ours completion", "ours goodput"):
        for peer in (fixed, "least-attained", "optimus-like", "pollux-like", "ours equal", oracle):
            yield against("mean completion", ours, peer, _read_mean)
        yield against("makespan", ours, _best(days, (*FIXED, *PEERS), _read_makespan), _read_makespan)
        yield against("p99 completion", ours, _best(days, (*FIXED, *PEERS), _read_p99), _read_p99)
        yield against("finish-time fairness, worst of nine in ten", ours, "pollux-like", lambda day: day.fairness)
        yield against("wasted share", ours, "pollux-like", lambda day: day.wasted)
    yield against("mean completion", "ours completion, total unknown", "pollux-like", _read_mean)
    yield against("gain of the cost", "pollux-like, our cost", "pollux-like", _read_mean)
    yield against("gain of the policy", "ours completion", "pollux-like, our cost", _read_mean)
    for slow in ("ours completion, restarts", "ours completion, restarts, once a minute"):
        yield against("our policy at the peer's cost", slow, "pollux-like", _read_mean)


def tabulate(days: Days) -> str:
    """The means of all days as a Markdown table; hours, and fairness without a unit."""
    lines = [
        "| policy | mean completion | p99 | makespan | finish-time fairness (worst of nine in ten) |",
        "|---|---|---|---|---|",
    ]
    for name, played in days.items():
        hours = [
            statistics.mean(read(day) for day in played) / 3600 for read in (_read_mean, _read_p99, _read_makespan)
        ]
        fairness = statistics.mean(day.fairness for day in played)
        lines.append(f"| {name} | {hours[0]:.3f} | {hours[1]:.2f} | {hours[2]:.2f} | {fairness:.2f} |")
    return "\n".join(lines)


def _read_mean(day: Day) -> float:
    return day.mean


def _read_p99(day: Day) -> float:
    return day.p99


def _read_makespan(day: Day) -> float:
    return day.makespan


def _best(days: Days, cases: Sequence[Case], read: Callable[[Day], float] = _read_mean) -> str:
    return min((case.name for case in cases), key=lambda name: statistics.mean(read(day) for day in days[name]))
