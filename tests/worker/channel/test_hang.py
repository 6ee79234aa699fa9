"""The hang watch's limit follows the step time."""

from __future__ import annotations

import pytest

from elasticjob.channel import hang
from elasticjob.channel.work import Work


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


DONE = {0: Work(5, 100)}
BLOCKED = [hang.Look({0: WAITS}, DONE)] * hang.BLOCKED_LOOKS


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        pytest.param(hang.Look({0: WAITS}, {0: Work(8, 100 + 2**20)}), True, id="it waits"),
        pytest.param(hang.Look({0: WAITS}, {0: Work(9, 100)}), False, id="it computes"),
        pytest.param(hang.Look({0: WAITS}, {0: Work(5, 101 + 2**20)}), False, id="it writes"),
        pytest.param(hang.Look({0: WAITS}, {0: Work(5, 100, waits_for_disk=True)}), False, id="it waits for a disk"),
        pytest.param(hang.Look({0: SAVES}, DONE), False, id="it saves"),
        pytest.param(hang.Look({0: WAITS.replace("7", "8")}, DONE), False, id="it goes on"),
        pytest.param(hang.Look({}, DONE), False, id="silent"),
        pytest.param(hang.Look({0: WAITS, 1: WAITS}, {**DONE, 1: Work()}), False, id="another one"),
        pytest.param(hang.Look({}, {}), False, id="it has ended"),
    ],
)
def test_when_a_worker_is_blocked(last: hang.Look, expected: bool) -> None:
    assert hang.is_blocked([*BLOCKED, last]) is expected
    assert hang.is_blocked([last, *BLOCKED]), "what was before that does not matter"
    assert hang.is_blocked([last, *BLOCKED[1:]]) is expected


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        pytest.param(hang.Look({0: WAITS, 1: WAITS}, {**DONE, 1: Work(7)}), True, id="both wait"),
        pytest.param(hang.Look({0: WAITS, 1: SAVES}, {**DONE, 1: Work(7)}), False, id="the other one saves"),
        pytest.param(hang.Look({0: WAITS}, {**DONE, 1: Work(7)}), False, id="the other one is silent"),
        pytest.param(hang.Look({0: SAVES}, DONE), False, id="it saves without any work"),
        pytest.param(hang.Look({}, {}), False, id="no worker"),
    ],
)
def test_when_all_workers_are_blocked(look: hang.Look, expected: bool) -> None:
    assert hang.is_blocked([look] * hang.BLOCKED_LOOKS) is expected


def test_who_was_blocked_for_a_moment_only_may_be_out_again_before_it_can_say_so() -> None:
    assert not hang.is_blocked([])
    assert not hang.is_blocked(BLOCKED[1:])
    assert (hang.BLOCKED_LOOKS - 1) * hang.BLOCKED_SECONDS >= 3
