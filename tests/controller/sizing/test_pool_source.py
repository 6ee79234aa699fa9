"""The pool as a source of the size: what it says, what a user says instead, and what the status shows of it."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import make_job, make_spec
from elasticjob_operator import api
from elasticjob_operator.model.observe import Job
from elasticjob_operator.sizing import compose, written
from elasticjob_operator.sizing.values import PoolDecision, Size, View

SAYS = PoolDecision(4, "4 pods: other jobs gain more from the devices of the pool", "gpu", expected_gain=0.5)


def pooled(replicas: int | None = None, written: int | None = None, **status: Any) -> Job:
    """A job of a pool with this number in its spec, and the one that the pool has written the last time."""
    spec = make_spec(2, 8, replicas=replicas, scaling={"mode": "Goodput"})
    own = replicas if replicas == written else None
    return make_job(spec, api.Status(**status), has_replicas=replicas is not None, own_replicas=own)


def compose_of(job: Job, says: PoolDecision | None, members: int = 0) -> Size:
    assert job.spec is not None
    return compose.compose(View(job.spec, members=members, pool=says, is_pinned=job.is_pinned))


@pytest.mark.parametrize(
    ("job", "says", "members", "expected"),
    [
        pytest.param(pooled(), SAYS, 0, (4, "pool", SAYS.reason), id="it decides"),
        pytest.param(pooled(6, 6), SAYS, 6, (4, "pool", SAYS.reason), id="it decides anew"),
        pytest.param(pooled(6, 6), None, 6, (6, "pool", "the pool has not decided yet"), id="as it was, until it does"),
        pytest.param(pooled(), None, 0, (2, "pool", "the pool has not decided yet"), id="a new job begins small"),
        pytest.param(pooled(), None, 5, (5, "pool", "the pool has not decided yet"), id="a released one stays"),
        pytest.param(pooled(3, 6), SAYS, 6, (3, "", ""), id="a number by hand holds"),
        pytest.param(pooled(3), SAYS, 0, (3, "", ""), id="one in the manifest too"),
        pytest.param(pooled(), PoolDecision(20, "x"), 0, (8, "", ""), id="never above maxReplicas"),
        pytest.param(pooled(), PoolDecision(1, "x"), 0, (2, "elasticPolicy", ""), id="never below minReplicas"),
        pytest.param(pooled(), PoolDecision(0, "no pool"), 0, (2, "pool", "no pool"), id="no pool for it"),
    ],
)
def test_the_size(job: Job, says: PoolDecision | None, members: int, expected: tuple[int, str, str]) -> None:
    size = compose_of(job, says, members)
    assert size.world == expected[0]
    if expected[2]:
        assert (size.limited_by, size.reason) == expected[1:]


@pytest.mark.parametrize(
    ("job", "says", "expected"),
    [
        pytest.param(pooled(), SAYS, 4, id="it is filled in"),
        pytest.param(pooled(6, 6), SAYS, 4, id="it is changed"),
        pytest.param(pooled(4, 4), SAYS, None, id="it is there"),
        pytest.param(pooled(6, 4), SAYS, None, id="a user's stays"),
        pytest.param(pooled(6, 6), None, None, id="nothing was decided"),
        pytest.param(make_job(make_spec(2, 8), has_replicas=False), None, 8, id="a job of no pool: its default"),
        pytest.param(make_job(make_spec(2, 8, replicas=3)), SAYS, None, id="a job of no pool: its own"),
    ],
)
def test_what_is_written(job: Job, says: PoolDecision | None, expected: int | None) -> None:
    assert job.spec is not None
    assert written.find_replicas(job, job.spec, compose_of(job, says)) == expected


def status_of(job: Job, says: PoolDecision | None, *, reported: bool = False) -> api.ScalingStatus | None:
    assert job.spec is not None
    return written.build_status(job, job.spec, compose_of(job, says), says, reported=reported)


def test_a_change_is_told_with_what_it_is_to_bring() -> None:
    before = api.ScalingStatus(size=2, wanted=2, pool="gpu")
    found = status_of(pooled(2, 2, scaling=before), SAYS)
    assert found is not None
    assert (found.size, found.previous_size, found.expected_gain_percent, found.pool) == (4, 2, 50, "gpu")
    assert found.reason == SAYS.reason
    again = status_of(pooled(4, 4, scaling=found), SAYS)
    assert again == found, "an undisturbed job causes no writes"


def test_a_number_by_hand_is_told_with_the_way_back() -> None:
    found = status_of(pooled(3, 6), SAYS)
    assert found is not None
    assert found.pinned
    assert "kubectl elasticjob scale digits auto" in (found.reason or "")


def test_speeds_are_written_with_the_progress_only() -> None:
    def says(seconds: float) -> PoolDecision:
        return PoolDecision(4, "x", "gpu", speeds=(api.SizeSpeed(size=4, step_seconds=seconds),))

    first = status_of(pooled(4, 4), says(1.0))
    assert first is not None
    job = pooled(4, 4, scaling=first)
    assert status_of(job, says(1.1)) == first
    later = status_of(job, says(1.1), reported=True)
    assert later is not None
    assert later.speeds[0].step_seconds == 1.1


def test_the_noise_scale_is_written_with_the_progress_only_and_stays() -> None:
    def says(noise: float) -> PoolDecision:
        return PoolDecision(4, "x", "gpu", noise_scale=noise)

    first = status_of(pooled(4, 4), says(100.0))
    assert first is not None
    assert first.noise_scale == 100.0
    job = pooled(4, 4, scaling=first)
    assert status_of(job, says(101.0)) == first
    later, undecided = status_of(job, says(101.0), reported=True), status_of(job, None, reported=True)
    assert later is not None
    assert undecided is not None
    assert (later.noise_scale, undecided.noise_scale) == (101.0, 100.0)


def test_costs_are_written_with_the_progress_only_and_stay() -> None:
    def says(spent: float) -> PoolDecision:
        return PoolDecision(4, "x", "gpu", cost=api.CostStatus(per_hour=3.6, spent=spent))

    first = status_of(pooled(4, 4), says(1.0))
    assert first is not None
    assert first.cost == api.CostStatus(per_hour=3.6, spent=1.0)
    job = pooled(4, 4, scaling=first)
    assert status_of(job, says(1.1)) == first
    undecided = status_of(job, None, reported=True)
    assert undecided is not None
    assert undecided.cost == first.cost, "a new leader has not decided yet"
    dearer = PoolDecision(4, "x", "gpu", cost=api.CostStatus(per_hour=7.2, spent=1.1))
    for later in (status_of(job, says(1.1), reported=True), status_of(job, dearer)):
        assert later is not None
        assert later.cost is not None
        assert later.cost.spent == 1.1, "with the progress, or when it costs more or less from now on"


def test_a_job_of_no_pool_has_nothing_to_show_unless_it_is_limited() -> None:
    assert status_of(make_job(make_spec(2, 8, replicas=3)), None) is None
    spec = make_spec(2, 8, elasticPolicy={"replicaIncrementStep": 4})
    found = status_of(make_job(spec), None)
    assert found is not None
    assert (found.size, found.wanted, found.limited_by) == (6, 8, "legalSizes")
