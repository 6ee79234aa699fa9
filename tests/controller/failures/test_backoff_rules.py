"""The table of the back-off; the scenarios are in simulation/test_backoff.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_pod
from elasticjob_operator import api
from elasticjob_operator.failures import backoff_rules
from elasticjob_operator.failures.backoff_rules import Setback
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.times import format_time

NEW = Setback(NOW - 3, 2.0)
HASTY = Setback(NOW - 1, 0.5)
CUT = Setback(NOW - 60, 55.0, is_cut=True)
OLD = Setback(NOW - 500, 490.0)


def known(repeats: int, *, ago: float = 10.0, wait: float = 0.0, held: int = 1, **more: Any) -> Any:
    until = format_time(NOW - ago + wait) if wait else None
    return api.BackoffStatus(
        reason="BackOff", repeats=repeats, held=held, since=format_time(NOW - ago), until=until, **more
    )


def note(before: Any, *failed: Setback, **fields: Any) -> tuple[int, int, float] | None:
    """(failures in a row, pods held, seconds to wait)"""
    fields = {"reason": "BackOff", "whole": False, "charged": 0, "fresh": False, "step": None, **fields}
    after = backoff_rules.note(before, failed, now=NOW, **fields)
    if after is None:
        return None
    return after.repeats, after.held, round(max(0.0, backoff_rules.wait_until(after, NOW) - NOW), 3)


@pytest.mark.parametrize(
    ("failures", "delay"), [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (2000, 300)]
)
def test_delays(failures: int, delay: float) -> None:
    assert backoff_rules.delay_of(failures) == delay


WHOLE = {"whole": True, "charged": 1}


@pytest.mark.parametrize(
    ("before", "setbacks", "fields", "expected"),
    [
        pytest.param(None, [NEW], {}, (1, 1, 0), id="the-first"),
        pytest.param(None, [OLD], {}, None, id="it-ran-for-long"),
        pytest.param(None, [HASTY], {}, (1, 1, 1), id="the-first-waits-if-it-hardly-ran"),
        pytest.param(known(6), [HASTY], {}, (7, 1, 8), id="no-longer-than-others"),
        pytest.param(known(3), [NEW], {}, (4, 1, 1), id="the-fourth-waits"),
        pytest.param(known(3), [NEW, NEW], {}, (4, 2, 2), id="two-at-once-are-one-more-and-have-a-try-less"),
        pytest.param(known(1), [NEW, NEW], {}, (2, 2, 0), id="two-again"),
        pytest.param(known(2, held=2), [NEW], {}, (3, 2, 1), id="the-one-that-tried-for-two"),
        pytest.param(known(2, ago=2), [Setback(NOW - 6, 5)], {}, (2, 2, 0), id="of-the-same-round-while-one-tries"),
        pytest.param(known(4, ago=0.5, wait=1), [Setback(NOW - 2, 1)], {}, (4, 2, 1.5), id="of-the-same-round"),
        pytest.param(known(8, ago=5, wait=16), [NEW], {}, (9, 2, 64), id="while-others-wait"),
        pytest.param(
            known(1, ago=2, held=6), [Setback(NOW - 6, 5)] * 3, {}, (1, 9, 0), id="further-ones-of-the-first-round"
        ),
        pytest.param(
            known(1, ago=4, held=6), [NEW, Setback(NOW - 9, 8)], {}, (2, 7, 0), id="one-in-place-and-a-first-one"
        ),
        pytest.param(known(8), [OLD], {}, (8, 1, 0), id="one-that-ran-for-long-changes-nothing"),
        pytest.param(known(3, ago=20), [Setback(NOW - 13, 12)], {}, (4, 1, 1), id="after-12-seconds"),
        pytest.param(known(3, ago=20, step=5), [Setback(NOW - 13, 12)], {"step": 5}, (4, 1, 1), id="without-a-step"),
        pytest.param(known(3, ago=20, step=5), [Setback(NOW - 13, 12)], {"step": 6}, (3, 1, 0), id="with-a-step"),
        pytest.param(None, [NEW], WHOLE, (1, 0, 0), id="charged"),
        pytest.param(None, [Setback(NOW - 70, 60.0)], {}, None, id="after-a-minute"),
        pytest.param(None, [CUT], {}, (1, 1, 0), id="a-deadline-after-a-minute"),
        pytest.param(known(4, ago=61), [CUT], {}, (5, 1, 2), id="and-again"),
        pytest.param(None, [CUT], {"step": 7}, None, id="a-deadline-after-a-step"),
        pytest.param(None, [replace(CUT, lived=700.0)], {}, None, id="a-deadline-after-ten-minutes"),
        pytest.param(None, [Setback(NOW - 2, 0.0)], WHOLE, (1, 0, 1), id="charged-and-it-never-ran"),
        pytest.param(known(1), [NEW], WHOLE, (2, 0, 1), id="charged-again"),
        pytest.param(known(7), [OLD], {**WHOLE, "charged": 4}, (1, 0, 4), id="charged-often-after-long"),
        pytest.param(known(2, ago=1, wait=9, held=0), [Setback(NOW - 1, 0.5)], {}, (3, 0, 8), id="while-the-job-waits"),
    ],
)
def test_note(before: Any, setbacks: list[Setback], fields: dict[str, Any], expected: Any) -> None:
    assert note(before, *setbacks, **fields) == expected


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        pytest.param(None, False, id="nothing"),
        pytest.param(known(2, ago=59), True, id="lately"),
        pytest.param(known(2, ago=61), False, id="long-ago"),
        pytest.param(known(9, ago=150, wait=64), True, id="long-ago-and-long-waited-for"),
        pytest.param(known(9, ago=200, wait=64), False, id="longer-ago"),
        pytest.param(known(9, ago=-3600, wait=64), False, id="the-clock-was-set-back"),
        pytest.param(known(2, ago=200, lived_seconds=120.0), True, id="a-deadline-passes-again"),
        pytest.param(known(2, ago=300, lived_seconds=120.0), False, id="and-not-any-more"),
    ],
)
def test_forget(before: Any, kept: bool) -> None:
    assert (backoff_rules.forget(before, NOW) is not None) is kept


@pytest.mark.parametrize(
    ("before", "missing", "held"),
    [
        pytest.param(known(5, ago=1, wait=4, held=2), 3, 2, id="two-of-three"),
        pytest.param(known(5, ago=1, wait=4, held=0), 3, 3, id="the-whole-job"),
        pytest.param(known(5, ago=4, wait=4, held=2), 3, 2, id="just-over"),
        pytest.param(known(5, ago=9, wait=4, held=2), 3, 2, id="over"),
        pytest.param(known(5, ago=9, wait=4, held=0), 3, 0, id="over-for-the-whole-job"),
        pytest.param(known(5, ago=-3600, wait=4, held=2), 3, 2, id="the-clock-was-set-back"),
    ],
)
def test_held(before: Any, missing: int, held: int) -> None:
    assert backoff_rules.find_held(before, missing, (), NOW)[0] == held


LONG, TRIES, TRIED, PROVEN = (
    make_pod(1, created=NOW - 500),
    make_pod(2, "Pending", created=NOW - 2, scheduled=NOW - 2),
    make_pod(3, created=NOW - 2, scheduled=NOW - 2, began=NOW - 2),
    make_pod(3, created=NOW - 8, scheduled=NOW - 8, began=NOW - 8),
)


@pytest.mark.parametrize(
    ("repeats", "lived", "pods", "expected"),
    [
        pytest.param(1, 4, (), (2, None), id="none-has-started-so-one-tries"),
        pytest.param(1, 4, (LONG,), (0, None), id="others-have-started"),
        pytest.param(2, 4, (LONG,), (2, None), id="again-so-one-tries"),
        pytest.param(2, 4, (LONG, TRIES), (3, None), id="one-is-trying"),
        pytest.param(9, 0, (LONG, TRIED), (0, None), id="it-has-started-and-the-others-had-not"),
        pytest.param(9, 4, (LONG, TRIED), (3, NOW + 5), id="it-has-not-lived-longer-than-the-others"),
        pytest.param(9, 4, (LONG, TRIED, PROVEN), (0, None), id="it-has"),
        pytest.param(1, 4, (TRIED,), (0, None), id="for-the-first-time-a-start-is-enough"),
    ],
)
def test_one_pod_tries_for_all(
    repeats: int, lived: float, pods: tuple[Pod, ...], expected: tuple[int, float | None]
) -> None:
    before = known(repeats, ago=8, held=3, lived_seconds=lived)
    assert backoff_rules.find_held(before, 3, pods, NOW) == expected


@pytest.mark.parametrize(
    ("held", "missing", "pods", "expected"),
    [
        pytest.param(4, 4, (LONG,), (0, None), id="four-are-made-at-once"),
        pytest.param(9, 9, (LONG,), (5, None), id="so-are-four-of-nine"),
        pytest.param(9, 7, (LONG, TRIED, TRIES), (5, NOW + 5), id="two-more-beside-two"),
        pytest.param(9, 5, (LONG, *(TRIED,) * 4), (5, NOW + 5), id="four-are-trying"),
        pytest.param(9, 5, (LONG, PROVEN, *(TRIED,) * 3), (0, None), id="one-has-lived-longer"),
        pytest.param(9, 9, (), (8, None), id="no-other-has-started"),
        pytest.param(9, 2, (LONG,), (0, None), id="fewer-are-missing"),
    ],
)
def test_a_few_try_for_many_at_their_first_loss(
    held: int, missing: int, pods: tuple[Pod, ...], expected: tuple[int, float | None]
) -> None:
    before = known(1, ago=8, held=held, lived_seconds=4)
    assert backoff_rules.find_held(before, missing, pods, NOW) == expected


def test_the_longest_life_of_a_row_is_kept() -> None:
    def lived(before: Any, *failed: Setback) -> float:
        after = backoff_rules.note(
            before, failed, reason="BackOff", whole=False, charged=0, fresh=False, step=None, now=NOW
        )
        assert after is not None
        return after.lived_seconds

    assert lived(None, NEW, HASTY) == 2.0
    assert lived(known(1, lived_seconds=5.0), NEW) == 5.0
    assert lived(known(1, lived_seconds=1.0), NEW) == 2.0


@pytest.mark.parametrize(
    ("failed_ago", "told"),
    [
        pytest.param(None, "2 consecutive starts without progress; no pod has failed: they", id="none has failed"),
        pytest.param(10.0, "2 consecutive failures without progress; last: it failed", id="the last one"),
        pytest.param(8.0, "2 consecutive failures without progress; last: it failed", id="of the same round"),
        pytest.param(
            11.0, "2 consecutive starts without progress; the last pods have not failed: they", id="before others"
        ),
    ],
)
def test_a_failure_is_told_if_nothing_else_has_ended_pods_since(failed_ago: float | None, told: str) -> None:
    failed = None if failed_ago is None else api.FailureStatus(time=format_time(NOW - failed_ago), message="it failed")
    restarts = api.RestartStatus(backoff=known(2, ago=10.0))
    found = backoff_rules.describe(api.Status(restarts=restarts, last_failure=failed))
    assert found is not None and found[1].startswith(told)
