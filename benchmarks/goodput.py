"""Goodput: a job of three workers, one of which is killed at random at intervals. Lost work does not count.

The script saves a checkpoint every ten steps and continues from the last one. The share is rank 0's count at the end,
divided by that of an undisturbed job: the median pace of its own steps. Under every launcher, a lost pod is replaced a
second later, and so is an agent that gave up. All launchers run concurrently, so that they share the same conditions;
each mostly sleeps between its steps.
"""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import harness, launchers, plots, timeline

WORKERS = 3
REPLACE_SECONDS = 1.0
SETTLE_SECONDS = 5.0  # of training before the clock starts


@dataclass(frozen=True)
class Series:
    """One run: the share of work that was kept, and the count over time for the plot."""

    launcher: str
    share: float
    points: Sequence[tuple[float, int]]
    kills: Sequence[float]


def plan_kills(rng: random.Random, seconds: float, every: float, shift: float = 0.0) -> list[tuple[float, int]]:
    """(time, index of a live worker): one kill at a random time in each interval, moved by `shift` of an interval."""
    return [
        (begin * every + (rng.uniform(0, every) + shift * every) % every, rng.randrange(WORKERS))
        for begin in range(int(seconds // every))
    ]


def find_pace(steps: Sequence[timeline.Step]) -> float:
    """Seconds per undisturbed step: the median is not affected by gaps."""
    times = sorted(step.t for step in steps if step.rank == 0)
    return median([later - earlier for earlier, later in pairwise(times)] or [0.0])


def find_points(steps: Sequence[timeline.Step], begin: float, every: float = 0.5) -> list[tuple[float, int]]:
    """The count over time, thinned out. A restart may move it back to the checkpoint."""
    points: list[tuple[float, int]] = []
    for step in sorted(steps, key=lambda step: step.t):
        if not points or step.t - begin - points[-1][0] >= every or step.count < points[-1][1]:
            points.append((step.t - begin, step.count))
    return points


class Job:
    """Three workers that are replaced when they are lost."""

    def __init__(self, launcher: launchers.Launcher, directory: Path) -> None:
        arguments = ["--checkpoint", str(directory / "checkpoint"), "--step-seconds", "0.05"]
        self.launcher = launcher
        self.job = launchers.Job(directory, WORKERS, arguments=arguments)
        self.tail = timeline.Tail(self.job.steps)
        self.due: dict[int, float] = {}

    def start(self) -> None:
        self.launcher.open(self.job, wanted=WORKERS)
        for node in range(WORKERS):
            self.launcher.start_agent(node)

    def tend(self) -> None:
        """Replace lost workers, like a controller."""
        now = time.monotonic()
        for node in range(WORKERS):
            if self.launcher.is_node_alive(node):
                self.due.pop(node, None)
            elif self.due.setdefault(node, now + REPLACE_SECONDS) <= now:
                del self.due[node]
                self.launcher.start_agent(node)

    def kill(self, choice: int) -> bool:
        live = [node for node in range(WORKERS) if self.launcher.is_node_alive(node)]
        if live:
            self.launcher.kill(live[choice % len(live)], signal.SIGKILL)
        return bool(live)


def run(
    launcher: launchers.Launcher, directory: Path, seconds: float, every: float, seed: int, shift: float = 0.0
) -> Series:
    job = Job(launcher, directory)
    try:
        job.start()
        until = time.monotonic() + 120
        while timeline.find_world(job.tail.steps, WORKERS, 0.0) is None:
            if time.monotonic() > until:
                return Series(launcher.name, 0.0, [], [])
            job.tail.read()
            time.sleep(0.05)
        time.sleep(SETTLE_SECONDS)
        job.tail.read()
        before = max(step.count for step in job.tail.steps)
        begin, kills = time.time(), []
        for after, choice in plan_kills(random.Random(seed), seconds, every, shift):
            while time.time() < begin + after:
                job.tend()
                time.sleep(0.05)
            if job.kill(choice):
                kills.append(after)
        while time.time() < begin + seconds:
            job.tend()
            time.sleep(0.05)
        end = begin + seconds
        job.tail.read()
        steps = [step for step in job.tail.steps if begin <= step.t <= end]
        last = max(steps, key=lambda step: step.t).count if steps else before
        return Series(launcher.name, (last - before) * find_pace(steps) / seconds, find_points(steps, begin), kills)
    finally:
        launcher.close()


def run_side_by_side(
    makers: Mapping[str, Callable[[], launchers.Launcher]], seconds: float, every: float, seed: int
) -> dict[str, Series]:
    """The same kills for each launcher, but not at the same time: their restarts would affect each other."""

    found: dict[str, Series] = {}

    def measure(name: str, make: Callable[[], launchers.Launcher], shift: float) -> None:
        with tempfile.TemporaryDirectory(prefix="elasticjob-bench-") as directory:
            series = run(make(), Path(directory), seconds, every, seed, shift)
        harness.say(f"one kill in {every:.0f} s | {series.launcher}: {series.share:.1%} kept")
        found[name] = series

    # Daemon threads, so that an interrupted benchmark does not wait for them.
    threads = [
        threading.Thread(target=measure, args=(name, make, number / len(makers)), daemon=True)
        for number, (name, make) in enumerate(makers.items())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: found[name] for name in makers}


def main(
    options: harness.Options,
    peers: Mapping[str, Callable[[], launchers.Launcher]],
    ours: Mapping[str, Callable[[], launchers.Launcher]],
) -> None:
    seed = options.extra.seed if options.extra.seed is not None else random.SystemRandom().randrange(10**6)
    harness.say(f"seed {seed}: repeat with --seed {seed}")
    seconds = options.extra.minutes * 60
    report = harness.Report("goodput", options.out)
    for every in options.extra.kill_every:
        found = run_side_by_side({**ours, **peers}, seconds, every, seed)
        for mine in ours:
            for peer in peers:
                case = f"one kill in {every:.0f} s, {seconds / 60:.0f} min, seed {seed} [{found[mine].launcher}]"
                values = [found[mine].share], [found[peer].share]
                report.add(harness.Result("goodput", case, values[0], found[peer].launcher, values[1], "rate"))
        plots.draw_goodput(options.out / f"goodput-{every:.0f}s.png", list(found.values()), every)
