"""Who gets how many pods: stories with a pencil."""

from __future__ import annotations

from typing import Any

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


def test_a_job_without_its_share_gets_its_share_and_then_no_more_than_others() -> None:
    """Both gain as much from every device. If all went to the one that had less, they would change places for ever."""
    pair = [make_request("a", 1.0, size=13), make_request("b", 1.0, size=3, behind_seconds=7200.0)]
    assert sizes(pair, 16) == [8, 8]


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


def due(key: str, seconds: float, rest: float = 3600.0, **changes: Any) -> Request:
    """A job with an hour of work on one device, to be done after so many seconds."""
    return make_request(key, remaining_seconds=rest, due_seconds=seconds, **changes)


def test_a_deadline_is_kept_with_the_smallest_size_that_does() -> None:
    """2 pods take 1,890 s of 2,200 s. The others keep what they have, as the devices are worth more to them."""
    others = [make_request(f"j{i}", 0.99, weight=50.0, size=5, order=float(i)) for i in range(3)]
    assert sizes([due("late", 2200.0, size=1), *others], 16)[0] == 2
    assert sizes([due("none", 36_000.0, size=1), *others], 16)[0] == 1


def test_what_a_deadline_needs_is_bought_whatever_it_costs() -> None:
    heavy = make_request("heavy", 0.99, weight=100.0, size=7, change_seconds=1000.0, order=1.0)
    assert sizes([due("a", 1500.0, size=1), heavy], 8) == [3, 5]


def test_the_next_deadline_comes_first() -> None:
    jobs = [due("later", 1500.0, order=0.0), due("sooner", 1000.0, order=1.0)]
    assert sizes(jobs, 5) == [1, 4]


def test_a_job_that_is_paid_for_has_no_more_than_its_deadline_needs() -> None:
    assert sizes([due("a", 2200.0, size=1, is_paid=True)], 16) == [2]
    assert sizes([due("a", 2200.0, size=8, is_paid=True)], 16) == [2], "it gives back what it does not need"
    assert sizes([due("a", 2200.0, size=1)], 16) == [16], "devices that cost nothing need not lie idle"
    assert sizes([make_request("a", is_paid=True)], 16) == [16], "without a deadline it is as fast as it can be"
    assert sizes([due("a", 2200.0, size=1, is_paid=True), make_request("b", size=1)], 16) == [2, 14]


@pytest.mark.parametrize("now", range(1, 17))
def test_a_size_that_keeps_the_deadline_barely_is_left_alone(now: int) -> None:
    """5 pods need 0.87 of the time, 4 need 1.04 and 6 need 0.75 of it."""
    expected = now if now == 5 else 5
    assert sizes([due("a", 1000.0, size=now, is_paid=True)], 16) == [expected]


@pytest.mark.parametrize(
    ("seconds", "expected", "is_late"),
    [
        pytest.param(500.0, 13, False, id="at its fastest, nearly"),
        pytest.param(340.0, 16, True, id="not even then, if the model is right"),
        pytest.param(100.0, 0, True, id="lost: as if there were none"),
        pytest.param(-5.0, 0, True, id="over"),
    ],
)
def test_a_deadline_that_cannot_be_kept_takes_nothing_from_others(
    seconds: float, expected: int, *, is_late: bool
) -> None:
    others = [make_request(f"j{i}", 0.99, weight=5.0, size=14, order=float(i)) for i in (1, 2)]
    found = allocate([due("a", seconds, size=2), *others], 30)["a"]
    without = allocate([make_request("a", size=2, remaining_seconds=3600.0), *others], 30)["a"]
    assert (found.size, found.is_late) == (expected or without.size, is_late)


def test_a_job_ends_before_its_deadline_for_less() -> None:
    """A day's work in ten hours, looked at every five minutes: in time, with less than what all the devices cost."""
    held = {}
    for is_paid in (True, False):
        rest, size, now, held[is_paid], changes = 24 * 3600.0, 1, 0.0, 0.0, 0
        while rest > 0:
            job = due("a", 36_000.0 - now, rest, size=size, is_paid=is_paid, shared=0.97)
            before, size = size, sizes([job], 16)[0]
            rest -= 300.0 * job.curve.speeds[size - 1]
            held[is_paid] += 300.0 * size
            now += 300.0
            changes += size != before
        assert now <= 36_000.0
        assert changes <= 4
    assert held[True] < 0.8 * held[False]
