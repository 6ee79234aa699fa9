"""The written forms of a size: `status.scaling`, and the number for `spec.replicas`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_operator import api
from elasticjob_operator.model.observe import Job
from elasticjob_operator.sizing.values import PoolDecision, Size


def find_replicas(job: Job, spec: api.Spec, size: Size) -> int | None:
    """The number to write; None if it is there already, or if somebody else has written one."""
    return find_change(job, size.wanted if spec.is_pooled else spec.wanted)


def find_change(job: Job, wanted: int) -> int | None:
    if job.has_replicas and job.own_replicas is None:
        return None
    return None if job.own_replicas == wanted else wanted


def build_status(
    job: Job, spec: api.Spec, size: Size, pool: PoolDecision | None, *, reported: bool
) -> api.ScalingStatus | None:
    """The status of a job that shares a pool, or that a size source limits; None for all others.

    `reported`: the progress is written too. Speeds and costs change all the time, and must not cause writes of their
    own.
    """
    before = job.status.scaling or api.ScalingStatus()
    if not spec.is_pooled:
        if not size.limited_by:
            return None
        return api.ScalingStatus(size=size.world, wanted=size.wanted, limited_by=size.limited_by, reason=size.reason)
    decision = pool or PoolDecision(
        pool=before.pool or "", speeds=tuple(before.speeds), cost=before.cost, noise_scale=before.noise_scale
    )
    is_pinned = job.is_pinned
    moved = not is_pinned and pool is not None and before.size not in (0, size.world)
    reason = _PINNED.format(spec.replicas, job.name) if is_pinned else size.reason or decision.reason
    return api.ScalingStatus(
        size=size.world,
        wanted=size.wanted,
        limited_by=size.limited_by or None,
        reason=reason or before.reason,
        pool=decision.pool or None,
        pinned=is_pinned or None,
        previous_size=before.size if moved else before.previous_size,
        expected_gain_percent=round(100 * decision.expected_gain) if moved else before.expected_gain_percent,
        speeds=list(decision.speeds) if reported or _sizes(decision.speeds) != _sizes(before.speeds) else before.speeds,
        noise_scale=decision.noise_scale if reported or before.noise_scale is None else before.noise_scale,
        cost=decision.cost if reported or _rate(decision.cost) != _rate(before.cost) else before.cost,
    )


_PINNED = "spec.replicas is {0} by hand: kubectl elasticjob scale {1} auto gives the job back to the pool"


def _rate(cost: api.CostStatus | None) -> float | None:
    return None if cost is None else cost.per_hour


def _sizes(speeds: Iterable[api.SizeSpeed]) -> set[int]:
    return {one.size for one in speeds}
