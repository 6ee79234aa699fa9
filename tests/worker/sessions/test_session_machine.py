"""The state machine of a session, as tables: no agent, no process group."""

from __future__ import annotations

import pytest

from elasticjob.channel import place
from elasticjob.channel.place import Place
from elasticjob.sessions.machine import (
    Abort,
    Action,
    Broke,
    Called,
    CalledOver,
    Enter,
    Entered,
    Event,
    Left,
    SayIdle,
    Stage,
    State,
    StepDone,
    Vote,
    step,
)


def make_place(generation: int) -> Place:
    return Place(generation, rank=1, world_size=2, address="10.0.0.1", port=4000)


def play(state: State, *events: Event) -> tuple[State, list[Action]]:
    done: list[Action] = []
    for event in events:
        state, actions = step(state, event)
        done += actions
    return state, done


RUNNING = State(Stage.RUNNING, generation=3)


def test_an_announced_end_is_reached_by_all_after_the_same_step() -> None:
    state, done = play(RUNNING, CalledOver(3, announced=True))
    assert (state.stage, done, state.is_lost) == (Stage.RUNNING, [], False)
    state, done = play(state, StepDone(agreed=False, alone=False))
    assert (state.stage, done) == (Stage.RUNNING, [Vote(over=True)])
    state, done = play(state, StepDone(agreed=True, alone=False), Left())
    assert (state.stage, done) == (Stage.IDLE, [SayIdle(None)])


def test_a_rank_that_was_not_told_yet_leaves_with_the_others() -> None:
    state, done = play(RUNNING, StepDone(agreed=False, alone=False), StepDone(agreed=True, alone=False))
    assert (state.stage, done) == (Stage.INTERRUPTED, [Vote(over=False)])


@pytest.mark.parametrize(("over", "stage"), [(3, Stage.INTERRUPTED), (2, Stage.RUNNING)])
def test_a_world_of_one_agrees_with_itself(over: int, stage: Stage) -> None:
    state, done = play(RUNNING, CalledOver(over, announced=True), StepDone(agreed=False, alone=True))
    assert (state.stage, done) == (stage, [])


def test_a_loss_frees_whoever_waits_and_is_told() -> None:
    state, done = play(RUNNING, CalledOver(3, announced=False))
    assert done == [Abort()]
    assert state.is_lost and state.stage is Stage.RUNNING, "the script's thread leaves by itself"
    state, done = play(state, Broke("a member was lost"), Left())
    assert done == [SayIdle("a member was lost")]
    assert (state.stage, state.error) == (Stage.IDLE, None)


@pytest.mark.parametrize(
    ("lost", "is_lost"), [pytest.param(2, False, id="of an old world"), pytest.param(7, True, id="of a newer one")]
)
def test_a_loss_counts_for_the_generations_that_it_names(lost: int, is_lost: bool) -> None:
    assert play(RUNNING, CalledOver(lost, announced=False))[0].is_lost is is_lost


def test_a_loss_is_remembered_until_its_world_is_entered() -> None:
    state, _ = play(RUNNING, Broke("x"), Left(), CalledOver(4, announced=False), Called(make_place(4)))
    assert state.is_lost
    state, _ = play(state, Broke("a member was lost"), Left(), Called(make_place(5)))
    assert not state.is_lost


@pytest.mark.parametrize(
    ("state", "generation", "enters"),
    [
        pytest.param(State(generation=3), 4, True, id="newer"),
        pytest.param(State(generation=3), 3, False, id="the one that it left"),
        pytest.param(State(generation=3), 2, False, id="older"),
        pytest.param(RUNNING, 4, False, id="it is still in a world"),
        pytest.param(State(Stage.BROKEN, 3), 4, False, id="it has not left the broken one"),
    ],
)
def test_which_world_is_entered(state: State, generation: int, enters: bool) -> None:
    after, done = play(state, Called(make_place(generation)))
    assert done == ([Enter(make_place(generation))] if enters else [])
    assert after.generation == (generation if enters else 3)


def test_a_world_is_running_when_all_agree_on_its_state() -> None:
    state, _ = play(State(generation=3), Called(make_place(4)))
    assert state.stage is Stage.IDLE
    assert play(state, Entered())[0] == State(Stage.RUNNING, 4)


def test_a_place_survives_its_ways() -> None:
    there = Place(5, 3, 8, "10.0.0.1", 4000, group_rank=1, group_world_size=4, restarts=2)
    assert place.from_message(there.as_message()) == there
    assert place.from_environ(there.as_environ()) == there
    assert place.from_environ({"ELASTICJOB_GENERATION": "0"}) is None
    assert place.from_environ({}) is None
