"""`python -m benchmarks.pool [--quick]`: many jobs on one pool, simulated and for real.

The simulator plays the same days with the operator's own decisions and with its peers, written from their papers:
fixed sizes first come first served, least attained service (Tiresias), Optimus, Pollux, and an oracle that knows every
curve and changes sizes for nothing. 64 devices, 160 jobs, one day a seed. Without --quick, a devcluster with six slots
follows, where small jobs train for real: see `benchmarks/pool/real.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.harness import Options, Report, Result, parse_options, say
from benchmarks.pool import cases, engine, plot, policies, workload
from elasticjob_operator.pool.allocate import allocate
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.pool.values import Objective, Request, measure


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", type=Path, help="a folder of *.csv to play instead of drawn days")
    parser.add_argument("--processes", type=int, default=2, help="days that are simulated at a time")
    parser.add_argument(
        "--plot", type=Path, help="write the sizes over time of a small day as SVG, and do nothing else"
    )
    parser.add_argument("--table", action="store_true", help="print the means of the simulated days as Markdown too")
    parser.add_argument("--minutes", type=float, default=10.0, help="in which the real jobs arrive")
    parser.add_argument("--load", type=float, default=1.0, help="the work of the real jobs, times so much")
    parser.add_argument("--real-only", action="store_true", help="skip the simulator")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_options(
        "pool", __doc__ or "", argv, budgets=(60.0, 7200.0), repeats=(2, 8), add_arguments=_add_arguments
    )
    if options.extra.plot:
        draw_plot(options.extra.plot)
        return
    report = Report("pool", options)
    if not options.extra.real_only:
        report.add(time_allocator())
        days = read_days(options)
        played = simulate_all(days, options)
        report.add_all(cases.compare(played))
        if options.extra.table:
            say(cases.tabulate(played))
    if not options.quick:
        from benchmarks.pool import real

        report.add_all(real.run(options))


def read_days(options: Options) -> list[list[workload.Arrival]]:
    if options.extra.traces:
        return list(workload.read_traces(options.extra.traces).values())
    return [workload.draw(seed) for seed in range(options.repeats)]


def simulate_all(days: Sequence[Sequence[workload.Arrival]], options: Options) -> cases.Days:
    """Every case on every day, a few at a time."""
    wanted = [(number, day) for number in range(len(cases.ALL)) for day in range(len(days))]
    with ProcessPoolExecutor(options.extra.processes) as pool:
        played = pool.map(_play, [(number, days[day], day) for number, day in wanted])
        found: dict[str, list[cases.Day]] = {case.name: [] for case in cases.ALL}
        for (number, day), one in zip(wanted, played, strict=True):
            case = cases.ALL[number]
            found[case.name].append(one)
            say(
                f"{case.name:42s} day {day}: mean {one.mean / 3600:6.3f} h, p99 {one.p99 / 3600:6.2f} h, makespan "
                f"{one.makespan / 3600:6.2f} h, fairness {one.fairness:5.2f}, {one.changes:5.1f} changes a job"
            )
    return found


def _play(what: tuple[int, Sequence[workload.Arrival], int]) -> cases.Day:
    number, arrivals, seed = what
    return cases.play(cases.ALL[number], arrivals, seed)


def time_allocator(jobs: int = 1000, devices: int = 10_000) -> Result:
    """CPU seconds of one decision for the largest pool that is promised, against the promise."""
    requests = []
    for i in range(jobs):
        model = Model()
        for size, seconds in ((1, 1.0), (4, 0.3 + i % 7 / 100)):
            model = model.learn(size, seconds, 0.0, 10.0)
        curve = measure(model, tuple(range(1, 65)), 1)
        requests.append(Request(i, curve, size=1 + i % 12, model=model, remaining_seconds=100.0 + i))
    found = []
    for _ in range(5):
        began = time.process_time()
        allocate(requests, devices, Objective.COMPLETION)
        found.append(time.process_time() - began)
    return Result("pool", f"one decision: {devices} devices, {jobs} jobs, CPU time", found, "the promise", [0.05])


def draw_plot(path: Path) -> None:
    """A small day: 16 devices, 14 jobs."""
    arrivals = [
        workload.Arrival(f"{i:02d}", one.application, one.at / 4, min(one.work, 12_000.0), one.tuned)
        for i, one in enumerate(workload.draw(5, 14))
    ]
    shown = (
        ("Fixed sizes, first come first served", policies.Fixed(), engine.RESTART),
        ("Pollux-like, once a minute, restarts", policies.PolluxLike(), engine.RESTART),
        ("ElasticJob, objective goodput", policies.Ours(Objective.GOODPUT), engine.OURS),
        ("ElasticJob, objective completion", policies.Ours(Objective.COMPLETION), engine.OURS),
    )
    plot.draw_sizes(
        path,
        [
            (title, engine.simulate(arrivals, policy, engine.steady(16), costs, keep_sizes=True))
            for title, policy, costs in shown
        ],
    )


if __name__ == "__main__":
    main()
