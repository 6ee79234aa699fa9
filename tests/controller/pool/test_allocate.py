"""Who gets how many pods: stories with a pencil."""

from __future__ import annotations

import pytest

from controller.pool_jobs import make_request
from elasticjob_operator.pool.allocate import allocate
from elasticjob_operator.pool.reasons import describe
from elasticjob_operator.pool.values import Limit, Objective, Request


def sizes(
    requests: list[Request], capacity: int, objective: Objective = Objective.GOODPUT, **options: float
) -> list[int]:
    found = allocate(requests, capacity, objective, **options)
    return [found[request.key].size for request in requests]


def test_one_job_has_the_pool() -> None:
    assert sizes([make_request("a")], 10) == [10]
    assert sizes([make_request("a", most=4)], 10) == [4]


@pytest.mark.parametrize("objective", list(Objective))
def test_equal_jobs_share_equally(objective: Objective) -> None:
    alike = [make_request(name, remaining_seconds=100.0) for name in "abcd"]
    assert sum(sizes(alike, 16, objective)) == 16
    if objective is not Objective.COMPLETION:  # that one lets somebody finish first
        assert sizes(alike, 16, objective) == [4, 4, 4, 4]


def test_a_job_that_scales_gets_more_than_one_that_does_not() -> None:
    good, bad = sizes([make_request("good", 0.99), make_request("bad", 0.5)], 16)
    assert good > 2 * bad
    assert good + bad == 16


def test_equal_asks_for_nothing_but_weights() -> None:
    pair = [make_request("good", 0.99, weight=3.0), make_request("bad", 0.5)]
    assert sizes(pair, 16, Objective.EQUAL) == [12, 4]


def test_weight_counts() -> None:
    heavy, light = sizes([make_request("a", weight=4.0), make_request("b")], 16)
    assert heavy > light


def test_who_is_nearly_done_goes_first() -> None:
    short, long = sizes(
        [make_request("short", remaining_seconds=60.0), make_request("long", remaining_seconds=36_000.0)],
        16,
        Objective.COMPLETION,
    )
    assert short > long >= 1


def test_without_a_known_end_who_has_had_least_goes_first() -> None:
    young, old = sizes(
        [make_request("young", served_seconds=60.0), make_request("old", served_seconds=36_000.0)],
        16,
        Objective.COMPLETION,
    )
    assert young > old


def test_legal_sizes_only() -> None:
    pair = [make_request("a", sizes=(2, 4, 8)), make_request("b", sizes=(2, 4, 8))]
    assert sizes(pair, 13) == [8, 4] or sizes(pair, 13) == [4, 8]


def test_pods_with_eight_devices() -> None:
    whole, single = sizes([make_request("whole", devices=8, most=4), make_request("single", most=8)], 20)
    assert whole * 8 + single <= 20
    assert whole >= 1


def test_a_new_job_gets_room_from_those_that_have_most() -> None:
    full = [make_request("a", size=8, order=0.0), make_request("b", size=8, order=1.0)]
    one, two, new = sizes([*full, make_request("c", order=2.0)], 16)
    assert one + two + new == 16
    assert new >= 4


def test_jobs_beyond_the_room_wait_in_their_order() -> None:
    many = [make_request(f"j{i}", low=4, order=float(i)) for i in range(4)]
    found = allocate(many, 12)
    assert [found[one.key].size for one in many] == [4, 4, 4, 0]
    assert found["j3"].limit is Limit.ROOM
    assert describe(found["j3"], many[3]) == "waits for 4 free devices, which its smallest size needs"


def test_nobody_overtakes_a_big_job_for_ever() -> None:
    big, small = make_request("big", low=8, order=0.0), make_request("small", order=1.0)
    assert sizes([make_request("runs", low=4, size=4, order=-1.0), big, small], 8) == [8, 0, 0]


def test_a_running_job_is_never_below_its_smallest_size_even_where_the_room_is_gone() -> None:
    pair = [make_request("a", low=4, size=8), make_request("b", low=4, size=8)]
    assert sizes(pair, 6) == [4, 4]


def test_lost_room_is_given_up_whatever_it_costs() -> None:
    pair = [make_request("a", size=8, change_seconds=1e6), make_request("b", size=8, change_seconds=1e6)]
    assert sum(sizes(pair, 12)) == 12


@pytest.mark.parametrize(
    ("change_seconds", "moves"),
    [pytest.param(0.2, True, id="ours"), pytest.param(200.0, False, id="a restart that takes as long as it helps")],
)
def test_a_change_has_to_pay_for_itself(change_seconds: float, moves: bool) -> None:
    pair = [
        make_request("good", 0.99, size=7, change_seconds=change_seconds),
        make_request("bad", 0.5, size=9, change_seconds=change_seconds),
    ]
    assert (sizes(pair, 16) != [7, 9]) is moves
    if not moves:
        found = allocate(pair, 16)["good"]
        assert found.limit is Limit.CHANGE
        assert describe(found, pair[0]).startswith("stays at 7 pods: going to ")


def test_a_job_that_ends_in_a_moment_is_not_changed_for_it() -> None:
    ending = make_request("ending", size=4, remaining_seconds=0.4, change_seconds=2.0)
    assert sizes([ending], 16) == [4]


def test_a_job_without_its_share_for_long_gets_more() -> None:
    pair = [make_request("a", 0.99), make_request("b", 0.9)]
    late = [pair[0], make_request("b", 0.9, behind_seconds=4 * 7200.0)]
    assert sizes(late, 16)[1] > sizes(pair, 16)[1]


def test_the_order_of_the_requests_says_nothing() -> None:
    some = [make_request(f"j{i}", 0.8 + i / 50, order=float(i % 3), size=i % 4) for i in range(8)]
    assert allocate(some, 30) == allocate(some[::-1], 30)


@pytest.mark.parametrize(
    ("request_", "capacity", "told"),
    [
        pytest.param(make_request("a", most=4), 8, "4 pods, the most that it may have", id="max"),
        pytest.param(make_request("a", most=1), 8, "1 pod, the most that it may have", id="one"),
        pytest.param(make_request("a", 0.0, most=4), 8, "1 pod: more would not make it faster", id="flat"),
        pytest.param(make_request("a"), 8, "8 pods: other jobs gain more from the devices of the pool", id="others"),
    ],
)
def test_every_size_has_a_reason(request_: Request, capacity: int, told: str) -> None:
    assert describe(allocate([request_], capacity)["a"], request_) == told
