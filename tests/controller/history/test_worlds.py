"""The timeline in the status: the last worlds, and the last failure of each rank, both bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.builders import NOW, make_world
from elasticjob_operator import api
from elasticjob_operator.history import goodput, rank_failures, worlds
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.times import format_time

FAILED = api.FailureStatus(pod="digits-worker-1", node="node1", generation=1, rank=1)


@pytest.mark.parametrize(
    ("reason", "members", "failure", "who"),
    [
        pytest.param("lost", (0, 2), None, "digits-worker-1 on node1", id="a member is gone"),
        pytest.param("scale-up", (0, 1, 2, 3), None, "digits-worker-3 on node3", id="a member joined"),
        pytest.param("failed", (0, 1, 2), FAILED, "rank 1 in digits-worker-1 on node1", id="a rank failed"),
        pytest.param("lost", (0, 2), FAILED, "digits-worker-1 on node1", id="not the last failure"),
        pytest.param(
            "failed", (0, 2), FAILED.model_copy(update={"generation": 7}), "digits-worker-1 on node1",
            id="a failure of another world",
        ),
        pytest.param(
            "scale-up", tuple(range(8)), None,
            "digits-worker-3 on node3, digits-worker-4 on node4, digits-worker-5 on node5 and 2 more", id="many",
        ),
    ],
)  # fmt: skip
def test_the_timeline_names_who_caused_a_world(
    reason: str, members: tuple[int, ...], failure: api.FailureStatus | None, who: str
) -> None:
    before = api.Status(rendezvous=make_world(1, (0, 1, 2)), last_failure=failure)
    assert worlds.name_causers(before, make_world(2, members, reason=reason)) == who


ALIKE = {"error": "ValueError at train.py:88", "step": 812}


@pytest.mark.parametrize(
    ("reason", "restarts", "who"),
    [
        ("failed", {**ALIKE, "alike": 1}, ""),
        ("failed", {**ALIKE, "alike": 2}, ", asked to leave out the newest checkpoint"),
        ("failed", {**ALIKE, "alike": 4}, ", asked to leave out the 3 newest checkpoints"),
        ("lost", {**ALIKE, "alike": 4}, None),
        (
            "failed",
            {"error": "elasticjob.errors.StepsDifferError", "alike": 4},
            "",
        ),  # no older checkpoint mends a script
        ("rule", {"ordered": {"rule": "Spike", "rank": 1, "pod": "p", "before": 41}}, ", from before step 41"),
        (
            "rule",
            {"ordered": {"rule": "Spike", "rank": 1, "pod": "p", "before": 41, "tries": 2}},
            ", from before step 41, asked to leave out the 2 newest checkpoints",
        ),
        (  # the agents hear the higher one
            "rule",
            {**ALIKE, "alike": 4, "ordered": {"rule": "Spike", "rank": 1, "pod": "p", "before": 41, "tries": 1}},
            ", from before step 41, asked to leave out the 3 newest checkpoints",
        ),
        (
            "failed",
            {**ALIKE, "alike": 1, "ordered": {"rule": "Spike", "rank": 1, "pod": "p", "before": 41, "tries": 2}},
            ", asked to leave out the 2 newest checkpoints",
        ),
        ("rule", {"ordered": {"rule": "Spike", "rank": 1, "pod": "p"}}, ""),
    ],
)
def test_the_timeline_tells_where_a_world_is_asked_to_leave_out_checkpoints(
    reason: str, restarts: dict[str, Any], who: str | None
) -> None:
    failure = FAILED.model_copy(update={"generation": 1})
    known = api.RestartStatus.model_validate(restarts)
    before = api.Status(rendezvous=make_world(1, (0, 1)), last_failure=failure, restarts=known)
    told = worlds.name_causers(before, make_world(2, (0, 1), reason=reason))
    first = "Spike: rank 1 in p" if reason == "rule" else "rank 1 in digits-worker-1 on node1"
    assert told == ("" if who is None else first + who)


@pytest.mark.parametrize(
    ("told", "alike", "also"),
    [
        pytest.param([("start", 1), ("failed", 11)], 2, ", also from step 1", id="it went back"),
        pytest.param([("start", 1), ("failed", 11), ("failed", 11)], 2, "", id="the one before failed otherwise"),
        pytest.param([("start", 1), ("scale-up", 11), ("failed", 11)], 2, "", id="one ended for a joiner"),
        pytest.param([("start", 11), ("failed", 4), ("scale-up", 11)], 2, "", id="the last but one ended for a joiner"),
        pytest.param([("start", 5), ("failed", 3), ("lost", 11), ("hung", 11)], 2, "", id="lost between two failures"),
        pytest.param([("start", 5), ("lost", None), ("failed", 11)], 2, "", id="no step was heard of"),
        pytest.param([("failed", 11)], 4, "", id="most of it is forgotten"),
        pytest.param([("start", 1)], 1, None, id="once"),
    ],
)
def test_a_job_that_ends_with_the_same_error_tells_where_the_worlds_that_failed_had_begun(
    told: list[tuple[str, int | None]], alike: int, also: str | None
) -> None:
    timeline = [api.WorldStatus(generation=i, time="", size=2, cause=c, first_step=s) for i, (c, s) in enumerate(told)]
    restarts = api.RestartStatus(error="E at a.py:1", alike=alike, step=15)
    said = f"; E at a.py:1 {alike} times in a row, never beyond step 15{also}" if also is not None else ""
    assert worlds.tell_repeated(restarts, timeline) == said


def test_the_timeline_has_the_first_step_that_each_world_told() -> None:
    status = api.Status()
    for generation, step in ((1, 1), (2, 16), (3, 11)):
        formed = make_world(generation, formed_time=format_time(NOW), reason="start")
        status = goodput.update(status, worlds.watch(status, formed, NOW))
        for later in (step, step + 5):
            reported = goodput.Reported(first_step=later)
            told = goodput.watch(status.goodput, running=True, formed=generation, now=NOW, reported=reported)
            status = goodput.update(status, told)
    assert [one.first_step for one in status.timeline] == [1, 16, 11]


def test_a_world_is_recorded_once_with_the_time_lost_before_it() -> None:
    status = api.Status()
    world = make_world(1, formed_time=format_time(NOW), reason="start")
    found = worlds.watch(status, world, NOW)
    status = goodput.update(status, [*found, Record(Kind.TRAINS, NOW, 1, "start"), Record(Kind.BROKE, NOW + 10, 1)])
    assert worlds.watch(status, world, NOW + 10) == ()
    status = status.model_copy(update={"rendezvous": world})
    world = make_world(2, (0,), formed_time=format_time(NOW + 12), reason="lost")
    found = worlds.watch(status, world, NOW + 12)
    status = goodput.update(status, [*found, Record(Kind.TRAINS, NOW + 13, 2, "lost")])
    assert status.timeline == [
        api.WorldStatus(generation=1, time=format_time(NOW), size=2, cause="start"),
        api.WorldStatus(
            generation=2, time=format_time(NOW + 12), size=1, cause="lost", who="digits-worker-1 on node1",
            lost_seconds=3.0,
        ),
    ]  # fmt: skip


def long_failure(rank: int, text: str = "x" * 100 + "\n") -> api.FailureStatus:
    return api.FailureStatus(
        time=format_time(NOW), pod=f"{'p' * 50}-worker-{rank}", node="n" * 60, generation=7, rank=rank, exit_code=1,
        reason="WorkerFailed", message="m" * 5000, traceback=text * 60 + "the end", log_tail=text * 60 + "last",
    )  # fmt: skip


def test_a_status_of_a_thousand_members_stays_small() -> None:
    status = api.Status()
    for generation in range(1, 300):
        who = "p" * worlds.MOST_NAMES_LENGTH
        status = goodput.update(status, [Record(Kind.FORMED, NOW, generation, "scale-down", size=1000, who=who)])
    failures = rank_failures.merge([], [long_failure(rank) for rank in range(1000)])
    status = status.model_copy(update={"failures": failures})
    assert len(status.timeline) == worlds.MOST_WORLDS
    assert status.timeline[-1].generation == 299
    assert len(json.dumps(status.dump())) < 36 * 1024
    assert failures[0].traceback is not None
    assert failures[0].traceback.endswith("the end")
    assert (failures[-1].traceback, failures[-1].exit_code) == (None, 1)
    assert len(failures) == rank_failures.MOST_FAILURES


def test_the_last_failure_of_a_rank_replaces_the_one_before_and_the_cause_comes_first() -> None:
    one = rank_failures.merge([], [long_failure(0), long_failure(1), long_failure(2)])
    again = long_failure(1).model_copy(update={"generation": 8})
    two = rank_failures.merge(one, [again])
    assert [(f.rank, f.generation) for f in two] == [(1, 8), (0, 7), (2, 7)]
    assert rank_failures.merge(two, []) == two


@pytest.mark.parametrize("text", ["é" * 5000, "\n" * 5000, "a" * 5000, "\u0000" * 3000], ids=["é", "n", "a", "0"])
def test_any_text_is_bounded(text: str) -> None:
    kept = rank_failures.merge([], [long_failure(rank, text) for rank in range(100)])
    size = len(json.dumps(api.Status(failures=kept).dump(), ensure_ascii=False).encode())
    assert size < rank_failures.MOST_BYTES + 2048
    assert [f.rank for f in kept] == list(range(rank_failures.MOST_FAILURES))
