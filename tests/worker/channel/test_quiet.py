"""The quiet watch: who does nothing, and for how long that is usual."""

from __future__ import annotations

import pytest

from elasticjob.channel import hang, quiet
from elasticjob.channel.quiet import Activity, Look
from elasticjob.channel.work import Work

STILL, WOKEN = 1000, 1100  # how often the main thread was scheduled, before ten seconds and after them


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 0), 7), Activity.QUIET, id="it waits"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(100, 0), 8), Activity.ACTIVE, id="a collective"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(900, 0), 7), Activity.ACTIVE, id="it evaluates"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 10**7), 7), Activity.ACTIVE, id="it saves"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 300), 7), Activity.QUIET, id="a line of its log"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(101, 0), None), Activity.QUIET, id="it did not answer"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(0, 0), None), Activity.QUIET, id="it has ended"),
        pytest.param(Look(Work(100, 0), 7), Look(Work(100, 0, True), 7), Activity.ACTIVE, id="a disk, not known who"),
        pytest.param(
            Look(Work(100, 0, False, STILL), 7), Look(Work(100, 0, True, STILL), 7), Activity.BESIDE, id="a disk"
        ),
        pytest.param(
            Look(Work(100, 0, False, STILL), 7), Look(Work(100, 0, True, WOKEN), 7), Activity.ACTIVE, id="several reads"
        ),
        pytest.param(
            Look(Work(100, 0, False, STILL), 7), Look(Work(160, 0, False, STILL), 7), Activity.BESIDE, id="a helper"
        ),
        pytest.param(
            Look(Work(100, 0, False, STILL), 7), Look(Work(160, 0, False, WOKEN), 7), Activity.ACTIVE, id="it computes"
        ),
        pytest.param(
            Look(Work(100, 0, False, STILL), 7), Look(Work(600, 0, False, STILL), 7), Activity.ACTIVE, id="threads work"
        ),
        pytest.param(
            Look(Work(100, 0, False, STILL), 7),
            Look(Work(100, 2**21, False, STILL), 7),
            Activity.BESIDE,
            id="a chatty log",
        ),
        pytest.param(
            Look(Work(100, 0, False, STILL), 7),
            Look(Work(100, 2**26, False, STILL), 7),
            Activity.ACTIVE,
            id="a thread saves",
        ),
    ],
)
def test_who_is_active_within_ten_seconds(before: Look, after: Look, expected: Activity) -> None:
    assert quiet.judge(before, after, 10.0) is expected


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
        pytest.param(4.0, quiet.MIN_MOVES - 1, True, id="it has hardly begun"),
        pytest.param(4.0, 0, False, id="it starts"),
        pytest.param(None, 6, False, id="no limit of the user's"),
    ],
)
def test_the_limit_of_the_quiet_watch(limit: float, collectives: int, expected: bool) -> None:
    watch = watch_of(limit, collectives=collectives)
    assert watch.is_quiet(collectives * 10 + 4.5) is expected


@pytest.mark.parametrize(
    ("limit", "collectives", "after"),
    [
        pytest.param(4.0, 1, 4.0, id="after its first collective"),
        pytest.param(4.0, 0, 12.0, id="before: it starts, and fetches data"),
        pytest.param(None, 6, hang.LEAST_SECONDS, id="by itself"),
        pytest.param(None, 1, quiet.EARLY_SECONDS, id="by itself, when it is not known what is usual"),
        pytest.param(None, 0, None, id="by itself, a script that does not communicate"),
        pytest.param(0, 6, None, id="off"),
    ],
)
def test_from_when_on_workers_are_watched(limit: float | None, collectives: int, after: float | None) -> None:
    watch = quiet.Watch(limit)
    for count in range(collectives + 1):
        watch.note(count * 10.0, {1: Look(Work(count * 500), count)})
    began = collectives * 10
    stay(watch, began, began + 4000)
    assert [watch.is_quiet(began + seconds) for seconds in (after or 1.0, (after or 3999) + 1)] == [False, bool(after)]


@pytest.mark.parametrize(
    ("limit", "told", "ended"),
    [pytest.param(20.0, 20, 100, id="a limit of the user's"), pytest.param(None, 120, 1800, id="by itself")],
)
def test_what_goes_on_beside_is_told_early_and_counts_late(limit: float | None, told: int, ended: int) -> None:
    watch = quiet.Watch(limit)
    for count in range(7):
        watch.note(count * 10.0, {1: Look(Work(count * 500, switches=count * 100), count)})
    for second in range(70, 61 + ended, 10):
        watch.note(float(second), {1: Look(Work(2640 + 6 * second, switches=600), 6)})
        now = second + 0.0
        assert watch.is_suspicious(now) is (now - 60 > told)
        assert not watch.is_quiet(now)
    assert watch.is_quiet(61.0 + ended)


def test_new_workers_are_not_compared_with_old_ones() -> None:
    watch = watch_of(4.0, collectives=6)
    watch.note(100.0, {3: Look(Work(0, 0), 0)})
    assert not watch.is_quiet(104.0)
    assert quiet.Watch(4.0).quiet_seconds(10.0) == 0


def test_the_lines_of_a_report_are_marked() -> None:
    lines = hang.format_report(3, "no step", "rank 0:\nstack").splitlines()
    assert (lines[0], lines[-1]) == ("elasticjob: hang report of generation 3: no step", hang.REPORT_END)
