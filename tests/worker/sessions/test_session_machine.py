"""The state machine of a session, as tables: no agent, no process group."""

from __future__ import annotations

import pytest

from elasticjob.channel import place
from elasticjob.channel.place import Place
from elasticjob.sessions.machine import (
    Abort,
    Action,
    AwaitLast,
    Broke,
    Called,
    CalledOver,
    Enter,
    Entered,
    Event,
    LastAgreed,
    Left,
    Promise,
    SayIdle,
    Stage,
    State,
    StepDone,
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


RUNNING = State(Stage.RUNNING, generation=3, size=2)


def test_a_rank_that_is_told_of_the_end_promises_the_step_that_it_may_be_in_and_waits_after_it() -> None:
    state, done = play(RUNNING, StepDone(), StepDone(), CalledOver(3, announced=True))
    assert (state.stage, done, state.is_lost) == (Stage.RUNNING, [Promise(3, 3)], False)
    state, done = play(state, StepDone())
    assert (state.stage, done) == (Stage.RUNNING, [AwaitLast()])
    state, done = play(state, LastAgreed(3, 3), Left())
    assert (state.stage, done) == (Stage.IDLE, [SayIdle(None)])


def test_it_goes_on_until_the_last_step_that_any_rank_has_promised() -> None:
    state, done = play(RUNNING, CalledOver(3, announced=True), StepDone(), LastAgreed(3, 3), StepDone())
    assert (state.stage, done) == (Stage.RUNNING, [Promise(3, 1), AwaitLast()])
    state, done = play(state, StepDone())
    assert (state.stage, done) == (Stage.INTERRUPTED, [])


def test_who_knows_the_last_step_early_does_not_wait() -> None:
    state, done = play(RUNNING, CalledOver(3, announced=True), LastAgreed(3, 2), StepDone(), StepDone())
    assert (state.stage, done) == (Stage.INTERRUPTED, [Promise(3, 1)])


def test_it_promises_once() -> None:
    _, done = play(RUNNING, CalledOver(3, announced=True), CalledOver(3, announced=True), CalledOver(4, announced=True))
    assert done == [Promise(3, 1)]


def test_an_end_that_is_announced_before_the_world_is_entered_is_promised_in_it() -> None:
    state, done = play(State(generation=3), CalledOver(4, announced=True), Called(make_place(4)))
    assert done == [Enter(make_place(4))]
    assert play(state, Entered())[1] == [Promise(4, 1)]


def test_steps_are_counted_anew_in_each_world() -> None:
    state, _ = play(RUNNING, StepDone(), CalledOver(3, announced=True), StepDone(), LastAgreed(3, 2), Left())
    state, _ = play(state, Called(make_place(4)), LastAgreed(3, 1), Entered())
    state, done = play(state, StepDone(), CalledOver(4, announced=True))
    assert (state.stage, done) == (Stage.RUNNING, [Promise(4, 2)]), "what the last world agreed on is over"


@pytest.mark.parametrize(("over", "stage"), [(3, Stage.INTERRUPTED), (2, Stage.RUNNING)])
def test_a_world_of_one_agrees_with_itself(over: int, stage: Stage) -> None:
    alone = State(Stage.RUNNING, generation=3, size=1)
    state, done = play(alone, CalledOver(over, announced=True), StepDone())
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
    assert play(state, Entered())[0] == State(Stage.RUNNING, 4, size=2)


def test_a_place_survives_its_ways() -> None:
    there = Place(5, 3, 8, "10.0.0.1", 4000, group_rank=1, group_world_size=4, restarts=2)
    assert place.from_message(there.as_message()) == there
    assert place.from_environ(there.as_environ()) == there
    assert place.from_environ({"ELASTICJOB_GENERATION": "0"}) is None
    assert place.from_environ({}) is None


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_steps_before_the_end_is_told_may_be_counted_at_once(steps: int) -> None:
    one_by_one, done = play(RUNNING, *(StepDone() for _ in range(steps)))
    assert (one_by_one, done) == play(RUNNING, StepDone(steps))
    assert play(one_by_one, CalledOver(3, announced=True))[1] == [Promise(3, steps + 1)]
