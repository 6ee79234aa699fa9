"""What counts as training time and as lost time, and the causes of lost time."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.builders import NOW
from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.history import goodput, moments
from elasticjob_operator.history.goodput import Account, Loss, Reported
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.times import format_time


def at(seconds: float) -> str:
    return format_time(NOW + seconds)


def booked(before: api.GoodputStatus, **seen: Any) -> api.GoodputStatus:
    return goodput.update(api.Status(goodput=before), goodput.watch(before, **seen)).goodput


def steps(first: int | None = None, **more: Any) -> dict[str, Any]:
    return {"reported": Reported(first, **more)}


def test_goodput_books_at_every_change() -> None:
    kept = api.GoodputStatus()
    for time, training, formed in [(0, True, 1), (5, True, 1), (10, False, 1), (13, True, 2), (20, True, 2)]:
        kept = booked(kept, running=training, formed=formed, now=NOW + time)
    assert kept == api.GoodputStatus(
        training_seconds=10, lost_seconds=3, last_recovery_seconds=3, rescales=1, training=True, since=at(13)
    )


def test_nothing_is_booked_before_the_first_world() -> None:
    assert booked(api.GoodputStatus(), running=False, formed=0, now=NOW) == api.GoodputStatus()


STEPS = api.Measured.STEPS


@pytest.mark.parametrize(
    ("story", "training", "lost"),
    [
        pytest.param([(0, 1, {}), (100, 0, {})], 100, 0, id="nothing is reported"),
        pytest.param([(0, 1, {}), (12, 1, steps(1)), (100, 0, {})], 88, 12, id="loads for 12 s"),
        pytest.param(
            [(0, 1, {}), (12, 1, steps(1)), (50, 0, {}), (51, 2, {}), (60, 2, steps(1)), (70, 0, {})],
            48, 22, id="and again after a loss",
        ),
        pytest.param(
            [(0, 1, {}), (20, 0, {}), (30, 2, {}), (40, 2, steps(1)), (50, 0, {})], 10, 40,
            id="the first world never made a step",
        ),
        pytest.param(
            [(0, 1, {}), (10, 1, steps(1)), (100, 0, steps(stalled_seconds=60.0))], 30, 70, id="hangs for a minute"
        ),
    ],
)  # fmt: skip
def test_goodput_counts_from_the_first_step_where_steps_are_reported(
    story: list[tuple[float, int, dict[str, Any]]], training: float, lost: float
) -> None:
    """(time, the generation that runs or 0, what is known of its steps)"""
    kept, formed = api.GoodputStatus(), 0
    for time, generation, more in story:
        formed = generation or formed
        kept = booked(kept, running=generation > 0, formed=formed, now=NOW + time, **more)
    assert (kept.training_seconds, kept.lost_seconds) == (training, lost)
    assert (kept.measured is STEPS) == any(more and more["reported"].first_step for _, _, more in story)


def test_a_look_that_changes_nothing_records_nothing() -> None:
    kept = booked(api.GoodputStatus(), running=True, formed=1, now=NOW)
    assert goodput.watch(kept, running=True, formed=1, now=NOW + 5) == ()


def test_the_time_without_a_pod_is_not_lost() -> None:
    kept = booked(api.GoodputStatus(), running=True, formed=1, now=NOW)
    kept = booked(kept, running=False, formed=1, now=NOW + 10)
    kept = goodput.update(api.Status(goodput=kept), [Record(Kind.EMPTIED, NOW + 12)]).goodput
    kept = booked(kept, running=True, formed=2, now=NOW + 1000)
    assert (kept.training_seconds, kept.lost_seconds, kept.since) == (10, 0, at(1000))


@pytest.mark.parametrize(
    ("cause", "loss"),
    [
        pytest.param("start", Loss.START, id="start"),
        pytest.param("scale-up", Loss.RESCALE, id="scale-up"),
        pytest.param("drain", Loss.RESCALE, id="drain"),
        pytest.param("lost", Loss.RESTART, id="lost"),
        pytest.param("failed", Loss.RESTART, id="failed"),
        pytest.param("hung", Loss.RESTART, id="hung"),
        pytest.param("of a newer operator", Loss.RESCALE, id="not known"),
    ],
)
def test_a_recovery_is_lost_to_what_caused_it(cause: str, loss: Loss) -> None:
    story = [
        Record(Kind.TRAINS, NOW, 1, "start"),
        Record(Kind.BROKE, NOW + 10, 1),
        Record(Kind.TRAINS, NOW + 13, 2, cause),
        Record(Kind.BROKE, NOW + 20, 2, seconds=5.0),
    ]
    account = reduce(goodput.reduce, story, Account())
    assert account.lost == api.LostSeconds().model_copy(update={loss.value: 3.0, "stall": 5.0})
    is_fault = loss is Loss.RESTART
    assert account.goodput.faults == is_fault
    assert account.goodput.mean_recovery_seconds == (3.0 if is_fault else None)
    assert account.goodput.mean_seconds_between_faults == (10.0 if is_fault else None)


@pytest.mark.parametrize(
    ("causes", "faults", "lost"),
    [
        pytest.param([("lost", False), ("scale-up", True)], 1, {"restart": 4.0}, id="grows before it trains again"),
        pytest.param([("scale-down", False), ("lost", True)], 1, {"restart": 4.0}, id="is lost while it shrinks"),
        pytest.param([("lost", False), ("lost", True)], 1, {"restart": 4.0}, id="is lost twice in one pause"),
        pytest.param([("lost", True), ("scale-up", True)], 1, {"restart": 2.0, "rescale": 2.0}, id="trains between"),
        pytest.param([("scale-up", False), ("scale-up", True)], 0, {"rescale": 4.0}, id="grows twice"),
    ],
)
def test_a_loss_counts_also_where_the_job_changes_before_it_trains_again(
    causes: list[tuple[str, bool]], faults: int, lost: dict[str, float]
) -> None:
    """(the cause of a world, whether it trains): each is formed two seconds after the event before it."""
    story, now = [Record(Kind.FORMED, NOW, 1, "start"), Record(Kind.TRAINS, NOW, 1, "start")], NOW
    trains = True
    for generation, (cause, trains_then) in enumerate(causes, 2):
        if trains:
            now += 10
            story.append(Record(Kind.BROKE, now, generation - 1))
        now, trains = now + 2, trains_then
        story.append(Record(Kind.FORMED, now, generation, cause))
        if trains:
            story.append(Record(Kind.TRAINS, now, generation, cause))
    account = reduce(goodput.reduce, story, Account())
    assert account.goodput.faults == faults
    assert account.lost == api.LostSeconds().model_copy(update=lost)


def test_the_fields_of_lost_seconds_are_the_categories() -> None:
    assert set(api.LostSeconds.model_fields) == {loss.value for loss in Loss}


@pytest.mark.parametrize(
    ("last", "first", "repeated"),
    [
        pytest.param(60, 51, 20.0, id="from a checkpoint after step 50"),
        pytest.param(60, 61, 0.0, id="memory was kept"),
        pytest.param(60, 90, 0.0, id="steps are numbered anew"),
        pytest.param(60, 1, 98.0, id="never more than was trained"),
        pytest.param(None, 1, 0.0, id="no step before"),
    ],
)
def test_steps_that_are_made_again_were_lost(last: int | None, first: int, repeated: float) -> None:
    status = api.Status()
    story = [
        (0, 1, steps()),
        (2, 1, steps(1)),
        (100, 0, steps(last_step=last, step_seconds=2.0)),
        (110, 2, steps()),
        (120, 2, steps(first)),
        (130, 2, steps(first + 3)),
    ]
    for time, generation, more in story:
        happened = goodput.watch(
            status.goodput, running=generation > 0, formed=generation or 1, now=NOW + time, cause="lost", **more
        )
        status = goodput.update(status, happened)
    assert status.lost_seconds is not None
    assert status.lost_seconds.repeated_steps == repeated
    assert status.goodput.training_seconds == 98 - repeated
    assert status.goodput.lost_seconds == 2 + 20 + repeated


def test_steps_that_wait_for_a_checkpoint_are_not_training() -> None:
    status = api.Status()
    waits = [(0, None), (10, 1.5), (20, 4.0), (30, 0.5), (40, 0.5)]  # at 30 s, the processes are new
    for time, waited in waits:
        more = steps(time + 1, checkpoint_seconds=waited)
        status = goodput.update(status, goodput.watch(status.goodput, running=True, formed=1, now=NOW + time, **more))
    assert status.lost_seconds is not None
    assert status.lost_seconds.checkpoint == 4.5
    trained, lost = moments.read(status).seconds_until(NOW + 40)
    assert (trained, lost) == (35.5, 4.5)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.booleans(),
            st.booleans(),
            st.booleans(),
            st.floats(0, 50),
            st.sampled_from(names.Cause),
        ),
        max_size=30,
    )
)
def test_the_categories_add_up_to_the_wall_clock(
    story: list[tuple[float, bool, bool, bool, float, names.Cause]],
) -> None:
    """Whatever happens: what is trained, lost and not booked yet is the time since the first world ran."""
    account, now, formed, started = Account(), NOW, 1, None
    for passed, running, anew, stepped, stalled, cause in story:
        now += passed
        formed += anew
        reported = Reported(int(stalled) if stepped and running else None, 50, 0.5, passed / 10, stalled)
        seen = goodput.watch(
            account.goodput, running=running, formed=formed, now=now, cause=cause, reported=reported
        )  # fmt: skip
        account = reduce(goodput.reduce, seen, account)
        if started is None and account.goodput.since:
            started = now
    kept = account.goodput
    losses = account.lost.model_dump().values()
    assert sum(losses) == pytest.approx(kept.lost_seconds, abs=0.05)
    trained, lost = goodput.add_stretch(
        kept.training, kept.training_seconds, kept.lost_seconds, goodput.open_since(api.Status(goodput=kept)), now
    )
    assert trained + lost == pytest.approx(0 if started is None else now - started, abs=0.1)
    assert min(trained, lost, *losses, 0) == 0


def test_the_timeline_has_what_the_ranks_of_a_world_received() -> None:
    worlds = [api.WorldStatus(generation=1), api.WorldStatus(generation=2, lost_seconds=0.4)]
    before = api.Status(timeline=worlds)
    reported = Reported(5, state_bytes=1000, state_seconds=0.2)
    happened = goodput.watch(before.goodput, running=True, formed=2, now=NOW, reported=reported)
    after = goodput.update(before, happened)
    assert [(one.state_bytes, one.state_seconds) for one in after.timeline] == [(None, None), (1000, 0.2)]
    assert after.timeline[1].lost_seconds == 0.4
    assert goodput.update(after, happened).timeline == after.timeline
