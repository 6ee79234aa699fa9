"""The simulated pool: jobs arrive, a policy gives them devices, changes cost time, jobs complete.

Between two events every job progresses at the speed of its size, except while it changes. A policy is asked at every
arrival and end, at every change of the capacity, and as often as it wants; what it is told is what a real one knows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.pool.workload import Arrival


@dataclass(eq=False)
class Running:
    """One job in the system."""

    arrival: Arrival
    devices: int = 0
    done: float = 0.0  # seconds on one device
    served: float = 0.0  # device-seconds held
    changing_until: float = 0.0
    changes: int = 0
    first: float | None = None  # when it first had a device
    ended: float | None = None
    reports: list[tuple[int, float]] = field(default_factory=list)  # (devices, seconds of a step), since the last look

    @property
    def left(self) -> float:
        return max(0.0, self.arrival.work - self.done)

    def speed(self, now: float) -> float:
        return self.arrival.speed(self.devices) if self.devices and now >= self.changing_until else 0.0


class Policy(Protocol):
    """Who gets how many devices."""

    name: str
    interval: float | None  # seconds between looks; None: only when something happens
    events: bool  # whether arrivals and ends are looked at at once

    def decide(self, jobs: Sequence[Running], capacity: int, now: float) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Costs:
    """Seconds that a change of size stands still, drawn evenly."""

    low: float
    high: float


OURS = Costs(0.1, 0.2)
RESTART = Costs(30.0, 60.0)
FREE = Costs(0.0, 0.0)


@dataclass
class Result:
    """What became of one day."""

    policy: str
    jobs: list[Running]
    sizes: list[tuple[float, dict[str, int]]]
    asked: int
    wasted: float  # device-seconds that nobody held while jobs were there
    capacity: int

    @property
    def completions(self) -> list[float]:
        return sorted((job.ended or math.inf) - job.arrival.at for job in self.jobs)

    @property
    def mean(self) -> float:
        return sum(self.completions) / len(self.jobs)

    @property
    def p99(self) -> float:
        return self.completions[min(len(self.jobs) - 1, math.ceil(0.99 * len(self.jobs)) - 1)]

    @property
    def makespan(self) -> float:
        return max(job.ended or math.inf for job in self.jobs) - min(job.arrival.at for job in self.jobs)

    @property
    def fairness(self) -> list[float]:
        """Finish-time fairness (Themis, NSDI 2020): the time in this pool over that alone on an equal share of it."""
        completions = sum(self.completions)
        contention = max(1.0, completions / self.makespan)
        share = max(1, round(self.capacity / contention))
        return sorted(
            ((job.ended or math.inf) - job.arrival.at) * job.arrival.speed(share) / job.arrival.work
            for job in self.jobs
        )

    @property
    def changes(self) -> float:
        """Of each job, in the mean."""
        return sum(job.changes for job in self.jobs) / len(self.jobs)


Capacity = Callable[[float], tuple[int, float]]  # of the time: devices, and when that changes


def steady(devices: int) -> Capacity:
    return lambda now: (devices, math.inf)


def simulate(
    arrivals: Sequence[Arrival],
    policy: Policy,
    capacity: Capacity,
    costs: Costs,
    *,
    seed: int = 0,
    noise: float = 0.1,
    report_every: float = 20.0,
    keep_sizes: bool = False,
) -> Result:
    """One day. Every `report_every` seconds each job that trains reports its step time, off by `noise`."""
    day = _Day(arrivals, policy, capacity, costs, random.Random(seed), noise, report_every, keep_sizes)
    while day.waiting or day.active:
        day.pass_event()
    return day.result


class _Day:
    def __init__(
        self,
        arrivals: Sequence[Arrival],
        policy: Policy,
        capacity: Capacity,
        costs: Costs,
        chance: random.Random,
        noise: float,
        report_every: float,
        keep_sizes: bool,
    ) -> None:
        self.waiting = sorted(arrivals, key=lambda one: one.at, reverse=True)
        self.active: list[Running] = []
        self.now = self.waiting[-1].at if self.waiting else 0.0
        self.result = Result(policy.name, [], [], 0, 0.0, capacity(self.now)[0])
        self._policy, self._capacity, self._costs, self._chance = policy, capacity, costs, chance
        self._noise, self._report_every, self._keep_sizes = noise, report_every, keep_sizes
        self._next_look = self._next_report = self.now

    def pass_event(self) -> None:
        """What happens now, and then the time until something happens next."""
        devices, capacity_until = self._capacity(self.now)
        changed = self._come_and_go()
        is_due = self._next_look <= self.now
        if is_due or (changed and self._policy.events) or sum(job.devices for job in self.active) > devices:
            if is_due:
                self._next_look = self.now + (self._policy.interval or math.inf)
            self._decide(devices)
        if self._next_report <= self.now:
            self._next_report = self.now + self._report_every
            self._report()
        self._progress(max(min(self._next_event(), capacity_until), self.now + 1e-6) - self.now, devices)

    def _come_and_go(self) -> bool:
        before = len(self.waiting), len(self.active)
        while self.waiting and self.waiting[-1].at <= self.now:
            self.active.append(Running(self.waiting.pop()))
        for job in [job for job in self.active if job.left <= 1e-3]:
            job.ended = self.now
            self.active.remove(job)
            self.result.jobs.append(job)
        return before != (len(self.waiting), len(self.active))

    def _decide(self, devices: int) -> None:
        self.result.asked += 1
        sizes = self._policy.decide(self.active, devices, self.now)
        if sum(sizes.values()) > devices:
            raise AssertionError(f"{self._policy.name} gave away {sum(sizes.values())} of {devices} devices")
        for job in self.active:
            self._resize(job, sizes.get(job.arrival.name, 0))
        if self._keep_sizes:
            self.result.sizes.append((self.now, {job.arrival.name: job.devices for job in self.active}))

    def _resize(self, job: Running, wanted: int) -> None:
        if wanted == job.devices:
            return
        if job.first is None:
            job.first = self.now
        else:
            job.changes += 1
            job.changing_until = self.now + self._chance.uniform(self._costs.low, self._costs.high)
        job.devices = wanted

    def _report(self) -> None:
        for job in self.active:
            if job.speed(self.now) > 0:
                off = max(0.1, self._chance.gauss(1.0, self._noise))
                job.reports.append((job.devices, off / job.arrival.speed(job.devices)))

    def _next_event(self) -> float:
        times = [self._next_look, self._next_report, *([self.waiting[-1].at] if self.waiting else [])]
        for job in self.active:
            if job.changing_until > self.now:
                times.append(job.changing_until)
            elif job.devices:
                times.append(self.now + job.left / job.arrival.speed(job.devices))
        return min(times)

    def _progress(self, seconds: float, devices: int) -> None:
        for job in self.active:
            job.done += job.speed(self.now) * seconds
            job.served += job.devices * seconds
        if self.active:
            self.result.wasted += max(0, devices - sum(job.devices for job in self.active)) * seconds
        self.now += seconds
