"""The hub: connect N agents, form a world of all of them, lose a member and form the next, restart the hub.

Agents are real sockets in a separate process, including TLS. The limit for comparison is the same event loop writing
the same bytes to the same number of bare connections: the difference is the hub's cost. CPU seconds are those of the
hub's process; on a busy machine they are more meaningful than wall time.

`--churn SECONDS` measures something else instead: 10,000 agents, 1,000 of them in one world and the others in worlds of
ten, of which 2 % are lost each second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Kind, Options, Report, Result, parse_options, say

PEER = "bare asyncio connections, the same bytes"
CASE_SECONDS = 240.0
LIMIT_BYTES = 60 * 1024


@dataclass(frozen=True)
class Size:
    agents: int
    tls: bool

    @property
    def name(self) -> str:
        return f"{self.agents} agents, {'TLS' if self.tls else 'plain'}"


QUICK = (Size(100, True), Size(1000, True))
FULL = (
    Size(100, True),
    Size(1000, False),
    Size(1000, True),
    Size(5000, False),
    Size(5000, True),
    Size(10_000, True),
)
CHURN_QUICK = (200, 100)  # agents, and members of each world
CHURN_FULL = (10_000, 1000)


def measure(size: Size, *more: str, seconds: float = CASE_SECONDS) -> dict[str, Any] | None:
    """One run in a fresh process; None if it did not finish in time."""
    command = [sys.executable, "-m", "benchmarks.scripts.hub_case", "--agents", str(size.agents), *more]
    command += ["--tls"] if size.tls else []
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        say(f"{size.name}: not finished after {seconds:.0f} s")
        return None
    if done.returncode:
        say(f"{size.name}: {done.stderr.strip().splitlines()[-1:]}")
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def results(size: Size, ours: Sequence[dict[str, Any]], peers: Sequence[dict[str, Any]]) -> list[Result]:
    def of(key: str, runs: Sequence[dict[str, Any]]) -> list[float | None]:
        return [run.get(key) for run in runs]

    def line(case: str, key: str, peer: str | None) -> Result:
        named = PEER if peer else "none"
        return Result("hub", f"{size.name}: {case}", of(key, ours), named, of(peer, peers) if peer else [])

    return [
        line("connect, to the last welcome", "connect", "connect"),
        line("connect, CPU", "connectCpu", "connectCpu"),
        line("connect, CPU of the agents' side", "swarmCpu", None),
        line("form a world, to the last agent", "form", "form"),
        line("form a world, CPU", "formCpu", "formCpu"),
        line("lose a member and form the next world, to the last agent", "change", None),
        line("lose a member and form the next world, CPU", "changeCpu", None),
        line("heartbeats, CPU per second", "idleCpu", None),
        line("the hub restarts, until all agents are back", "back", None),
        line("the hub restarts, CPU", "backCpu", None),
        Result("hub", f"{size.name}: the hub restarts, attempts", of("backAttempts", ours), "none", [], "steps"),
        Result(
            "hub", f"{size.name}: the hub restarts, most attempts a second", of("backPeak", ours), "none", [], "rate"
        ),
        Result(
            "hub", f"{size.name}: memory of an agent", of("agentBytes", ours), PEER, of("agentBytes", peers), "bytes"
        ),
        Result("hub", f"{size.name}: memory of an agent after two worlds", of("toldBytes", ours), "none", [], "bytes"),
        Result("hub", f"{size.name}: a world on the wire", of("frameBytes", ours), "none", [], "bytes"),
    ]


def draw(path: Path, found: dict[Size, tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> None:
    """Latency to the last agent and memory per agent, over the number of agents."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, memory) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for tls, colour in ((False, "#3182bd"), (True, "#01665e")):
        sizes = sorted((size for size in found if size.tls is tls), key=lambda size: size.agents)
        if not sizes:
            continue
        count = [size.agents for size in sizes]
        label = "TLS" if tls else "plain"

        def best(key: str, side: int, sizes: Sequence[Size] = sizes) -> list[float]:
            return [min((run[key] for run in found[size][side]), default=float("nan")) for size in sizes]

        times.plot(count, best("form", 0), "o-", color=colour, label=f"form a world, {label}")
        times.plot(count, best("change", 0), "s--", color=colour, label=f"lose a member, {label}")
        times.plot(count, best("form", 1), "x:", color=colour, label=f"bare connections, {label}")
        memory.plot(count, [b / 1024 for b in best("agentBytes", 0)], "o-", color=colour, label=label)
    for axes, title in ((times, "seconds to the last agent"), (memory, "KiB of memory per agent")):
        axes.set_xscale("log")
        axes.set_xlabel("agents")
        axes.set_title(title)
        axes.legend(fontsize=7)
    times.set_yscale("log")
    memory.axhline(LIMIT_BYTES / 1024, color="#a50026", linewidth=0.8)
    memory.set_ylim(bottom=0)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def run(options: Options) -> None:
    if options.extra.churn is not None:
        run_churn(options)
        return
    report = Report("hub", options)
    found: dict[Size, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    chosen = tuple(Size(agents, tls=True) for agents in options.extra.agents or ())
    for size in chosen or (QUICK if options.quick else FULL):
        ours: list[dict[str, Any]] = []
        peers: list[dict[str, Any]] = []
        for turn in range(options.repeats):
            if not options.has_time():
                break
            say(f"{size.name}, {turn + 1} of {options.repeats}")
            for runs, raw in ((ours, False), (peers, True)):
                one = measure(size, "--idle", "1" if options.quick else "10", *(["--raw"] if raw else []))
                if one is not None:
                    runs.append(one)
        if ours:
            found[size] = (ours, peers)
            report.add_all(results(size, ours, peers))
    if found:
        draw(options.out / "hub.png", found)
    report.finish()


def run_churn(options: Options) -> None:
    report = Report("hub-churn", options)
    agents, members = CHURN_QUICK if options.quick else CHURN_FULL
    agents = options.extra.agents[0] if options.extra.agents else agents
    seconds, rate = options.extra.churn, options.extra.rate
    more = ("--churn", str(seconds), "--members", str(members), "--rate", str(rate))
    found = measure(Size(agents, True), *more, seconds=CASE_SECONDS + seconds)
    if found is None:
        raise SystemExit("the churn was not measured")
    report.add_all(
        churn_results(f"{agents} agents, a world of {members} and worlds of ten, {rate:.0%} lost a second", found)
    )
    report.finish()


def churn_results(name: str, found: dict[str, Any]) -> list[Result]:
    def line(case: str, value: float, kind: Kind = "seconds") -> Result:
        return Result("hub-churn", f"{name}: {case}", [value], "none", [], kind)

    return [
        line("a regroup, median", found["median"]),
        line("a regroup, 99 %", found["p99"]),
        line("a regroup, longest", found["max"]),
        line("regroups", found["regroups"], "steps"),
        line("a regroup of ten, median", found["smallMedian"]),
        line("a regroup of ten, 99 %", found["smallP99"]),
        line("regroups of ten", found["smallRegroups"], "steps"),
        line("members lost", found["killed"], "steps"),
        line("agents lost by silence", found["silent"], "steps"),
        line("CPU of the hub per second", found["hubCpu"]),
        line("CPU of the agents' side per second", found["swarmCpu"]),
        line("memory of the hub's process", found["mib"] * 2**20, "bytes"),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--churn", type=float, nargs="?", const=300.0, help="seconds of steady losses (default: 300)")
    parser.add_argument("--rate", type=float, default=0.02, help="share of the agents lost a second (default: 0.02)")
    parser.add_argument("--agents", type=int, nargs="*", help="only these numbers of agents, with TLS")


def main(argv: Sequence[str] | None = None) -> None:
    budgets, repeats = (40.0, 900.0), (1, 3)
    run(parse_options("hub", __doc__ or "", argv, budgets=budgets, repeats=repeats, add_arguments=add_arguments))


if __name__ == "__main__":
    main()
