"""Tables for sizes at which a script cannot start: what the timeline shows, and the size that is asked for then."""

from __future__ import annotations

import pytest

from controller.builders import NOW, make_spec
from elasticjob_operator import api
from elasticjob_operator.sizing import compose, retreat
from elasticjob_operator.sizing.retreat import FailedChange
from elasticjob_operator.sizing.values import View
from elasticjob_operator.times import format_time

FORMATION, STEPS = api.Measured.FORMATION, api.Measured.STEPS
World = tuple[int, float, float | None]  # its pods, how long ago it was formed, what was lost until it trained


def make_worlds(*worlds: World) -> list[api.WorldStatus]:
    return [
        api.WorldStatus(generation=number, time=format_time(NOW - ago), size=size, lost_seconds=lost)
        for number, (size, ago, lost) in enumerate(worlds, 1)
    ]


@pytest.mark.parametrize(
    ("worlds", "measured", "found"),
    [
        pytest.param([], FORMATION, None, id="no world"),
        pytest.param([(2, 5, None)], FORMATION, None, id="the first world"),
        pytest.param([(2, 90, 1), (3, 8, 1)], FORMATION, FailedChange(2, 3, 1), id="once"),
        pytest.param([(2, 90, 1), (3, 20, 1), (3, 8, 1)], FORMATION, FailedChange(2, 3, 2), id="twice"),
        pytest.param([(2, 38, 1), (3, 9, 1)], FORMATION, None, id="the smaller one did not run for long"),
        pytest.param([(2, 30, 1), (3, 4, 1), (3, 2, 1)], FORMATION, FailedChange(2, 3, 2), id="but much longer"),
        pytest.param([(2, 10, 1), (3, 1, 1)], FORMATION, None, id="not long enough to tell"),
        pytest.param([(2, 38, 1), (3, 9, None)], STEPS, FailedChange(2, 3, 1), id="but it made steps"),
        pytest.param([(2, 38, None), (3, 9, None)], STEPS, None, id="or none"),
        pytest.param([(2, 900, None), (3, 9, None)], STEPS, FailedChange(2, 3, 1), id="none for a while"),
        pytest.param([(2, 900, 1), (3, 60, 1)], FORMATION, None, id="the larger one ran for a while"),
        pytest.param([(2, 900, 1), (3, 60, None)], STEPS, FailedChange(2, 3, 1), id="without a step"),
        pytest.param([(2, 900, 1), (3, 9, 1)], STEPS, None, id="the larger one made steps"),
        pytest.param([(2, 900, 1), (3, 60, 1), (3, 9, None)], STEPS, None, id="one of them did"),
        pytest.param([(3, 900, 1), (2, 9, 1)], FORMATION, FailedChange(3, 2, 1), id="it shrank"),
        pytest.param([(4, 900, 1), (3, 20, 1), (2, 9, 1)], FORMATION, None, id="it shrank again"),
        pytest.param([(4, 900, 1), (2, 300, 1), (3, 9, 1)], FORMATION, FailedChange(2, 3, 1), id="it shrank before"),
    ],
)
def test_a_change_that_failed(worlds: list[World], measured: api.Measured, found: FailedChange | None) -> None:
    assert retreat.find_failed_change(make_worlds(*worlds), measured, NOW) == found


@pytest.mark.parametrize(
    ("others", "worlds", "is_last", "back"),
    [
        pytest.param(2, 1, False, False, id="it may have another cause"),
        pytest.param(2, 2, False, True, id="twice"),
        pytest.param(2, 1, True, True, id="the job would end"),
        pytest.param(4, 2, False, True, id="it waits for a fourth pod"),
        pytest.param(0, 2, False, False, id="no size is left"),
    ],
)
def test_when_a_size_is_left_out(others: int, worlds: int, is_last: bool, back: bool) -> None:
    assert retreat.should_go_back(FailedChange(4, 3, worlds), others, is_last_try=is_last) is back


@pytest.mark.parametrize(
    ("worked", "failed", "left_out"),
    [
        pytest.param(4, 2, [2], id="a smaller one"),
        pytest.param(2, 3, [3], id="a larger one"),
        pytest.param(2, 5, [3, 4, 5], id="those between are not tried one after the other"),
        pytest.param(1, 1000, list(range(1001 - retreat.MOST_SIZES, 1001)), id="a status has room for so many"),
    ],
)
def test_the_sizes_that_are_left_out(worked: int, failed: int, left_out: list[int]) -> None:
    assert list(FailedChange(worked, failed, 2).left_out) == left_out


ROOM = api.CapacityStatus(failed_sizes=[3, 4], cause="abc", withdrawn=1)


@pytest.mark.parametrize(
    ("cause", "asked", "kept"),
    [
        pytest.param("abc", None, [3, 4], id="an autoscaler, or something else that mends nothing"),
        pytest.param("abc", 4, [3], id="a size that somebody asks for"),
        pytest.param("abc", 5, [3, 4], id="another one"),
        pytest.param("def", None, None, id="what may have been the cause has changed"),
    ],
)
def test_what_a_change_of_the_spec_leaves(cause: str, asked: int | None, kept: list[int] | None) -> None:
    found = retreat.keep(ROOM, cause, asked)
    assert found == (None if kept is None else api.CapacityStatus(failed_sizes=kept, cause="abc"))


def test_sizes_are_told_in_spans() -> None:
    assert "no world has 2 and 4 to 6 and 9 until" in retreat.describe([2, 4, 5, 6, 9])


@pytest.mark.parametrize(
    ("size", "failed", "asked"),
    [
        pytest.param(4, [], 4, id="nothing failed"),
        pytest.param(4, [3, 4], 2, id="the size that failed"),
        pytest.param(6, [3, 4], 6, id="a larger one"),
        pytest.param(2, [3, 4], 2, id="a smaller one"),
    ],
)
def test_the_size_that_is_asked_for(size: int, failed: list[int], asked: int) -> None:
    room = api.CapacityStatus(failed_sizes=failed)
    assert compose.ask_legal_sizes(View(make_spec(1, 6), room), size).apply(size) == asked
