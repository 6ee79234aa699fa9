"""Tables of what is written into entries that are not finished: logs, and what keeps others from being copied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elasticjob.peers import unfinished
from elasticjob.peers.unfinished import HELD_SECONDS, LOG_SECONDS, Held, Logs
from elasticjob.peers.watch import Stat

LONG = HELD_SECONDS
Look = tuple[float, int, int, list[str] | None]  # when, size and inode of the log, and what is open to append to


@pytest.mark.parametrize(
    ("looks", "are_logs"),
    [
        pytest.param([(0, 1, 7, ["log"]), (LOG_SECONDS, 2, 7, ["log"])], [False, True], id="open for long"),
        pytest.param([(0, 1, 7, ["log"]), (LOG_SECONDS - 1, 2, 7, ["log"])], [False, False], id="not yet"),
        pytest.param(
            [(0, 1, 7, ["log"]), (5, 2, 7, []), (LOG_SECONDS, 3, 7, ["log"])], [False] * 3, id="closed between"
        ),
        pytest.param(
            [(0, 1, 7, ["log"]), (5, 2, 7, None), (LOG_SECONDS, 3, 7, ["log"])], [False, False, True], id="not asked"
        ),
        pytest.param([(0, 1, 7, ["log"]), (LOG_SECONDS, 2, 8, ["log"])], [False, False], id="another file"),
        pytest.param(
            [(0, 1, 7, ["log"]), (LOG_SECONDS, 2, 7, ["log"]), (30, 3, 7, [])], [False, True, True], id="stays one"
        ),
        pytest.param(
            [(0, 9, 7, ["log"]), (LOG_SECONDS, 9, 7, ["log"]), (30, 3, 7, None)], [False, True, False], id="cut"
        ),
        pytest.param([(0, 1, 7, []), (LOG_SECONDS, 2, 7, [])], [False, False], id="a checkpoint"),
        pytest.param([(0, 1, 7, ["gone"]), (LOG_SECONDS, 1, 7, ["gone"])], [False, False], id="removed and open"),
    ],
)
def test_which_files_are_logs(looks: Sequence[Look], are_logs: Sequence[bool]) -> None:
    logs, found = Logs(), []
    for now, size, inode, appending in looks:
        logs = logs.look(now, {"log": Stat(size, size, inode)}, appending)
        found.append("log" in logs.found)
    assert found == are_logs


def make_held(began: float, since: float, **more: float) -> Held:
    return Held(began, since, Stat(1, 1, 1), **more)


RESTS, FRESH = make_held(0, 0), make_held(LONG - 1, LONG - 1)
GROWS, WRITTEN_OVER = make_held(0, LONG - 1), make_held(0, LONG - 1, first_over=1, last_over=LONG - 1)
CUT = make_held(0, LONG - 1, first_over=1, last_over=1)
WITH_RESTS = make_held(0, LONG - 1, rested=LONG - 20, first_over=1, last_over=LONG - 1)


@pytest.mark.parametrize(
    ("held", "opened", "known", "told"),
    [
        pytest.param({}, [], [], "", id="nothing"),
        pytest.param({"s/a": RESTS}, [], [], "", id="alone"),
        pytest.param(
            {"s/a": RESTS, "s/b": GROWS}, [], [], "'s/a', beside which 's/b' is always being written", id="a log"
        ),
        pytest.param(
            {"s/a": RESTS, "s/b": FRESH}, [], [], "'s/a', beside which new files are always being written", id="new"
        ),
        pytest.param(
            {"s/a": RESTS, "s/b": FRESH}, [], ["s/b"], "'s/a', beside which 's/b' is always being written", id="known"
        ),
        pytest.param({"s/a": RESTS, "t/b": GROWS}, [], [], "", id="of another entry"),
        pytest.param({"s/a": FRESH, "s/b": GROWS}, [], [], "", id="not for long"),
        pytest.param({"s/a": RESTS}, ["s/a"], [], "", id="open itself"),
        pytest.param(
            {"s/a": RESTS, "s/b": RESTS}, ["s/b"], [], "'s/a', beside which 's/b' is always being written", id="open"
        ),
        pytest.param(
            {"s/a": WRITTEN_OVER}, [], [], "'s/a', which never rests for a second between two writes", id="worn"
        ),
        pytest.param({"s/a": WRITTEN_OVER}, [], ["s/a"], "", id="worn and known"),
        pytest.param({"s/a": GROWS}, [], [], "", id="grows"),
        pytest.param({"s/a": CUT}, [], [], "", id="a log that was cut"),
        pytest.param({"s/a": WITH_RESTS}, [], [], "", id="overwritten now and then"),
        pytest.param({"s/a": WITH_RESTS, "t/b": GROWS}, [], [], "", id="now and then, and a log elsewhere"),
        pytest.param(
            {"s/a": WITH_RESTS, "s/b": GROWS},
            [],
            [],
            "'s/a', beside which 's/b' is always being written",
            id="now and then, beside a log",
        ),
    ],
)
def test_what_is_told(held: dict[str, Held], opened: list[str], known: list[str], told: str) -> None:
    assert unfinished.describe(held, LONG, opened, known) == told


@pytest.mark.parametrize(
    ("after", "overwritten"),
    [
        pytest.param(Stat(5, 2, 1), False, id="longer"),
        pytest.param(Stat(4, 2, 1), True, id="as long"),
        pytest.param(Stat(3, 2, 1), True, id="shorter"),
        pytest.param(Stat(5, 2, 2), True, id="replaced"),
    ],
)
def test_what_has_not_only_grown_was_written_over(after: Stat, overwritten: bool) -> None:
    before = unfinished.look({}, 1.0, {"s/a": Stat(4, 1, 1)})
    assert unfinished.look(before, 1.5, {"s/a": Stat(4, 1, 1)}) == before
    times = {"first_over": 2.0, "last_over": 2.0} if overwritten else {}
    assert unfinished.look(before, 2.0, {"s/a": after}) == {"s/a": Held(1.0, 2.0, after, **times)}


def test_a_file_that_is_as_it_was_for_a_second_has_rested() -> None:
    before = unfinished.look({}, 1.0, {"s/a": Stat(4, 1, 1)})
    assert unfinished.look(before, 2.0, {"s/a": Stat(4, 1, 1)}) == {"s/a": Held(1.0, 1.0, Stat(4, 1, 1), rested=2.0)}


def test_what_was_written_over_long_ago_does_not_count() -> None:
    held = Held(0.0, 0.0, Stat(0, 0, 1))
    for now in (1.0, 2.0, 2 + LONG):
        held = held.look(now, Stat(4, int(now), 1 if now < 3 else 2))
    assert (held.first_over, held.last_over) == (2 + LONG, 2 + LONG)
