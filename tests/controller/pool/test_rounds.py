"""One round: what is seen of the jobs of a pool, and what is said of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_spec
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.model.observe import Job
from elasticjob_operator.pool import rounds
from elasticjob_operator.pool.rounds import PooledJob
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.pool.values import Objective
from elasticjob_operator.times import format_time

REFUSED = api.Condition(
    type="Degraded", status="True", reason="CreateForbidden", message="exceeded quota", last_transition_time=""
)
TRAINS = api.GoodputStatus(training=True, since=format_time(NOW - 300), training_seconds=300)


def sharer(
    name: str, size: int | None = None, *, low: int = 1, most: int = 8, shared: float = 0.95, **fields: Any
) -> PooledJob:
    """A job that trains with this size and has been measured, or that is new."""
    changes = fields.pop("spec", {})
    spec = make_spec(low, most, replicas=size, scaling={"mode": "Goodput"}, **changes)
    members = [api.Member(pod=f"{name}-{i}", rank=i) for i in range(size or 0)]
    status = api.Status(
        rendezvous=api.RendezvousStatus(generation=int(bool(size)), world_size=size or 0, members=members),
        goodput=fields.pop("goodput", TRAINS if size else api.GoodputStatus()),
        capacity=fields.pop("capacity", None),
        progress=fields.pop("progress", None),
        start_time=fields.pop("start_time", None),
        conditions=fields.pop("conditions", []),
    )
    pinned = fields.pop("pinned", False)
    job = Job(
        "ns",
        name,
        name,
        spec,
        status,
        created=fields.pop("created", 0.0),
        has_replicas=size is not None,
        own_replicas=None if pinned else size,
    )
    model = fields.pop("model", None)
    if model is None:
        model = Model()
        for n in (1, size) if size else ():
            for _ in range(20):
                model = model.learn(n, shared / n + 1 - shared, NOW)
    return PooledJob(job, spec, fields.pop("devices", 1), model=model, **fields)


def sizes(*sharers: PooledJob, capacity: int = 8, objective: Objective = Objective.GOODPUT) -> list[int]:
    found = rounds.share(sharers, capacity, objective, seconds=1.0, now=NOW)
    return [found[one.job.key].size for one in sharers]


def test_a_job_alone_has_the_pool() -> None:
    assert sizes(sharer("a", 4)) == [8]


def test_a_new_job_begins_with_its_smallest_size_and_others_make_room() -> None:
    old, new = sizes(sharer("a", 8), sharer("b", low=2))
    assert new == 2
    assert old == 6


def test_a_job_without_room_waits_with_its_smallest_size() -> None:
    found = rounds.share([sharer("a", 8, low=8), sharer("b", low=4)], 8, Objective.GOODPUT, seconds=1.0, now=NOW)
    assert found["ns", "b"].size == 4
    assert "waits for 4 free devices" in found["ns", "b"].reason


def test_placed_pods_are_an_admission() -> None:
    assert sharer("a", placed=1).size == 1
    assert sharer("a", low=2, placed=1).size == 0


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(sharer("a", 4), tuple(range(1, 9)), id="any"),
        pytest.param(sharer("a", 4, pinned=True), (4,), id="pinned by its user"),
        pytest.param(sharer("a", 4, goodput=api.GoodputStatus()), (4,), id="it does not train now"),
        pytest.param(sharer("a", 5, spec={"elasticPolicy": {"replicaIncrementStep": 2}}), (1, 3, 5, 7), id="steps"),
        pytest.param(
            sharer("a", 4, spec={"elasticPolicy": {"replicaDiscreteValues": [2, 4, 16]}}), (2, 4), id="legal sizes"
        ),
        pytest.param(
            sharer("a", 6, spec={"elasticPolicy": {"mesh": [{"name": "dp"}, {"name": "tp", "size": 3}]}}),
            (3, 6),
            id="whole copies",
        ),
        pytest.param(
            sharer("a", 6, capacity=api.CapacityStatus(withdrawn=2, attempts=1)), (1, 2, 3, 4), id="no node for two"
        ),
        pytest.param(
            sharer("a", 4, model=Model(), goodput=api.GoodputStatus(training=True, since=format_time(NOW - 5))),
            (4,),
            id="not measured yet",
        ),
        pytest.param(sharer("a", 4, model=Model()), tuple(range(1, 9)), id="it never reports"),
        pytest.param(sharer("a", 6, placed=4, conditions=[REFUSED]), (1, 2, 3, 4), id="a quota refuses two"),
        pytest.param(
            sharer(
                "a", 6, placed=3, conditions=[REFUSED], spec={"elasticPolicy": {"replicaDiscreteValues": [2, 4, 6]}}
            ),
            (2, 3),
            id="a quota refuses one of a legal size",
        ),
        pytest.param(sharer("a", 6, low=5, placed=3, conditions=[REFUSED]), (3,), id="a quota below its smallest size"),
        pytest.param(sharer("a", 6, placed=0, conditions=[REFUSED]), (1,), id="a quota refuses all"),
        pytest.param(sharer("a", 6, placed=4, conditions=[REFUSED], pinned=True), (4,), id="a quota, and pinned"),
    ],
)
def test_which_sizes_a_job_may_have_now(one: PooledJob, expected: tuple[int, ...]) -> None:
    assert rounds.find_sizes(one, NOW) == expected


@pytest.mark.parametrize(
    ("low", "most", "step"), [(1, 100_000, None), (2, 100_000, 3), (1, 300, None), (99_000, 100_000, None)]
)
@pytest.mark.parametrize("place", [0.0, 0.001, 0.3, 1.0])
def test_a_job_may_be_huge_and_still_has_few_sizes(low: int, most: int, step: int | None, place: float) -> None:
    """A round costs as much as there are sizes, and whoever writes maxReplicas pays nothing for them."""
    grid = range(low, most + 1, step or 1)
    size = grid[round(place * (len(grid) - 1))]
    changes = {"elasticPolicy": {"minReplicas": low, "maxReplicas": most, "replicaIncrementStep": step}}
    found = rounds.find_sizes(sharer("a", size, low=low, most=most, spec=changes), NOW)
    assert len(found) <= 200
    assert list(found) == sorted({*found}) and {*found} <= {*grid}
    assert {grid[0], grid[-1], size} <= {*found}, "both ends, and what it has"
    beside = grid.index(size)
    assert {*grid[max(0, beside - 1) : beside + 2]} <= {*found}, "it can grow and shrink by one step"
    gaps = [(b - a) / a for a, b in itertools.pairwise(found) if b - a > (step or 1)]
    assert max(gaps, default=0.0) <= 0.1, "wherever sizes are left out, the next one is near"


def test_a_pinned_job_keeps_its_size_and_the_rest_is_shared() -> None:
    assert sizes(sharer("mine", 2, pinned=True), sharer("other", 2)) == [2, 6]


def test_pods_that_no_node_takes_are_no_reason_to_write_a_smaller_number() -> None:
    """A smaller number would be taken for room that is there again, and the pool would swing."""
    found = rounds.share(
        [sharer("a", 6, capacity=api.CapacityStatus(withdrawn=2, attempts=1))], 8, Objective.GOODPUT, seconds=1, now=NOW
    )["ns", "a"]
    assert found.size == 0
    assert "no node had room for 2 more pods" in found.reason


def test_a_job_that_a_quota_limits_does_not_grow_and_makes_room_for_others() -> None:
    refused = sharer("a", 6, placed=4, conditions=[REFUSED], shared=0.5)
    alone = rounds.share([refused], 8, Objective.GOODPUT, seconds=1.0, now=NOW)["ns", "a"]
    assert (alone.size, alone.reason) == (0, rounds.REFUSED)
    assert sizes(refused, sharer("b", low=2), capacity=4) == [2, 2]


def test_who_is_nearly_done_comes_first() -> None:
    def progress(step: int) -> api.ProgressStatus:
        return api.ProgressStatus(step=step, total_steps=100_000)

    short, long = sizes(
        sharer("short", 2, progress=progress(99_000)),
        sharer("long", 2, progress=progress(0)),
        objective=Objective.COMPLETION,
    )
    assert short > long


def test_a_job_below_its_share_is_remembered() -> None:
    found = rounds.share([sharer("a", 1), sharer("b", 7)], 8, Objective.GOODPUT, seconds=100.0, now=NOW)
    assert found["ns", "a"].behind > 10
    assert found["ns", "b"].behind == 0


def test_a_deadline_counts_from_the_start_of_the_job() -> None:
    """2,000 s of work on one pod, and 1,800 s after 200 s: two pods are enough, where devices cost money."""
    started: dict[str, Any] = {
        "start_time": format_time(NOW - 200),
        "spec": {"runPolicy": {"activeDeadlineSeconds": 2000}},
    }
    progress = api.ProgressStatus(step=8000, total_steps=10_000)
    one = sharer("a", 1, progress=progress, is_paid=True, **started)
    assert sizes(one) == [2]
    found = rounds.share([one], 8, Objective.GOODPUT, seconds=1.0, now=NOW)["ns", "a"]
    assert found.reason == "2 pods, enough for runPolicy.activeDeadlineSeconds: more would cost more"
    late = rounds.share([one], 8, Objective.GOODPUT, seconds=1.0, now=NOW + 1700)["ns", "a"]
    assert late.reason.endswith("; it will miss runPolicy.activeDeadlineSeconds")
    assert sizes(sharer("a", 1, is_paid=True, **started)) == [8], "it does not say how much is left"


def test_what_a_job_costs() -> None:
    progress = api.ProgressStatus(step=6400, total_steps=10_000)
    one = sharer("a", 1, progress=progress, is_paid=True, per_hour=3.6, spent=10.0)
    cost = rounds.share([one], 8, Objective.GOODPUT, seconds=100.0, now=NOW)["ns", "a"].cost
    assert cost is not None
    assert cost.per_hour == 3.6
    assert cost.spent == pytest.approx(10.1)
    assert cost.expected == pytest.approx(10.1 + 3.6, rel=0.01), "an hour is left"
    status = api.Status(scaling=api.ScalingStatus(cost=rounds.keep_cost(cost)))
    assert rounds.recall_spent(status) == pytest.approx(10.1)
    free = rounds.share([sharer("a", 1)], 8, Objective.GOODPUT, seconds=100.0, now=NOW)["ns", "a"]
    assert free.cost is None


def test_what_was_measured_survives_in_the_status() -> None:
    model = sharer("a", 4).model
    status = api.Status(scaling=api.ScalingStatus(speeds=list(rounds.keep(model))))
    again = rounds.recall(status)
    assert again.speed(8) == pytest.approx(model.speed(8), rel=0.01)
    assert rounds.recall(api.Status()) == Model()


def grow(noise: float | None) -> Model:
    """Of a job whose batch is 64 for each pod, and whose steps take as long at every size."""
    model = Model()
    for size in (1, 2) * 20:
        model = model.learn(size, 1.0, NOW, batch=64 * size)
    return model.hear_noise(noise)


def test_a_job_that_learns_nothing_from_a_larger_batch_leaves_the_devices_to_others() -> None:
    for noise, size in ((0.0, 1), (1e6, 7)):
        found = rounds.share(
            [sharer("grows", 2, model=grow(noise)), sharer("stays", 2, shared=0.2)], 8, Objective.GOODPUT,
            seconds=1.0, now=NOW,
        )  # fmt: skip
        assert found["ns", "grows"].size == size


def test_what_is_left_of_a_job_with_a_growing_batch_is_what_its_script_estimates() -> None:
    """Whatever it counts as a step. 450 s at two pods are 675 s at one, in time for 800 s; 510 s are not."""
    started: dict[str, Any] = {
        "start_time": format_time(NOW), "spec": {"runPolicy": {"activeDeadlineSeconds": 800}},
        "model": grow(128.0), "is_paid": True,
    }  # fmt: skip
    for seconds, size in ((450, 1), (510, 2)):
        progress = api.ProgressStatus(step=10, total_steps=10**9, estimated_remaining_seconds=seconds)
        assert sizes(sharer("a", 2, progress=progress, **started)) == [size]
    unknown = api.ProgressStatus(step=10, total_steps=10**9)
    assert sizes(sharer("a", 2, progress=unknown, **started)) == sizes(sharer("a", 2, model=grow(128.0))) > [2]


def test_what_was_measured_of_the_batch_survives_in_the_status() -> None:
    model = grow(128.0)
    scaling = api.ScalingStatus(speeds=list(rounds.keep(model)), noise_scale=rounds.keep_noise(model))
    again = rounds.recall(api.Status(scaling=scaling))
    assert again.noise == 128.0
    assert again.speed(4) / again.speed(1) == pytest.approx(model.speed(4) / model.speed(1), rel=0.01)
    assert rounds.keep_noise(sharer("a", 4).model) is None


def report_of(*reports: wire.Progress, size: int = 2) -> rounds.Report | None:
    """What is learned from these, of a world of this size."""
    world = api.RendezvousStatus(generation=3, world_size=size, formed_time=format_time(NOW - 60))
    agents = {
        str(rank): replace(make_agent(rank, "running", 3), progress=one.model_copy(update={"generation": 3}))
        for rank, one in enumerate(reports)
    }
    return rounds.find_report(api.Status(rendezvous=world, goodput=TRAINS), agents, NOW)


def test_the_furthest_rank_is_believed() -> None:
    slow, fast = wire.Progress(step=7, step_seconds=2.0), wire.Progress(step=8, step_seconds=1.0)
    assert report_of(slow, fast) == rounds.Report(2, 8, 1.0)
    assert report_of(wire.Progress(step=8)) is None


def test_a_report_of_a_batch_that_grows_is_of_the_steps_of_the_optimizer() -> None:
    said = wire.Progress(step=8, step_seconds=1.0, batch_size=128)
    new = report_of(said)
    assert new is not None
    assert new.teach(Model(), NOW) == Model(), "the time of a step with this batch is not known yet"
    timed = report_of(said.model_copy(update={"batch_seconds": 4.0, "noise_scale": 300.0}))
    assert timed is not None
    model = timed.teach(Model(), NOW)
    assert (model.points[2].seconds, model.points[2].batch, model.noise) == (4.0, 128, 300.0)


def test_the_status_keeps_the_sizes_that_were_reported_last() -> None:
    model = Model()
    for size in range(1, 41):
        model = model.learn(size, 1.0, NOW + size)
    assert [one.size for one in rounds.keep(model, most=4)] == [37, 38, 39, 40]


@pytest.mark.parametrize(
    ("one", "told"),
    [
        pytest.param(sharer("a", low=2), "starts with 2 pods", id="new"),
        pytest.param(sharer("a", 4, goodput=api.GoodputStatus()), "keeps 4 pods until it trains", id="regroups"),
        pytest.param(
            sharer("a", 1, model=Model(), goodput=api.GoodputStatus(training=True, since=format_time(NOW - 5))),
            "keeps 1 pod until its speed there is known",
            id="not measured",
        ),
        pytest.param(sharer("a", 4), "8 pods, the most that it may have", id="alone"),
    ],
)
def test_why_a_job_keeps_its_size(one: PooledJob, told: str) -> None:
    assert rounds.share([one], 8, Objective.GOODPUT, seconds=1.0, now=NOW)["ns", "a"].reason == told


class Broken(Model):
    """Raises, as a mistake of ours would with some numbers."""

    def speeds_of(self, sizes: Sequence[int]) -> list[float]:
        raise ArithmeticError("a mistake")


class Endless(Model):
    """Says nothing that could be computed with."""

    def speeds_of(self, sizes: Sequence[int]) -> list[float]:
        return [math.inf for _ in sizes]


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("model", [Broken(), Endless()], ids=["raises", "infinite"])
def test_a_job_that_cannot_be_computed_with_keeps_what_it_has_and_the_others_share_the_rest(
    model: Model, objective: Objective
) -> None:
    bad, good = sharer("bad", 3, model=model), sharer("good", 2)
    found = rounds.share([bad, good], 8, objective, seconds=1.0, now=NOW)
    alone = rounds.share([good], 5, objective, seconds=1.0, now=NOW)
    assert found[good.job.key] == alone[good.job.key]
    verdict = found[bad.job.key]
    assert (verdict.size, verdict.error is not None) == (0, True)
    assert "cannot be computed" in verdict.reason
