"""The events derived from two statuses, and a readable sentence for each cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.builders import NOW
from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.history import moments
from elasticjob_operator.history.moments import Moment, Straggler
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.plan import reporting

WORLD = Moment(generation=1, size=3, members=3, cause="start", training=True)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(WORLD, WORLD, (), id="nothing"),
        pytest.param(
            Moment(),
            replace(WORLD, formed=NOW - 1, recovery_seconds=1.0),
            (
                Record(Kind.FORMED, NOW - 1, 1, "start", (0, 1, 2), 3),
                Record(Kind.TRAINS, NOW, 1, "start", size=3),
            ),
            id="the first world is no recovery",
        ),
        pytest.param(WORLD, replace(WORLD, training=False), (Record(Kind.BROKE, NOW, 1, "start"),), id="it breaks"),
        pytest.param(
            replace(WORLD, training=False, free=1),
            Moment(generation=3, size=2, members=2, cause="lost", training=True, recovery_seconds=0.5, free=2),
            (
                Record(Kind.FORMED, NOW, 3, "lost", (0, 1), 2, 3, count=2),
                Record(Kind.TRAINS, NOW, 3, "lost", size=2, seconds=0.5),
                Record(Kind.FORGIVEN, NOW, 3),
            ),
            id="two worlds later",
        ),
        pytest.param(
            replace(WORLD, stragglers=(Straggler(0, "p0", "", 2.0),)),
            replace(WORLD, stragglers=(Straggler(0, "p0", "", 1.9), Straggler(1, "p1", "n1", 1.75))),
            (
                Record(
                    Kind.STRAGGLES,
                    NOW,
                    1,
                    ranks=(1,),
                    who="p1 on n1",
                    message="rank 1 is 1.8 times as slow as the others",
                ),
            ),
            id="another rank is slow",
        ),
        pytest.param(
            replace(WORLD, charged=1),
            replace(WORLD, charged=3, budget=1, failure=("RankHung", "it hangs", 1)),
            (Record(Kind.FAILED, NOW, 1, "RankHung", (1,), count=2, message="restart 1 charged: it hangs"),),
            id="failures are charged",
        ),
        pytest.param(
            replace(WORLD, conditions=(("Suspended", "Suspended", ""), ("Degraded", "BelowWanted", ""))),
            replace(WORLD, conditions=(("Degraded", "Unschedulable", "no room"),)),
            (Record(Kind.RESUMED, NOW, 1), Record(Kind.DEGRADED, NOW, 1, "Unschedulable", message="no room")),
            id="conditions",
        ),
        pytest.param(
            WORLD,
            replace(WORLD, conditions=(("Degraded", "BelowWanted", "2 of 3"),)),
            (),
            id="below what is wanted is no news: the world says so",
        ),
    ],
)
def test_what_happened_between(before: Moment, after: Moment, expected: tuple[Record, ...]) -> None:
    assert moments.compare(before, after, NOW) == expected


@pytest.mark.parametrize(
    ("last", "failure"),
    [
        pytest.param(None, ("", "", None), id="none"),
        pytest.param(
            api.FailureStatus(reason="RankHung", message="it hangs", rank=1), ("RankHung", "it hangs", 1), id="all"
        ),
        pytest.param(api.FailureStatus(pod="p0"), ("", "", None), id="unknown"),
    ],
)
def test_the_last_failure_is_read(last: api.FailureStatus | None, failure: tuple[str, str, int | None]) -> None:
    assert moments.read(api.Status(last_failure=last)).failure == failure


def test_a_finished_job_has_no_open_stretch() -> None:
    done = api.Condition(type="Complete", status="True")
    assert moments.read(api.Status(goodput=api.GoodputStatus(since="2001-09-09T01:46:40Z"))).since == 1e9
    assert (
        moments.read(api.Status(conditions=[done], goodput=api.GoodputStatus(since="2001-09-09T01:46:40Z"))).since
        is None
    )


@pytest.mark.parametrize("cause", names.Cause)
def test_each_cause_is_told_in_a_sentence(cause: names.Cause) -> None:
    told = reporting.event_of(Record(Kind.FORMED, NOW, 2, cause.value, size=2, before=3))
    assert told is not None
    assert told.message == f"generation 2 from 3 to 2 pods: {cause.sentence}"
    assert cause == cause.value, "the status keeps the word"


def test_a_cause_that_a_newer_operator_wrote_is_shown_as_it_is() -> None:
    assert names.describe_cause("preempted") == "preempted"
    assert names.describe_cause(None) == ""
