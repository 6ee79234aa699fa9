"""The quiet watch: who does nothing, and for how long that is usual."""

from __future__ import annotations

import pytest

from elasticjob.channel import hang, quiet
from elasticjob.channel.quiet import Look
from elasticjob.channel.work import Work


@pytest.mark.parametrize(
    ("before", "after", "active"),
    [
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 0), 7), False, id="it waits"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(100, 0), 8), True, id="a collective"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(900, 0), 7), True, id="it evaluates"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 10**7), 7), True, id="it saves"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 300), 7), False, id="a line of its log"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 0), None), False, id="it did not answer"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(0, 0), None), False, id="it has ended"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(100, 0, True), 7), True, id="it waits for a disk"),
    ],
)
def test_who_is_active_within_ten_seconds(before: Look, after: Look, active: bool) -> None:
    assert quiet.is_active(before, after, 10.0) is active


def watch_of(limit: float | None, *, collectives: int) -> quiet.Watch:
    """A watch that has looked every ten seconds while two workers entered so many collectives."""
    watch = quiet.Watch(limit)
    for count in range(collectives + 1):
        assert limit == 0 or watch.is_due(count * 10.0)
        watch.note(count * 10.0, {pid: Look(Work(count * 500), count) for pid in (1, 2)})
    return watch


def stay(watch: quiet.Watch, begin: float, end: float, *busy: int) -> None:
    """All do nothing meanwhile, but for these, who compute."""
    last = dict(watch.looks)
    for second in range(int(begin) + 10, int(end) + 1, 10):
        looks = {
            pid: Look(Work(look.done.ticks + second * 50 * (pid in busy)), look.collectives)
            for pid, look in last.items()
        }
        watch.note(float(second), looks)


def test_workers_that_do_nothing_for_long_are_quiet() -> None:
    watch = watch_of(None, collectives=6)
    stay(watch, 60, 60 + hang.LEAST_SECONDS)
    assert not watch.is_quiet(60 + hang.LEAST_SECONDS)
    assert watch.is_quiet(61 + hang.LEAST_SECONDS)
    watch.note(190.0, {pid: Look(Work(9000, 0), 7) for pid in (1, 2)})
    assert not watch.is_quiet(191.0), "they went on"
    stay(watch, 190, 490)
    assert not watch.is_quiet(490), "they have been quiet that long before"
    assert watch.is_quiet(191 + 3 * 130)


@pytest.mark.parametrize("busy", [(1,), (1, 2)])
def test_one_that_computes_lets_the_others_wait(busy: tuple[int, ...]) -> None:
    watch = watch_of(None, collectives=6)
    stay(watch, 60, 3600, *busy)
    assert not watch.is_quiet(3600)


@pytest.mark.parametrize(
    ("limit", "collectives", "expected"),
    [
        pytest.param(4.0, 6, True, id="a limit of the user's"),
        pytest.param(0, 6, False, id="off"),
        pytest.param(4.0, quiet.MIN_MOVES - 1, False, id="it has hardly begun"),
        pytest.param(4.0, 0, False, id="it has not begun"),
    ],
)
def test_the_limit_of_the_quiet_watch(limit: float, collectives: int, expected: bool) -> None:
    watch = watch_of(limit, collectives=collectives)
    assert watch.is_quiet(collectives * 10 + 4.5) is expected


def test_new_workers_are_not_compared_with_old_ones() -> None:
    watch = watch_of(4.0, collectives=6)
    watch.note(100.0, {3: Look(Work(0, 0), 0)})
    assert not watch.is_quiet(104.0)
    assert quiet.Watch(4.0).quiet_seconds(10.0) == 0


def test_the_lines_of_a_report_are_marked() -> None:
    lines = hang.format_report(3, "no step", "rank 0:\nstack").splitlines()
    assert (lines[0], lines[-1]) == ("elasticjob: hang report of generation 3: no step", hang.REPORT_END)
