"""What holds for every pool: sizes inside their bounds, no oscillation, no starvation, whatever the models say."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from controller.pool_jobs import learn_request, make_request
from elasticjob_operator.pool.allocate import allocate
from elasticjob_operator.pool.prices import next_lags
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.pool.values import Objective, Request
from examples import tries

nonsense = st.floats(allow_nan=True, allow_infinity=True)
legal = st.one_of(
    st.builds(lambda low, more: tuple(range(low, low + more + 1)), st.integers(1, 6), st.integers(0, 12)),
    st.sets(st.integers(1, 32), min_size=1, max_size=6).map(lambda found: tuple(sorted(found))),
)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Of honest jobs, of liars and of those that talk nonsense."""
    model = Model()
    for _ in range(draw(st.integers(0, 5))):
        batch = draw(st.just(0) | st.integers(-1, 2**33))
        size, seconds, now, weight = draw(st.tuples(st.integers(1, 40), nonsense, st.floats(0, 1e5), st.floats(-1, 50)))
        model = model.learn(size, seconds, now, weight, batch)
    return model.hear_noise(draw(st.none() | nonsense))


@st.composite
def pools(draw: st.DrawFn) -> list[Request]:
    return [
        learn_request(
            f"job-{i}",
            draw(models()),
            draw(legal),
            draw(st.sampled_from([1, 1, 2, 8])),
            size=draw(st.integers(0, 40)),
            weight=draw(st.floats(0.01, 100)),
            order=float(draw(st.integers(0, 3))),
            remaining_seconds=draw(st.none() | st.floats(0, 1e9)),
            served_seconds=draw(st.floats(0, 1e9)),
            change_seconds=draw(st.floats(0, 1e4)),
            behind_seconds=draw(st.floats(0, 1e6)),
            due_seconds=draw(st.none() | st.floats(-1e3, 1e9)),
            is_paid=draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 8)))
    ]


def devices_of(requests: list[Request], found: dict[object, int]) -> int:
    return sum(found[one.key] * one.curve.devices for one in requests)


@tries(few=100, many=400)
@given(pools(), st.integers(0, 200), st.sampled_from(Objective))
def test_no_size_is_outside_its_bounds_and_no_device_is_given_twice(
    requests: list[Request], capacity: int, objective: Objective
) -> None:
    found = {key: grant.size for key, grant in allocate(requests, capacity, objective).items()}
    for one in requests:
        assert found[one.key] in ((0, *one.sizes) if one.size == 0 else one.sizes)
    mins = sum(one.sizes[0] * one.curve.devices for one in requests if one.size)
    assert devices_of(requests, found) <= max(capacity, mins)


@tries(few=60, many=200)
@given(pools(), st.integers(0, 200), st.sampled_from(Objective))
def test_what_is_decided_stays(requests: list[Request], capacity: int, objective: Objective) -> None:
    """The same pool again, with the sizes that were given: it comes to rest, and does not swing."""
    seen = []
    for _ in range(6):
        found = allocate(requests, capacity, objective)
        requests = [replace(one, size=found[one.key].size) for one in requests]
        seen.append([one.size for one in requests])
    assert seen[-1] == seen[-2]


# The last one gives up a pod for the one before it, which wants one only.
four = [
    learn_request("a", Model(), (1,)),
    learn_request("b", Model(), (1, 2)),
    learn_request("c", Model(), (1, 2), behind_seconds=74_453.0),
    learn_request("d", Model(), (1, 2, 3, 4), size=4),
]


@tries(few=60, many=200)
@given(pools(), st.integers(0, 20), st.sampled_from([Objective.GOODPUT, Objective.COMPLETION]))
@example(four, 0, Objective.GOODPUT)
def test_nobody_shrinks_for_devices_that_nobody_takes(requests: list[Request], free: int, objective: Objective) -> None:
    """Where there is room for all sizes as they are."""
    legal_sizes = [max(size for size in one.sizes if size <= max(one.size, one.sizes[0])) for one in requests]
    requests = [replace(one, size=size) for one, size in zip(requests, legal_sizes, strict=True)]
    capacity = devices_of(requests, {one.key: one.size for one in requests}) + free
    found = {key: grant.size for key, grant in allocate(requests, capacity, objective).items()}
    left = capacity - devices_of(requests, found)
    for one in requests:
        more = [size for size in one.sizes if found[one.key] < size <= one.size]
        if more and not one.is_paid:  # that one has no more than its deadline needs
            assert (more[0] - found[one.key]) * one.curve.devices > left


@tries(few=40, many=100)
@given(
    st.lists(st.tuples(st.floats(0.2, 0.99), st.floats(0.1, 10)), min_size=2, max_size=6),
    st.lists(st.integers(2, 24), min_size=10, max_size=10),
    st.sampled_from([Objective.GOODPUT, Objective.COMPLETION]),
)
def test_capacity_that_flaps_starves_nobody(
    jobs: list[tuple[float, float]], capacities: list[int], objective: Objective
) -> None:
    """Once admitted, a job always has its smallest size; what waits is the first to be admitted when there is room."""
    requests = [make_request(f"j{i}", shared, weight=weight, order=float(i)) for i, (shared, weight) in enumerate(jobs)]
    for capacity in capacities:
        found = allocate(requests, capacity, objective)
        for one in requests:
            assert found[one.key].size >= (1 if one.size else 0)
        requests = [replace(one, size=found[one.key].size) for one in requests]
        waiting = [one.order for one in requests if not one.size]
        assert not waiting or min(waiting) > max((one.order for one in requests if one.size), default=-1.0)


@tries(few=30, many=60)
@given(st.lists(st.floats(0.5, 0.999), min_size=1, max_size=5), st.sampled_from(list(Objective)))
def test_no_job_lacks_its_share_for_ever(shares: list[float], objective: Objective) -> None:
    """A job that hardly scales, among jobs that do: the longer it lacks its share, the more its devices count."""
    requests = [make_request("poor", 0.3), *(make_request(f"j{i}", share) for i, share in enumerate(shares))]
    capacity, lag = 4 * len(requests), 0.0
    for _ in range(48):
        requests[0] = replace(requests[0], behind_seconds=lag)
        found = allocate(requests, capacity, objective)
        requests = [replace(one, size=found[one.key].size) for one in requests]
        lag = next_lags(requests, [one.speed for one in requests], capacity, 3600.0)[0]
    assert lag < 24 * 3600.0  # of two days


def test_noise_moves_a_job_at_most_once_an_hour() -> None:
    """Ten jobs that never change, and reports that are off by a tenth."""
    chance = random.Random(1)
    shares = (0.99, 0.8, 0.9, 0.97, 0.7, 0.95, 0.9, 0.99, 0.6, 0.85)
    truth = [make_request(f"j{i}", share, order=float(i)) for i, share in enumerate(shares)]
    found = [Model()] * len(truth)
    sizes, changes = [1] * len(truth), [0] * len(truth)
    for tick in range(140):  # of half a minute; the first ten minutes are for finding out
        now = 30.0 * tick
        for i, one in enumerate(truth):
            for _ in range(3):
                seconds = chance.gauss(1, 0.1) / one.curve.speeds[sizes[i] - 1]
                found[i] = found[i].learn(sizes[i], seconds, now)
        requests = [
            learn_request(str(i), model, tuple(range(1, 17)), size=sizes[i], order=float(i))
            for i, model in enumerate(found)
        ]
        grants = allocate(requests, 64)
        after = [grants[str(i)].size for i in range(len(truth))]
        if tick >= 20:
            changes = [count + (a != b) for count, a, b in zip(changes, sizes, after, strict=True)]
        sizes = after
    assert sum(changes) <= len(changes), changes
    assert sizes[0] > sizes[8], "who scales well has more"
