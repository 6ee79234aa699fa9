"""One round of a pool: what is seen of its jobs → a request each → the size and the reason of each. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from elasticjob_operator import api, numerals
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.model import reading
from elasticjob_operator.model.observe import Agent, Job
from elasticjob_operator.pool.allocate import allocate
from elasticjob_operator.pool.prices import next_lags
from elasticjob_operator.pool.reasons import describe
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.pool.values import Grant, Limit, Objective, Request, measure
from elasticjob_operator.sizing import legal
from elasticjob_operator.times import format_time, parse_time

SETTLE_SECONDS: Final = 5.0  # the first steps of a world are not typical
PROBE_SECONDS: Final = 60.0  # that a job without reports keeps its size, so that its speed there is known
DEFAULT_CHANGE_SECONDS: Final = 0.2
MOST_SIZES: Final = 200  # that are compared of one job
WIDEST: Final = 0.08  # of a size: how far the next one may be away, where there are more
REFUSED: Final = "keeps its size: the API server refuses more pods of it (see the condition Degraded)"
UNCOMPUTED: Final = "keeps its size: its share of the pool cannot be computed"
MAX_CHANGE_SECONDS: Final = 120.0  # an outage was longer than a change takes


@dataclass(frozen=True, slots=True)
class PooledJob:
    """One job of a pool, as it is now."""

    job: Job
    spec: api.Spec
    devices: int  # of one of its pods
    placed: int = 0  # pods of it that have a node
    model: Model = field(default_factory=Model)
    behind: float = 0.0  # seconds of its share that it lacks
    is_paid: bool = False  # whether the devices of its pool have prices
    per_hour: float = 0.0  # what the devices that its pods have cost
    spent: float = 0.0

    @property
    def size(self) -> int:
        """Pods that it has been given; 0 as long as it waits for its first room."""
        has_trained = bool(self.job.status.rendezvous.members)
        admitted = has_trained or self.placed >= self.spec.min_replicas
        size = (self.spec.replicas or self.spec.min_replicas) if admitted else 0
        return min(size, self.placed) if self.is_refused else size

    @property
    def is_refused(self) -> bool:
        """Whether the API server takes no more of its pods, for a quota mostly: it holds what they hold."""
        degraded = self.job.status.condition("Degraded")
        return degraded is not None and degraded.status == "True" and degraded.reason == reading.FORBIDDEN


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round says of one job."""

    size: int  # pods it should have; 0: as it is
    reason: str
    gain: float = 0.0
    behind: float = 0.0
    cost: api.CostStatus | None = None
    error: Exception | None = None  # for which it could not be computed with


def share(
    sharers: Sequence[PooledJob], capacity: int, objective: Objective, *, seconds: float, now: float
) -> dict[JobKey, Verdict]:
    """The sizes of all jobs of one pool. `seconds` have gone by since the last round.

    What raises for the numbers of one job, by a mistake of ours, must not end the round for the others. Such a job
    keeps what it has, and they share the rest.
    """
    asked: dict[JobKey, Request] = {}
    verdicts: dict[JobKey, Verdict] = {}
    for one in sharers:
        try:
            asked[one.job.key] = _request(one, now)
        except Exception as error:  # which the caller logs
            verdicts[one.job.key] = Verdict(0, UNCOMPUTED, behind=one.behind, error=error)
            capacity -= one.size * one.devices
    others = [one for one in sharers if one.job.key in asked]
    return verdicts | _share(others, [*asked.values()], max(0, capacity), objective, seconds)


def _share(
    sharers: Sequence[PooledJob], requests: Sequence[Request], capacity: int, objective: Objective, seconds: float
) -> dict[JobKey, Verdict]:
    speeds = [
        request.speed if one.job.status.goodput.training else 0.0
        for one, request in zip(sharers, requests, strict=True)
    ]
    lags = next_lags(requests, speeds, capacity, seconds)
    requests = [replace(request, behind_seconds=lag) for request, lag in zip(requests, lags, strict=True)]
    grants = allocate(requests, capacity, objective)
    return {
        one.job.key: replace(
            _judge(one, request, grants[one.job.key], objective), cost=_find_cost(one, request, seconds)
        )
        for one, request in zip(sharers, requests, strict=True)
    }


def _judge(one: PooledJob, request: Request, grant: Grant, objective: Objective) -> Verdict:
    if one.is_refused and grant.size in (0, request.sizes[-1]):
        return Verdict(0, REFUSED, behind=request.behind_seconds)
    reason = _why_held(one, grant) or describe(grant, request, objective)
    capacity = one.job.status.capacity
    withdrawn = capacity.withdrawn if capacity is not None else 0
    if withdrawn and grant.size == request.sizes[-1]:
        reason = f"no node had room for {withdrawn} more pods of it; they are tried again later"
        return Verdict(0, reason, behind=request.behind_seconds)
    size = grant.size if grant.limit is not Limit.ROOM else one.spec.min_replicas
    return Verdict(size, reason, grant.gain, request.behind_seconds)


def _find_cost(one: PooledJob, request: Request, seconds: float) -> api.CostStatus | None:
    """What the job has cost, and what it will have if it goes on like this."""
    if not one.is_paid:
        return None
    # Within what a status can hold, or none could be made of it.
    spent = one.spent + one.per_hour * seconds / 3600
    rest = request.remaining_seconds
    expected = spent + one.per_hour * rest / request.speed / 3600 if rest is not None and request.speed else None
    if expected is not None:
        expected = min(expected, numerals.MOST)
    return api.CostStatus(per_hour=one.per_hour, spent=min(spent, numerals.MOST), expected=expected)


def _why_held(one: PooledJob, grant: Grant) -> str:
    """Why a job may have one size only for now; "" where it may have others, or waits for room."""
    pods = f"{grant.size} pod" if grant.size == 1 else f"{grant.size} pods"
    if one.job.is_pinned or grant.limit is Limit.ROOM:
        return ""
    if not one.size:
        return f"starts with {pods}"
    if not one.job.status.goodput.training:
        return f"keeps {pods} until it trains"
    return f"keeps {pods} until its speed there is known" if not one.model.points and grant.ideal == one.size else ""


def _request(one: PooledJob, now: float) -> Request:
    status, sizes = one.job.status, find_sizes(one, now)
    curve = measure(one.model, sizes, one.devices)
    if curve.devices < 1 or not all(0 < speed < math.inf for speed in curve.speeds):
        raise ArithmeticError(f"no speed of a job can be {curve.speeds[:4]}, on {curve.devices} devices a pod")
    cost = status.goodput.last_recovery_seconds
    started, deadline = parse_time(status.start_time), one.spec.run_policy.active_deadline_seconds
    request = Request(
        one.job.key,
        curve,
        size=one.size,
        model=one.model,
        weight=float(one.spec.scaling.weight),
        order=one.job.created,
        served_seconds=status.goodput.training_seconds * curve.speeds[0],
        change_seconds=DEFAULT_CHANGE_SECONDS if cost is None else min(cost, MAX_CHANGE_SECONDS),
        behind_seconds=one.behind,
        due_seconds=started + deadline - now if deadline is not None and started is not None else None,
        is_paid=one.is_paid,
    )
    return replace(request, remaining_seconds=_find_rest(one, request))


def _find_rest(one: PooledJob, request: Request) -> float | None:
    """Seconds until the last step on one device, or rather at the rate of one; None where that is not known."""
    progress, sizes = one.job.status.progress, request.sizes
    if progress is None or not progress.total_steps or progress.step is None or not one.model.points:
        return None
    if one.model.grows:  # its script may count other steps than those of the optimizer
        left = progress.estimated_remaining_seconds
        return None if left is None else left * request.speed
    return max(0, progress.total_steps - progress.step) * sizes[0] * request.curve.devices / one.model.speed(sizes[0])


def find_sizes(one: PooledJob, now: float) -> tuple[int, ...]:
    """The sizes that the job may have now, ascending.

    One that is new begins with its smallest; one that does not train, or that is pinned, keeps its own. One of which
    the API server takes no more pods may shrink for others.
    """
    status, held = one.job.status, one.size
    most = max(1, one.placed) if one.is_refused else None
    if one.job.is_pinned and one.spec.replicas:
        return (most or one.spec.replicas,)
    sizes = legal.sizes_of(one.spec, one.spec.max_replicas).list_all() or (one.spec.min_replicas,)
    if most is not None:
        sizes = (*(size for size in sizes if size < most), most)
    elif held and status.capacity is not None and status.capacity.withdrawn:
        sizes = _at_most(sizes, held - status.capacity.withdrawn)
    if not held:
        return (sizes[0],)
    if not status.goodput.training or (not one.model.points and now - _trains_since(status, now) < PROBE_SECONDS):
        return (_at_most(sizes, held)[-1],)
    return _thin_out(sizes, held)


def _at_most(sizes: Sequence[int], most: int) -> Sequence[int]:
    return sizes[: bisect_right(sizes, most)] or sizes[:1]


def _thin_out(sizes: Sequence[int], held: int) -> tuple[int, ...]:
    """At most `MOST_SIZES`: small ones all, large ones ever wider apart, and those beside the size that the job has.

    A hundred thousand sizes cost whoever writes maxReplicas nothing, and the event loop a tenth of a second.
    """
    if len(sizes) <= MOST_SIZES:
        return tuple(sizes)
    beside = bisect_right(sizes, held) - 1
    kept = {*sizes[max(0, beside - 1) : beside + 2], sizes[-1]}
    place = 0
    while place < len(sizes):
        kept.add(sizes[place])
        place = max(place + 1, bisect_right(sizes, sizes[place] * (1 + WIDEST)) - 1)
    return tuple(sorted(kept))


def _trains_since(status: api.Status, now: float) -> float:
    return parse_time(status.goodput.since) or now


# --- reports ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """What the furthest rank of a world reported."""

    size: int  # pods
    step: int
    step_seconds: float | None  # of the optimizer, where the batch grows; None: not known yet
    batch: int = 0  # 0: it does not grow
    noise_scale: float | None = None

    def teach(self, model: Model, now: float) -> Model:
        """What the model is with it."""
        if self.step_seconds is not None:
            model = model.learn(self.size, self.step_seconds, now, batch=self.batch)
        return model.hear_noise(self.noise_scale)


def find_report(status: api.Status, agents: Mapping[str, Agent], now: float) -> Report | None:
    """The report to learn from; None if there is none, or if the world is so new that its steps are not typical."""
    world = status.rendezvous
    formed = parse_time(world.formed_time)
    if not status.goodput.training or formed is None or now - formed < SETTLE_SECONDS:
        return None
    reports = [a.progress for a in agents.values() if a.progress and a.progress.generation == world.generation]
    found = [(r.step, r.step_seconds, r) for r in reports if r.step is not None and r.step_seconds]
    if not found:
        return None
    step, seconds, furthest = max(found, key=lambda one: one[:2])
    if furthest.batch_size:
        return Report(world.world_size, step, furthest.batch_seconds, furthest.batch_size, furthest.noise_scale)
    return Report(world.world_size, step, seconds)


# --- models across restarts of the operator ---------------------------------------------------------------


def recall(status: api.Status) -> Model:
    """The model of what the status has kept."""
    model, scaling = Model(), status.scaling or api.ScalingStatus()
    for one in scaling.speeds:
        model = model.learn(one.size, one.step_seconds, parse_time(one.time) or 0.0, one.reports, one.batch_size or 0)
    return model.hear_noise(scaling.noise_scale)


def recall_spent(status: api.Status) -> float:
    """What the job had cost when its status was written."""
    return status.scaling.cost.spent if status.scaling is not None and status.scaling.cost is not None else 0.0


def keep(model: Model, most: int = 16) -> tuple[api.SizeSpeed, ...]:
    """What the status keeps: the sizes that were reported last, so that it stays small."""
    latest = sorted(model.points.items(), key=lambda pair: -pair[1].at)[:most]
    return tuple(
        api.SizeSpeed(
            size=size,
            step_seconds=_short(point.seconds),
            batch_size=point.batch or None,
            reports=round(point.weight, 1),
            time=format_time(point.at),
        )
        for size, point in sorted(latest)
    )


def keep_noise(model: Model) -> float | None:
    """What the status keeps."""
    return None if model.noise is None or not model.grows else _short(model.noise)


def keep_cost(cost: api.CostStatus) -> api.CostStatus:
    """What the status keeps."""
    expected = None if cost.expected is None else _short(cost.expected)
    return api.CostStatus(per_hour=_short(cost.per_hour), spent=_short(cost.spent), expected=expected)


def _short(value: float) -> float:
    """Four digits: more would be noise that changes all the time. At most what a status can hold."""
    value = min(value, numerals.MOST)
    return round(value, max(0, 3 - math.floor(math.log10(value)))) if value > 0 else 0.0
