"""The peers, written from their papers as policies, and ours: the very modules that the operator runs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.pool.engine import Running
from elasticjob_operator.pool.allocate import allocate
from elasticjob_operator.pool.prices import next_lags
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.pool.values import Curve, Objective, Request, measure

PROBE_SECONDS = 60.0  # that a job has its smallest size, so that its speed there is known


class Fixed:
    """First come, first served, each job with the size that its user chose (`devices` 0) or the same for all."""

    interval: float | None = None
    events = True

    def __init__(self, devices: int = 0, *, backfill: bool = False) -> None:
        self.name = f"fixed-{devices or 'tuned'}" + ("-backfill" if backfill else "")
        self._devices = devices
        self._backfill = backfill

    def decide(self, jobs: Sequence[Running], capacity: int, now: float) -> Mapping[str, int]:
        sizes: dict[str, int] = {}
        left = capacity
        for job in sorted(jobs, key=lambda one: (one.devices == 0, one.arrival.at)):
            wanted = min(self._devices or job.arrival.tuned, job.arrival.most, capacity)
            if wanted <= left:
                sizes[job.arrival.name] = wanted
                left -= wanted
            elif not self._backfill:
                break
        return sizes


class LeastAttained:
    """Tiresias (NSDI 2019): sizes are fixed, and who has had least runs; in queues, so that few are preempted."""

    name = "least-attained"
    interval: float | None = 60.0
    events = True

    def decide(self, jobs: Sequence[Running], capacity: int, now: float) -> Mapping[str, int]:
        sizes: dict[str, int] = {}
        left = capacity
        for job in sorted(jobs, key=lambda one: (one.served >= 3600.0, one.served >= 36000.0, one.arrival.at)):
            wanted = min(job.arrival.tuned, capacity)
            if wanted <= left:
                sizes[job.arrival.name] = wanted
                left -= wanted
        return sizes


class Optimus:
    """Optimus (EuroSys 2018): a device at a time to the job whose remaining time it shortens most; true curves."""

    name = "optimus-like"
    interval: float | None = 600.0
    events = False

    def decide(self, jobs: Sequence[Running], capacity: int, now: float) -> Mapping[str, int]:
        ordered = sorted(jobs, key=lambda one: (one.devices == 0, one.arrival.at))[:capacity]
        sizes = {job.arrival.name: 1 for job in ordered}
        left = capacity - len(ordered)
        heap = [(-_saved(job, 1), i) for i, job in enumerate(ordered)]
        heapq.heapify(heap)
        while heap and left:
            saved, i = heapq.heappop(heap)
            job = ordered[i]
            size = sizes[job.arrival.name]
            if saved >= 0 or size >= job.arrival.most:
                continue
            sizes[job.arrival.name] = size + 1
            left -= 1
            heapq.heappush(heap, (-_saved(job, size + 1), i))
        return sizes


def _saved(job: Running, size: int) -> float:
    if size >= job.arrival.most:
        return 0.0
    return job.left / job.arrival.speed(size) - job.left / job.arrival.speed(size + 1)


class PolluxLike:
    """Pollux (OSDI 2021): once a minute, the power mean (p = -1) of speed-ups over an equal share, restarts priced in.

    Its genetic search is replaced by steps of one device that raise the fitness most. Jobs are explored as it does: at
    most twice the size that a job has had. Batch sizes stay as they are for every policy here, so that what it gains
    by changing them (its statistical efficiency) is left out of both sides. It knows the true curves.
    """

    interval: float | None = 60.0
    events = False

    def __init__(self, restart: float = 45.0, interval: float = 60.0) -> None:
        self.name = "pollux-like"
        self.interval = interval
        self._restart = restart
        self._most: dict[str, int] = {}

    def decide(self, jobs: Sequence[Running], capacity: int, now: float) -> Mapping[str, int]:
        ordered = sorted(jobs, key=lambda one: (one.devices == 0, one.arrival.at))[:capacity]
        share = max(1.0, capacity / max(1, len(jobs)))
        sizes = {job.arrival.name: 1 for job in ordered}
        left = capacity - len(ordered)
        heap = [(-self._gain(job, 1, share, now), i) for i, job in enumerate(ordered)]
        heapq.heapify(heap)
        while heap and left:
            gain, i = heapq.heappop(heap)
            job = ordered[i]
            name = job.arrival.name
            if gain >= 0:
                continue
            sizes[name] += 1
            left -= 1
            heapq.heappush(heap, (-self._gain(job, sizes[name], share, now), i))
        self._keep(ordered, sizes, share, now, capacity)
        for name, size in sizes.items():
            self._most[name] = max(self._most.get(name, 1), size)
        return sizes

    def _inverse(self, job: Running, size: int, share: float, now: float) -> float:
        """One over the speed-up of a job, which its mean adds up."""
        fair = job.arrival.speed(max(1, int(share)))
        speed = job.arrival.speed(size) / fair
        if size != job.devices and job.devices:
            age = now - job.arrival.at
            speed *= max(0.05, (age - job.changes * self._restart) / (age + self._restart)) if age else 1.0
        return 1.0 / max(speed, 1e-9)

    def _gain(self, job: Running, size: int, share: float, now: float) -> float:
        most = min(job.arrival.most, 2 * self._most.get(job.arrival.name, 1))
        if size >= most:
            return 0.0
        fair = job.arrival.speed(max(1, int(share)))
        return fair / job.arrival.speed(size) - fair / job.arrival.speed(size + 1)

    def _keep(self, jobs: Sequence[Running], sizes: dict[str, int], share: float, now: float, capacity: int) -> None:
        """Back to the old size where the change would not pay for its restart, as long as there is room."""
        left = capacity - sum(sizes.values())
        for job in sorted(jobs, key=lambda one: one.devices - sizes[one.arrival.name]):
            name = job.arrival.name
            more = job.devices - sizes[name]
            if not job.devices or not more or more > left:
                continue
            if self._inverse(job, job.devices, share, now) <= self._inverse(job, sizes[name], share, now):
                sizes[name] = job.devices
                left -= more


class Ours:
    """What the operator runs: models learned from the reports, the allocator, measured costs of a change."""

    events = True

    def __init__(
        self,
        objective: Objective = Objective.GOODPUT,
        *,
        change: float = 0.15,
        interval: float = 60.0,
        oracle: bool = False,
        total_known: bool = True,
        name: str = "",
    ) -> None:
        self.name = name or f"ours-{objective.value}"
        self.interval: float | None = interval
        self._objective = objective
        self._change = change
        self._oracle = oracle
        self._total_known = total_known
        self._models: dict[str, Model] = {}
        self._curves: dict[str, tuple[Model, Curve]] = {}
        self._lags: dict[str, float] = {}
        self._last = 0.0

    def decide(self, jobs: Sequence[Running], capacity: int, now: float) -> Mapping[str, int]:
        requests = [self._request(job, now) for job in jobs]
        lags = next_lags(requests, [one.speed for one in requests], capacity, now - self._last)
        requests = [replace(one, behind_seconds=lag) for one, lag in zip(requests, lags, strict=True)]
        self._lags |= {str(one.key): one.behind_seconds for one in requests}
        self._last = now
        grants = allocate(requests, capacity, self._objective)
        return {str(key): grant.size for key, grant in grants.items()}

    def _request(self, job: Running, now: float) -> Request:
        name = job.arrival.name
        model, curve = self._measure(job, now)
        return Request(
            name,
            curve,
            size=job.devices,
            model=None if self._oracle else model,
            order=job.arrival.at,
            remaining_seconds=job.left if self._total_known else None,
            served_seconds=job.done,
            change_seconds=self._change,
            behind_seconds=self._lags.get(name, 0.0),
        )

    def _measure(self, job: Running, now: float) -> tuple[Model, Curve]:
        name = job.arrival.name
        model = self._models.get(name, Model())
        if self._oracle:
            if name not in self._curves:
                self._curves[name] = (model, _true_curve(job))
            return self._curves[name]
        for devices, seconds in job.reports:
            model = model.learn(devices, seconds, now)
        job.reports.clear()
        known = self._curves.get(name)
        if known is None or known[0] is not model:
            self._models[name] = model
            self._curves[name] = (model, measure(model, tuple(range(1, job.arrival.most + 1)), 1))
        if not model.points and (job.first is None or now - job.first < PROBE_SECONDS):
            return model, measure(model, (1,), 1)
        return self._curves[name]


class Slow(Ours):
    """Ours with the peers' habits: it looks once a minute, whatever happens, and a change costs a restart."""

    events = False

    def __init__(self, objective: Objective) -> None:
        super().__init__(objective, change=45.0, interval=60.0)


def _true_curve(job: Running) -> Curve:
    """The upper hull of the truth: what the allocator asks for."""
    sizes = range(1, job.arrival.most + 1)
    speeds = [job.arrival.speed(n) for n in sizes]
    hull: list[int] = []
    for i in range(len(speeds)):
        while len(hull) > 1 and (speeds[hull[-1]] - speeds[hull[-2]]) * (i - hull[-1]) <= (
            speeds[i] - speeds[hull[-1]]
        ) * (hull[-1] - hull[-2]):
            hull.pop()
        hull.append(i)
    return Curve(tuple(sizes[i] for i in hull), tuple(speeds[i] for i in hull), 1)
