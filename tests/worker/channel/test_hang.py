"""The hang watch's limit follows the step time."""

from __future__ import annotations

import pytest

from elasticjob.channel import hang


def test_the_hang_watch_follows_the_pace() -> None:
    watch = hang.Watch(None)
    for second in range(10):
        watch.report(float(second * 10), second)
    assert hang.find_limit(watch) == pytest.approx(hang.FACTOR * 10)
    assert not hang.is_hung(watch, 90 + 299)
    assert hang.is_hung(watch, 90 + 301)
    watch.report(500.0, 9)
    assert hang.is_hung(watch, 500), "the same step again is no progress"


@pytest.mark.parametrize(
    ("limit", "reports", "expected"),
    [
        pytest.param(None, 2, None, id="too early to tell"),
        pytest.param(0.0, 9, None, id="off"),
        pytest.param(7.0, 9, 7.0, id="set"),
        pytest.param(None, 9, hang.LEAST_SECONDS, id="fast steps"),
    ],
)
def test_the_limit_of_the_hang_watch(limit: float | None, reports: int, expected: float | None) -> None:
    watch = hang.Watch(limit)
    for step in range(reports):
        watch.report(step * 0.1, step)
    assert hang.find_limit(watch) == expected


WAITS = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 7 in broadcast\n  File "a.py", line 1 in f'
SAVES = '  File "/site-packages/torch/serialization.py", line 7 in save'


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(hang.Look({0: WAITS}, {0: 5}), hang.Look({0: WAITS}, {0: 6}), True, id="it waits"),
        pytest.param(hang.Look({}, {}), hang.Look({0: WAITS}, {0: 6}), False, id="the first look"),
        pytest.param(hang.Look({0: WAITS}, {0: 5}), hang.Look({0: WAITS}, {0: 60}), False, id="it works meanwhile"),
        pytest.param(hang.Look({0: SAVES}, {0: 5}), hang.Look({0: SAVES}, {0: 5}), False, id="it saves"),
        pytest.param(
            hang.Look({0: WAITS}, {0: 5}), hang.Look({0: WAITS.replace("7", "8")}, {0: 5}), False, id="it goes on"
        ),
        pytest.param(
            hang.Look({0: WAITS, 1: SAVES}, {0: 5, 1: 5}),
            hang.Look({0: WAITS, 1: SAVES}, {0: 5, 1: 5}),
            False,
            id="another one saves",
        ),
        pytest.param(hang.Look({0: WAITS}, {0: 5, 1: 5}), hang.Look({0: WAITS}, {0: 5, 1: 5}), False, id="silent"),
        pytest.param(
            hang.Look({0: WAITS, 1: SAVES}, {0: 5, 1: 5}), hang.Look({0: WAITS}, {0: 5}), False, id="one has just ended"
        ),
        pytest.param(hang.Look({}, {}), hang.Look({}, {}), False, id="no worker"),
    ],
)  # fmt: skip
def test_when_all_workers_are_blocked(before: hang.Look, after: hang.Look, expected: bool) -> None:
    assert hang.is_blocked(before, after) is expected
