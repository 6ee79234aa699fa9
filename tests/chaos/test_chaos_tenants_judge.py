"""The judge of the tenants suite: for each rule, a recording that violates it and one that does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import hostile, lag, stretches
from chaos.auditlog import find_foreign_deletions
from chaos.tenants_judge import (
    Exit,
    Record,
    Sample,
    compute_pauses,
    find_bad_lines,
    find_busy,
    find_growth,
    find_lag,
    find_long_pauses,
    is_fair,
    is_named,
    judge,
)
from replicas_fixture import Audited

pytestmark = pytest.mark.timeout(60)

PREY = hostile.Prey("evil", "prey", "00000000-0000-0000-0000-0000000000aa")


def act(t: float, replica: str, verb: str, resource: str = "pods", code: int = 200) -> Audited:
    return Audited(replica, verb, resource, "n", "p", t, t + 0.01, code, None)


@pytest.mark.parametrize(
    ("requests", "wrong"),
    [
        pytest.param([act(0, "", "create"), act(1, "a_1", "delete")], 1, id="a-foreign-pod-is-deleted"),
        pytest.param([act(0, "", "create"), act(1, "a_1", "patch")], 1, id="or-changed"),
        pytest.param([act(0, "a_1", "create"), act(1, "b_1", "delete")], 0, id="a-pod-of-ours"),
        pytest.param([act(0, "a_1", "create"), act(1, "", "create"), act(2, "a_1", "delete")], 1, id="a-namesake"),
        pytest.param([act(0, "", "create"), act(1, "a_1", "delete", code=404)], 0, id="it-was-refused"),
        pytest.param([act(0, "", "create", "elasticjobs"), act(1, "a_1", "delete", "elasticjobs")], 0, id="a-job"),
    ],
)
def test_a_deletion_of_what_others_made_is_seen(requests: list[Audited], wrong: int) -> None:
    assert len(find_foreign_deletions(requests)) == wrong


@pytest.mark.parametrize(
    ("end", "fair"),
    [
        pytest.param(Exit(10, "a", -9, True), True, id="killed-by-the-suite"),
        pytest.param(Exit(10, "a", 1, False, "WARNING lost the Lease; x"), True, id="its-Lease-was-taken"),
        pytest.param(Exit(90, "a", 1, False, "WARNING lost the Lease; x"), False, id="lost-and-nobody-took-it"),
        pytest.param(Exit(10, "a", 1, False, "RecursionError"), False, id="an-error"),
        pytest.param(Exit(10, "a", 0, False), False, id="ended-well-unasked"),
    ],
)
def test_an_end_is_fair_where_the_suite_caused_it(end: Exit, fair: bool) -> None:
    assert is_fair(end, touched=[5.0]) is fair


def test_a_lease_may_be_lost_where_the_server_is_slow_for_everybody() -> None:
    end = Exit(20, "a", 1, False, "WARNING lost the Lease; x")
    assert judge(Record(exits=[end], delays=[(12.0, 0.5)]))["exits"]
    assert not judge(Record(exits=[end], delays=[(12.0, 5.0)]))["exits"]
    changed = samples(lambda t: 100.0, lambda t: 50, lambda t: t // 40)
    assert not judge(Record(samples=changed, siege=(0.0, 60.0), delays=[(39.0, 5.0)]))["growth"]


def test_a_pause_is_the_longest_time_without_a_step() -> None:
    steps = [0.0, 1.0, 1.5, 4.0, 10.0, 10.5]
    assert compute_pauses(steps, [(0, 2), (1, 5), (5, 9)]) == [1.0, 2.5, 4.0]


def test_pauses_are_compared_with_the_quiet_run() -> None:
    steady = [t / 10 for t in range(200)]
    good = Record(steps={"j": steady}, quiet=[(0, 5)], hostile=[(5, 19)])
    assert find_long_pauses(good) == []
    gap = [t for t in steady if not 8 < t < 13]
    assert len(find_long_pauses(Record(steps={"j": gap}, quiet=[(0, 5)], hostile=[(5, 19)]))) == 1
    assert find_long_pauses(Record(steps={"j": steady[:60]}, quiet=[(0, 5)], hostile=[(5, 19)]))


def samples(rss: Callable[[int], float], files: Callable[[int], int], pid: Callable[[int], int]) -> list[Sample]:
    return [Sample(t, "a", pid(t), rss(t), files(t), True) for t in range(60)]


def test_growth_is_seen_in_the_process_that_leads() -> None:
    flat, one = samples(lambda t: 100.0 + t % 3, lambda t: 50, lambda t: 1), (0.0, 60.0)
    assert find_growth(flat, one) == []
    assert "memory" in find_growth(samples(lambda t: 100.0 + 3 * t, lambda t: 50, lambda t: 1), one)[0]
    assert "files" in find_growth(samples(lambda t: 100.0, lambda t: 50 + 2 * t, lambda t: 1), one)[0]
    assert "changed" in find_growth(samples(lambda t: 100.0, lambda t: 50, lambda t: t // 30), one)[0]


def test_the_lag_is_read_from_the_metric() -> None:
    def text(*counts: int) -> str:
        bounds = ("0.01", "0.05", "1.0", "+Inf")
        name = "elasticjob_event_loop_lag_seconds_bucket"
        return "\n".join(f'{name}{{le="{b}"}} {c}.0' for b, c in zip(bounds, counts, strict=True))

    before = lag.parse_buckets(text(5, 5, 6, 6), "lag")
    assert lag.find_longest(before, lag.parse_buckets(text(9, 9, 10, 10), "lag")) == 0.01
    assert lag.find_longest(before, lag.parse_buckets(text(9, 10, 11, 11), "lag")) == 0.05
    assert lag.find_longest(before, lag.parse_buckets(text(9, 9, 10, 11), "lag")) == lag.BEYOND
    assert lag.find_longest(before, before) == 0.0
    assert find_lag({"quiet": 0.1, "hostile": 0.5}) == []
    assert find_lag({"quiet": 0.1, "hostile": 2.5})
    assert not find_lag({"quiet": 0.1, "hostile": 2.5, "machine": 1.5})
    assert not find_busy({"quiet": 0.1, "hostile": 0.05})
    assert find_busy({"hostile": 0.1})
    assert find_busy({"hostile": 0.1, "slowdown": 1.5})
    assert not find_busy({"hostile": 0.06, "slowdown": 1.5})
    assert lag.find_slowdown([0.001, 0.002, 0.0015]) == 2.0
    assert lag.find_slowdown([]) == 1.0
    assert lag.parse_most('elasticjob_event_loop_max_seconds{clock="busy"} 0.0123\n') == {"busy": 0.0123}


def test_the_place_of_a_stretch_is_told(tmp_path: Path) -> None:
    ours, theirs = "/x/elasticjob_operator/plan/plan.py", "/lib/json/decoder.py"
    frames = [(theirs, "raw_decode", 353), (ours, "plan", 47), (theirs, "run", 1), (ours, "_work", 9)]
    assert stretches.name_place(frames) == "raw_decode:353 < plan/plan.py:plan:47 < plan/plan.py:_work:9"
    assert stretches.name_place(frames[1:2]) == "plan/plan.py:plan:47"
    file = tmp_path / "stretches"
    assert stretches.read(file) == []
    looker = stretches.Looker(file)
    for seconds in (0.001, 0.03, 0.07):
        looker.end_stretch(seconds)
    assert [one.seconds for one in stretches.read(file)] == [0.07, 0.03], "the short one is not worth a line"
    assert str(stretches.Stretch(0.07, (("a", 3), ("b", 1)))) == "0.070 s in a"


def test_lines_that_no_operator_may_write_are_seen() -> None:
    assert find_bad_lines("a", "12:00:00.000 INFO    all is well: größer\n") == []
    for bad in (
        "Traceback (most recent call last):",
        "x: reconciling failed; this is a bug",
        "name \x1b[2J",
        "x \x9b31m",
    ):
        assert find_bad_lines("a", f"12:00:00.000 INFO x\n{bad}\n")


def test_only_a_warning_or_a_condition_names_an_object() -> None:
    one = next(o for o in hostile.make_all(1, PREY) if o.named)
    assert not is_named(one, f"12:00:00.000 INFO    {one.name}", [])
    assert is_named(one, f"12:00:00.000 WARNING {one.name[:60]} is odd", [])
    assert is_named(one, "", [{"type": "Degraded", "status": "True"}])
    assert not is_named(one, "", [{"type": "Running", "status": "True"}])


def test_one_seed_gives_the_same_objects() -> None:
    made = [list(hostile.make_all(seed, PREY, 240)) for seed in (3, 3, 4)]
    assert made[0] == made[1] != made[2]
    assert {one.named for one in made[0]} == {True, False}


@pytest.mark.parametrize("seed", range(60_001, 60_005))
def test_each_round_has_each_kind_that_is_watched(seed: int) -> None:
    assert {one.kind for one in hostile.make_all(seed, PREY)} == {"ElasticJob", "Pod", "Node", *hostile.CHILDREN}


@pytest.mark.parametrize("case", hostile.CASES)
def test_every_object_can_be_sent(case: hostile.Case) -> None:
    for seed in range(10):
        made = case(random.Random(seed), f"h{seed}", PREY)
        assert made.name.startswith(f"h{seed}")
        assert len(made.text) < 1_500_000, "more than the store takes"
        assert made.kind == made.body["kind"]
