"""The agent's state machine, as tables: no hub, no store, no process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from elasticjob.agent import events, local_workers, machine, rules, stages
from elasticjob.agent.events import Action, Event, HubView
from elasticjob.agent.state import Stage, State
from elasticjob.channel import looks, stacks
from elasticjob.protocol import wire

NOW = 1000.0
STORE = wire.Store("10.0.0.1", 4000)
OTHER = wire.Store("10.0.0.2", 5000)
FAILURE = wire.Failure(3, message="a script's mistake")
CRASH = wire.Failure(3, message="the peer is gone", traceback="Traceback ...")
HANG = wire.Failure(3, message="no step", kind=wire.HANG)


def world(generation: int = 4, rank: int = 1, store: wire.Store = OTHER) -> wire.World:
    return wire.World(generation, rank, (1, 1), store)


def regroup(generation: int = 3, checkpoint: bool = False, reason: str = "x", grace: float = 10.0) -> wire.Regroup:
    return wire.Regroup(generation, reason, checkpoint, grace)


def hub_changed(directive: wire.Directive | None = None, **more: object) -> events.HubChanged:
    return events.HubChanged(HubView(directive=directive, connected=True, **more))  # type: ignore[arg-type]


def make_state(stage: Stage, generation: int = 3, *, sessions: bool = False, nproc: int = 1, **more: object) -> State:
    """An agent in this stage that has trained in `generation`."""
    phase = {Stage.READY: wire.READY, Stage.LAUNCHED: wire.STARTING, Stage.PREPARING: wire.STOPPING}.get(
        stage, wire.RUNNING if stage is Stage.RUNNING else wire.STOPPING
    )
    store = STORE if stage is Stage.READY else None
    said = wire.AgentState(phase, generation, store, nproc, "10.0.0.1", sessions)
    state = State(said, 30.0, stage=stage, ran=True, proven=sessions, **more)  # type: ignore[arg-type]
    if sessions and stage is Stage.READY:
        state = replace(state, idle=(events.Idle(1),))
    return state


def play(state: State, *events: Event, now: float = NOW) -> tuple[State, list[Action]]:
    done: list[Action] = []
    for event in events:
        state, actions = machine.step(state, event, now)
        done += actions
    return state, done


def phases(actions: Iterable[Action]) -> list[str]:
    return [action.state.phase for action in actions if isinstance(action, events.Publish)]


def kinds(actions: Iterable[Action]) -> list[str]:
    """The actions in their order; what is said by its phase."""
    return [action.state.phase if isinstance(action, events.Publish) else type(action).__name__ for action in actions]


def test_hung_workers_are_held_for_as_long_as_another_agent_may_examine_its_own() -> None:
    assert stages.HOLD > looks.ANSWER_SECONDS + stacks.PATIENCE + local_workers.DETAILS_SECONDS


@pytest.mark.parametrize("checkpoint", [False, True])
def test_sessions_end_with_their_world_if_the_hub_wants_other_ones(checkpoint: bool) -> None:
    """A rule of the job restarts it: what the sessions have in memory is what is sick. They save first, if they may."""
    order = replace(regroup(checkpoint=checkpoint, reason="rule"), fresh=True)
    state, done = play(make_state(Stage.RUNNING, sessions=True), hub_changed(order))
    if checkpoint:
        assert kinds(done) == ["Save"]
        state, done = play(state, events.Saved())
    assert kinds(done)[0] == "KillProcesses"
    assert done[0] == events.KillProcesses(frozenset())
    assert (state.stage, phases(done)) == (Stage.PAUSING, [wire.STOPPING])
    _, done = play(make_state(Stage.RUNNING), hub_changed(order))
    assert kinds(done) == [wire.STOPPING], "workers without a session always end"


def test_the_first_line_of_each_rank_that_a_rule_looks_for_is_told_until_there_is_a_new_world() -> None:
    signs = [wire.Sign("Ecc", 3, rank, 40, "ECC error") for rank in (2, 3, 2)]
    old, more = wire.Sign("Ecc", 2, 1), [wire.Sign(f"Rule{i}", 3) for i in range(wire.MAX_SIGNS)]
    state, done = play(make_state(Stage.RUNNING), *(events.Wrote(sign) for sign in (*signs, old)))
    assert state.published.signs == tuple(signs[:2])
    assert len(phases(done)) == 2, "the second line of a rank is no news"
    state, _ = play(state, *(events.Wrote(sign) for sign in more))
    assert len(state.published.signs) == wire.MAX_SIGNS
    ready = replace(make_state(Stage.READY), published=replace(state.published, phase=wire.READY, store=STORE))
    state, _ = play(ready, hub_changed(world(4)), events.Entered(4))
    assert state.published.signs == ()


def test_it_says_what_it_looks_for() -> None:
    state, done = play(make_state(Stage.IDLE), events.Watches("0123"))
    assert state.published.watches == "0123" and len(phases(done)) == 1


def test_a_newcomer_joins_a_world_and_leaves_it() -> None:
    state = State(wire.AgentState(address="10.0.0.1"), 30.0)
    state, done = play(state, hub_changed(), events.Sized(2), events.Wanted())
    assert kinds(done) == [wire.STARTING, "CloseStores", "OpenStore"]
    state, done = play(state, events.Listening(STORE), hub_changed(world(1)))
    assert kinds(done) == [wire.READY, "Enter"]
    assert done[0] == events.Publish(wire.AgentState(wire.READY, 0, STORE, 2, "10.0.0.1"))
    state, done = play(state, events.Entered(1))
    assert done == [
        events.Publish(wire.AgentState(wire.RUNNING, 1, None, 2, "10.0.0.1")),
        events.Begin(world(1), to_sessions=False),
    ]
    state, done = play(state, hub_changed(regroup(1)), events.Parked(), events.Stopped(), events.Wanted())
    assert kinds(done) == [wire.STOPPING, "Terminate", "CheckStopped", "CloseStores", "OpenStore"]
    state, done = play(state, events.Listening(OTHER))
    assert (state.stage, state.published.store, state.generation) == (Stage.READY, OTHER, 1)


# Fencing.


@pytest.mark.parametrize(
    ("directive", "ends"),
    [
        pytest.param(regroup(3), True, id="ours is over"),
        pytest.param(regroup(7), True, id="it comes back with an old generation"),
        pytest.param(world(4), True, id="a newer world exists"),
        pytest.param(wire.Stop("done"), True, id="stop"),
        pytest.param(regroup(2), False, id="an older one is over"),
        pytest.param(world(3), False, id="our world, repeated"),
        pytest.param(None, False, id="nothing was said"),
    ],
)
@pytest.mark.parametrize("sessions", [False, True], ids=["workers", "sessions"])
def test_an_old_generation_is_stopped_before_anything_else(
    directive: wire.Directive | None, ends: bool, sessions: bool
) -> None:
    state, done = play(make_state(Stage.RUNNING, sessions=sessions), hub_changed(directive))
    if not ends:
        assert (state.stage, done) == (Stage.RUNNING, [])
    elif sessions:
        assert kinds(done) == [wire.STOPPING, "CloseStores", "AskPause"]
        assert done[-1] == events.AskPause(3, announced=False)
    else:
        assert kinds(done) == [wire.STOPPING]
        state, done = play(state, events.Parked())
        assert kinds(done) == ["Terminate", "CheckStopped"]


@pytest.mark.parametrize("stage", [Stage.ENDING, Stage.SAVING, Stage.STOPPING, Stage.STOPPED, Stage.PAUSING])
def test_no_world_is_entered_before_the_workers_are_out_of_the_last_one(stage: Stage) -> None:
    state = make_state(stage, sessions=stage is Stage.PAUSING, until=NOW + 60, granted=60.0)
    state, done = play(state, hub_changed(world(4)))
    assert "Enter" not in kinds(done)
    assert wire.READY not in phases(done)


@pytest.mark.parametrize(
    ("directive", "rank", "store", "enters"),
    [
        pytest.param(4, 1, OTHER, True, id="newer"),
        pytest.param(3, 1, OTHER, False, id="already run"),
        pytest.param(4, 0, STORE, True, id="we host it and listen"),
        pytest.param(4, 0, wire.Store("10.0.0.1", 4001), False, id="made for an old store of ours"),
    ],
)
def test_which_world_is_entered(directive: int, rank: int, store: wire.Store, enters: bool) -> None:
    state, done = play(make_state(Stage.READY), hub_changed(world(directive, rank, store)))
    assert kinds(done) == (["Enter"] if enters else [])
    assert state.stage is (Stage.ENTERING if enters else Stage.READY)


def test_a_world_that_it_will_not_enter_is_given_up() -> None:
    state, done = play(make_state(Stage.READY), hub_changed(regroup(5)))
    assert done == [events.Publish(replace(make_state(Stage.READY).published, generation=5))]
    state, done = play(state, hub_changed(world(5)))
    assert (state.stage, done) == (Stage.READY, [])


def test_a_world_that_ends_before_its_store_answers_is_named_and_a_new_store_opened() -> None:
    state, done = play(make_state(Stage.READY), hub_changed(world(4)), hub_changed(regroup(4)), events.Missed(4))
    assert kinds(done) == ["Enter", wire.STOPPING, "CloseStores", "OpenStore"]
    assert state.generation == 4


def test_a_late_answer_of_a_store_starts_nobody() -> None:
    state, _ = play(make_state(Stage.READY), hub_changed(world(4)), hub_changed(regroup(4)), events.Missed(4))
    state, done = play(state, events.Entered(4))
    assert (state.stage, done) == (Stage.PREPARING, [])


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.PREPARING])
def test_a_store_that_opens_late_makes_nobody_ready(stage: Stage) -> None:
    assert wire.READY not in phases(play(make_state(stage), events.Listening(OTHER))[1])


def test_a_late_answer_brings_no_world_to_sessions_that_died_meanwhile() -> None:
    state, _ = play(make_state(Stage.READY, sessions=True), hub_changed(world(4)), events.Wanted(FAILURE))
    state, done = play(state, events.Entered(4))
    assert (state.stage, state.published.phase, done) == (Stage.LAUNCHED, wire.STARTING, [])


# The end of a world, for workers that are started anew.


def test_workers_save_before_they_are_stopped_and_hurry_when_somebody_is_lost() -> None:
    state, done = play(make_state(Stage.RUNNING), hub_changed(regroup(3, checkpoint=True)), events.Parked(FAILURE))
    assert kinds(done) == [wire.STOPPING, "Save"]
    assert play(state, events.Tick(), now=NOW + 9.9)[1] == []
    for event in (events.Saved(), hub_changed(regroup(3))):
        after, done = play(state, event)
        assert after.stage is Stage.STOPPING
        assert kinds(done)[0] == "Terminate"
    assert play(state, events.Tick(), now=NOW + 10.0)[0].stage is Stage.STOPPING
    assert state.failure is None, "they were asked to end"


def test_torch_looks_at_no_worker_while_they_are_ended() -> None:
    state = make_state(Stage.RUNNING)
    assert not rules.holds_torch(state)
    state, _ = play(state, hub_changed(regroup()))
    assert rules.holds_torch(state)
    state, _ = play(state, events.Parked(), events.Stopped())
    assert rules.holds_torch(state)
    sessions, _ = play(make_state(Stage.RUNNING, sessions=True), hub_changed(regroup()))
    assert not rules.holds_torch(sessions), "sessions stay, and torch restarts those that die"


def test_workers_that_do_not_end_are_killed() -> None:
    state, _ = play(make_state(Stage.RUNNING), hub_changed(regroup()), events.Parked())
    assert kinds(play(state, events.Tick(), now=NOW + stages.LOSS_GRACE - 0.01)[1]) == ["CheckStopped"]
    assert kinds(play(state, events.Tick(), now=NOW + stages.LOSS_GRACE)[1]) == ["Kill"]
    assert rules.find_wake(state, NOW) == pytest.approx(NOW + rules.LOOK_EVERY)


@pytest.mark.parametrize(
    ("parked", "stopped", "told"),
    [
        pytest.param(FAILURE, None, FAILURE, id="it had failed when the hub called"),
        pytest.param(None, CRASH, CRASH, id="it was about to end by an exception of its own"),
        pytest.param(None, FAILURE, None, id="it ended by our signal"),
        pytest.param(None, None, None, id="it ran"),
    ],
)
def test_what_is_said_of_workers_that_were_stopped(
    parked: wire.Failure | None, stopped: wire.Failure | None, told: wire.Failure | None
) -> None:
    state, _ = play(make_state(Stage.RUNNING), hub_changed(regroup()), events.Parked(parked), events.Stopped(stopped))
    state, _ = play(state, events.Wanted(FAILURE), events.Listening(STORE))
    assert state.published.failure == told


@pytest.mark.parametrize(
    ("found", "directive", "told"),
    [
        pytest.param(FAILURE, None, FAILURE, id="torch knows why"),
        pytest.param(None, None, wire.Failure(3, message="a worker failed"), id="nobody knows why"),
        pytest.param(FAILURE, regroup(), FAILURE, id="the others felt it first"),
        pytest.param(None, regroup(), None, id="a loss"),
        pytest.param(FAILURE, regroup(checkpoint=True), None, id="they were asked to end"),
    ],
)
def test_what_is_said_of_workers_that_ended(
    found: wire.Failure | None, directive: wire.Directive | None, told: wire.Failure | None
) -> None:
    state, _ = play(make_state(Stage.RUNNING, hub=HubView(directive=directive)), events.Wanted(found))
    state, _ = play(state, events.Listening(STORE))
    assert (state.published.phase, state.published.failure) == (wire.READY, told)


# Hangs.


def test_a_hang_is_told_and_the_world_ends_when_all_have_looked() -> None:
    state, done = play(make_state(Stage.RUNNING), events.Hung(), events.Examined(HANG))
    assert kinds(done) == ["Examine", wire.RUNNING]
    assert state.published.failure == HANG
    state, done = play(state, hub_changed(regroup(reason=wire.HUNG)), events.Parked())
    assert (state.stage, done) == (Stage.HOLDING, [])
    state, done = play(state, events.Tick(), now=NOW + stages.HOLD)
    assert kinds(done) == [wire.STOPPING, "Kill"]
    state, _ = play(state, events.Stopped(), events.Wanted(FAILURE), events.Listening(STORE))
    assert state.published.failure == HANG


def test_workers_that_do_nothing_are_told_and_nothing_ends() -> None:
    """One rank may compute while the others wait for it: only the operator sees all of them."""
    state, done = play(make_state(Stage.RUNNING), events.Hung(quiet=True))
    assert (state.stage, state.published.quiet, kinds(done)) == (Stage.RUNNING, state.generation, [wire.RUNNING])
    state, done = play(state, events.Hung(quiet=False, beside=True))
    assert (state.published.quiet, state.published.beside) == (0, state.generation)
    state, done = play(state, events.Hung(quiet=False))
    assert (state.published.quiet, state.published.beside, kinds(done)) == (0, 0, [wire.RUNNING])
    assert play(make_state(Stage.READY), events.Hung(quiet=True))[1] == []


def test_a_hang_of_others_is_examined_here_too() -> None:
    state, done = play(make_state(Stage.RUNNING), hub_changed(regroup(reason=wire.HUNG)))
    assert (state.stage, kinds(done)) == (Stage.EXAMINING, ["Examine"])


@pytest.mark.parametrize(("sessions", "does"), [(False, []), (True, ["Kill"])])
def test_a_hub_that_does_not_answer_a_hang_is_not_waited_for(sessions: bool, does: list[str]) -> None:
    state, _ = play(make_state(Stage.RUNNING, sessions=sessions), events.Hung(), events.Examined(HANG))
    assert play(state, events.Tick(), now=NOW + machine.HUNG_PATIENCE - 0.1) == (state, [])
    state, done = play(state, events.Tick(), now=NOW + machine.HUNG_PATIENCE)
    assert kinds(done) == does
    assert state.stage is (Stage.RUNNING if sessions else Stage.HOLDING)


def test_sessions_that_wait_in_a_hung_world_keep_their_memory() -> None:
    state, _ = play(make_state(Stage.RUNNING, sessions=True, nproc=2), hub_changed(regroup(reason=wire.HUNG)))
    state, _ = play(state, events.Examined(HANG, frozenset({7})))
    state, done = play(state, events.Tick(), now=NOW + stages.HOLD)
    assert done[0] == events.KillProcesses(frozenset({7}))
    assert (state.stage, state.published.failure) == (Stage.PAUSING, HANG)


# Sessions.


def test_sessions_go_from_world_to_world() -> None:
    state, done = play(make_state(Stage.RUNNING, sessions=True, nproc=2), hub_changed(regroup(checkpoint=True)))
    assert kinds(done) == [wire.STOPPING, "AskPause"]
    assert done[-1] == events.AskPause(3, announced=True)
    state, done = play(state, hub_changed(regroup()))
    assert kinds(done) == ["CloseStores", "AskPause"], "somebody was lost meanwhile"
    state, done = play(state, events.Idle(1))
    assert done == []
    state, done = play(state, events.Idle(2), events.Listening(STORE), hub_changed(world(4)), events.Entered(4))
    assert kinds(done) == ["CloseStores", "OpenStore", wire.READY, "Enter", wire.RUNNING, "Begin"]
    assert done[-1] == events.Begin(world(4), to_sessions=True)
    assert (state.stage, state.idle) == (Stage.RUNNING, ())


def test_the_hub_is_told_which_shards_the_sessions_have_after_a_loss() -> None:
    running = make_state(Stage.RUNNING, sessions=True, nproc=2)
    idle = (events.Idle(1, shards=(4, 2)), events.Idle(2, shards=(5, 4)))
    state, _ = play(running, hub_changed(regroup()), *idle, events.Listening(STORE))
    assert (state.published.phase, state.published.shards) == (wire.READY, (2, 4, 5))
    state, _ = play(state, hub_changed(world(4)), events.Entered(4))
    assert state.published.shards == ()


def test_a_session_that_waits_for_a_lost_member_is_freed_although_another_has_left() -> None:
    _, done = play(make_state(Stage.RUNNING, sessions=True, nproc=2), events.Idle(1, "closed"), hub_changed(regroup()))
    assert kinds(done) == [wire.STOPPING, "CloseStores", "AskPause"]


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        pytest.param(None, [], id="it has ended the last step"),
        pytest.param("closed", ["CloseStores", "AskPause"], id="it was thrown out of the world"),
    ],
)
def test_no_last_step_is_waited_for_once_a_session_has_left_without_it(error: str | None, asked: list[str]) -> None:
    """Found by CI: a pod was killed while another one left. The hub may hear of the loss much later."""
    running = make_state(Stage.RUNNING, sessions=True, nproc=2)
    state, _ = play(running, hub_changed(regroup(checkpoint=True)))
    state, done = play(state, events.Idle(1, error))
    assert kinds(done) == asked
    assert all(action == events.AskPause(3, announced=False) for action in done[1:])
    assert play(state, events.Tick())[1] == [], "once is enough"


def test_a_session_that_stays_is_killed() -> None:
    state, _ = play(make_state(Stage.RUNNING, sessions=True, nproc=2), hub_changed(regroup()), events.Idle(1))
    patience = NOW + 30.0 + stages.PATIENCE
    assert play(state, events.Tick(), now=patience - 0.1)[1] == []
    state, done = play(state, events.Tick(), now=patience)
    assert done == [events.KillSessions(frozenset({1}))]
    assert state.stage is Stage.LAUNCHED


def test_a_session_that_is_blocked_in_a_lost_world_is_killed_at_once() -> None:
    """Its connections are shut down, so nothing can end what it waits for."""
    running = make_state(Stage.RUNNING, sessions=True, nproc=2)
    lost, _ = play(running, hub_changed(regroup()), events.Idle(1))
    assert play(lost, events.Blocked(False), events.Blocked(True, is_stopping=False), now=NOW + 4)[1] == []
    assert play(lost, events.Blocked(True), now=NOW + 4)[1] == [events.KillSessions(frozenset({1}))]
    announced, _ = play(running, hub_changed(regroup(3, checkpoint=True)), events.Idle(1))
    assert play(announced, events.Blocked(True), now=NOW + 4)[1] == [], "others may still arrive"


LOST = wire.Failure(3, 1, 1, signal="SIGKILL")


def test_one_session_is_replaced_and_the_others_keep_their_memory() -> None:
    running = make_state(Stage.RUNNING, sessions=True, nproc=3)
    state, done = play(running, events.Replaced(frozenset({2}), frozenset({4}), LOST), events.Gone(2))
    assert kinds(done) == [wire.STOPPING, "CloseStores", "AskPause"]
    assert state.published.failure == LOST
    assert done[-1] == events.AskPause(3, announced=False), "nobody ends a last step with it"
    state, done = play(state, events.Idle(1, "closed"), hub_changed(regroup()))
    assert done == []
    state, done = play(state, events.Idle(3, "closed"))
    assert kinds(done) == [wire.STARTING], "the others wait for the new one, which may take as long as any to start"
    assert state.published.failure == LOST
    state, done = play(state, events.Idle(4), events.Listening(STORE), hub_changed(world(4)), events.Entered(4))
    assert kinds(done) == ["CloseStores", "OpenStore", wire.READY, "Enter", wire.RUNNING, "Begin"]
    assert state.replaced == frozenset()


def test_a_session_is_not_counted_twice_if_it_fails_after_it_has_left_the_world() -> None:
    running = make_state(Stage.RUNNING, sessions=True, nproc=2)
    state, _ = play(running, hub_changed(regroup()), events.Idle(1))
    state, done = play(state, events.Replaced(frozenset({1}), frozenset({3}), LOST))
    assert (state.stage, kinds(done)) == (Stage.PAUSING, []), "the other one is still in the world"
    assert play(state, events.Idle(2))[0].stage is Stage.LAUNCHED


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(make_state(Stage.RUNNING, sessions=True), True, id="a session"),
        pytest.param(make_state(Stage.PAUSING, sessions=True), True, id="that leaves its world"),
        pytest.param(make_state(Stage.READY, sessions=True), True, id="that waits for one"),
        pytest.param(make_state(Stage.RUNNING), False, id="a script without one"),
        pytest.param(make_state(Stage.LAUNCHED, sessions=True, launched=True), False, id="that has never come so far"),
        pytest.param(make_state(Stage.PAUSING, sessions=True, replaced=frozenset({7})), False, id="a new one"),
        pytest.param(make_state(Stage.SAVING, sessions=True), False, id="that is to end"),
        pytest.param(make_state(Stage.RUNNING, sessions=True, leave_at=NOW), False, id="whose pod is to end"),
    ],
)
def test_what_can_be_replaced(state: State, expected: bool) -> None:
    assert rules.may_replace(state, {7}) is expected


def test_what_broke_the_world_is_told_where_the_hub_did_not_order_it() -> None:
    running = make_state(Stage.RUNNING, sessions=True)
    state, _ = play(running, events.Idle(1, "connection closed"), events.Listening(STORE))
    assert state.published.failure == wire.Failure(3, message="connection closed")
    state, _ = play(running, hub_changed(regroup()), events.Idle(1, "connection closed"), events.Listening(STORE))
    assert state.published.failure is None


def test_a_worker_that_dies_while_its_pod_is_ready_takes_the_word_back() -> None:
    state, done = play(make_state(Stage.READY, sessions=True), events.Gone(1), hub_changed(world(4)))
    assert (state.stage, kinds(done)) == (Stage.LAUNCHED, [wire.STARTING])


def test_a_session_that_dies_is_started_anew_and_the_world_hears_why() -> None:
    state, done = play(make_state(Stage.RUNNING, sessions=True), events.Gone(1), events.Wanted(FAILURE))
    assert kinds(done) == [wire.STARTING, "Launch"]
    assert state.published.failure == FAILURE
    state, done = play(state, hub_changed(regroup()))
    assert kinds(done) == ["CloseStores"], "nobody is to wait in our store"
    state, done = play(state, events.Idle(2), events.Listening(STORE))
    assert (state.published.phase, state.published.failure) == (wire.READY, FAILURE)


def test_a_script_that_makes_no_session_is_started_in_a_world() -> None:
    state = State(wire.AgentState(), 30.0)
    state, done = play(state, hub_changed(welcome=wire.Welcome(1, 3, in_process=True)), events.Wanted())
    assert kinds(done) == [wire.STARTING, "Launch"]
    assert state.keeps_memory
    state, done = play(state, events.Wanted(FAILURE))
    assert kinds(done) == [wire.STARTING, "Log", "CloseStores", "OpenStore"]
    state, _ = play(state, events.Listening(STORE))
    assert (state.published.phase, state.published.failure, state.keeps_memory) == (wire.READY, None, False)


@pytest.mark.parametrize(
    ("wants", "hub", "early"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False)],
)
def test_when_workers_are_started_before_there_is_a_world(wants: bool | None, hub: bool, early: bool) -> None:
    state = State(wire.AgentState(), 30.0, wants, hub=HubView(welcome=wire.Welcome(1, 3, in_process=hub)))
    assert rules.starts_early(state) is early
    assert kinds(play(state, events.Wanted())[1])[-1] == ("Launch" if early else "OpenStore")


@pytest.mark.parametrize(
    ("welcome", "ran", "waits"),
    [
        pytest.param(None, False, False, id="the hub has not answered"),
        pytest.param(wire.Welcome(1, 3), False, False, id="nobody trains"),
        pytest.param(wire.Welcome(1, 3, training=True), False, True, id="others train, and would wait for it"),
        pytest.param(wire.Welcome(1, 3, training=True), True, False, id="it was one of them"),
        pytest.param(wire.Welcome(1, 3, training=True, in_process=True), False, False, id="its sessions start at once"),
    ],
)
def test_a_joiner_imports_before_it_is_ready(welcome: wire.Welcome | None, ran: bool, waits: bool) -> None:
    state = State(wire.AgentState(), 30.0, None, hub=HubView(welcome=welcome), ran=ran)
    assert rules.awaits_imports(state) is waits


@pytest.mark.parametrize(
    ("stage", "generation", "wants", "kept"),
    [
        pytest.param(Stage.RUNNING, 3, None, True, id="they run"),
        pytest.param(Stage.RUNNING, 2, None, False, id="of an earlier world"),
        pytest.param(Stage.ENDING, 3, None, False, id="too late: they are stopped as others are"),
        pytest.param(Stage.RUNNING, 3, False, False, id="the author forbids it"),
    ],
)
def test_when_made_sessions_are_kept(stage: Stage, generation: int, wants: bool | None, kept: bool) -> None:
    state, _ = play(make_state(stage, wants_sessions=wants), events.SessionsMade(generation))
    assert state.keeps_memory is kept


def test_sessions_that_nobody_continues_save_first() -> None:
    running = make_state(Stage.RUNNING, sessions=True)
    state, done = play(running, hub_changed(wire.Stop("over", checkpoint=True, grace_seconds=10.0)))
    assert (state.stage, kinds(done)) == (Stage.SAVING, ["Save"])
    state, done = play(state, events.Saved())
    assert kinds(done) == [wire.STOPPING, "AskPause"]
    state, done = play(state, events.Idle(1))
    assert (state.stage, state.end) == (Stage.OVER, events.Exit(0, "over"))
    state, done = play(state, events.Parked())
    assert kinds(done) == ["Terminate", "CheckStopped"]
    assert play(state, events.Stopped(), events.Wanted())[1] == [events.Exit(0, "over")]


@pytest.mark.parametrize("stage", [Stage.READY, Stage.PAUSING, Stage.LAUNCHED])
def test_sessions_that_wait_for_a_world_save_before_nobody_continues_them(stage: Stage) -> None:
    stop = hub_changed(wire.Stop("over", checkpoint=True, grace_seconds=10.0))
    state, done = play(replace(make_state(stage, sessions=True), idle=()), events.Idle(1, made=7), stop)
    if stage is not Stage.READY:  # a store was to be opened
        state, done = play(replace(make_state(stage, sessions=True), idle=()), stop, events.Idle(1, made=7))
    assert (state.stage, kinds(done)[-2:]) == (Stage.SAVING, [wire.STOPPING, "Save"])
    assert done[-1] == events.Save(alone=7)
    state, done = play(state, events.Saved())
    assert (state.stage, state.end) == (Stage.OVER, events.Exit(0, "over"))
    assert "Save" not in kinds(done), "once"


@pytest.mark.parametrize(
    ("directive", "more"),
    [
        pytest.param(wire.Stop("over"), {}, id="nothing is to be saved"),
        pytest.param(wire.Stop("over", checkpoint=True, grace_seconds=10.0), {"deadline": NOW}, id="they have saved"),
        pytest.param(None, {"leave_at": NOW}, id="the others go on"),
    ],
)
def test_sessions_that_wait_for_a_world_do_not_save_otherwise(
    directive: wire.Directive | None, more: dict[str, float]
) -> None:
    state, done = play(replace(make_state(Stage.READY, sessions=True), **more), hub_changed(directive))  # type: ignore[arg-type]
    assert (state.stage, kinds(done)) == (Stage.OVER, [])


# Leaving.


def test_sigterm_trains_on_until_the_others_go_on() -> None:
    state, done = play(make_state(Stage.RUNNING), events.Terminated())
    assert phases(done) == [wire.LEAVING]
    assert rules.find_wake(state, NOW) == state.leave_at == NOW + 25.0
    assert play(state, events.Tick(), now=NOW + 24.9)[1] == []
    for event, now in ((hub_changed(regroup()), NOW), (hub_changed(rejected=True), NOW), (events.Tick(), NOW + 25.0)):
        assert phases(play(state, event, now=now)[1]) == [wire.STOPPING]
    assert play(state, events.Terminated()) == (state, [])


def test_a_hub_that_refuses_the_pod_ends_its_workers() -> None:
    assert phases(play(make_state(Stage.RUNNING), hub_changed(fatal="no such pod"))[1]) == [wire.STOPPING]


@pytest.mark.parametrize(
    ("event", "end"),
    [
        pytest.param(events.Terminated(), (0, False), id="SIGTERM"),
        pytest.param(hub_changed(wire.Stop("done")), (0, False), id="stop"),
        pytest.param(hub_changed(wire.Stop("broken", ok=False)), (1, False), id="stop after a failure"),
        pytest.param(hub_changed(fatal="no such pod"), (1, True), id="refused"),
    ],
)
def test_what_ends_the_waiting_for_a_world(event: Event, end: tuple[int, bool]) -> None:
    state, done = play(make_state(Stage.READY), event)
    (action,) = done
    assert isinstance(action, events.Exit)
    assert ((action.code, action.is_error), state.stage) == (end, Stage.OVER)
    assert play(make_state(Stage.STOPPED), event, events.Wanted())[0].stage is Stage.OVER


def test_the_last_word_is_said_once() -> None:
    state, done = play(make_state(Stage.RUNNING), events.Finished(), events.Ended(wire.SUCCEEDED))
    assert phases(done) == [wire.SUCCEEDED]
    assert play(state, hub_changed(regroup()))[1] == [], "what succeeded is not disturbed"


@pytest.mark.parametrize("stage", [Stage.RUNNING, Stage.PAUSING, Stage.READY])
def test_a_pod_that_is_not_trusted_any_more_gets_no_further_world(stage: Stage) -> None:
    failure = wire.Failure(3, message="corrupt state: after step 40, the parameters differ")
    state, done = play(make_state(stage, sessions=True), events.Ended(wire.FAILED, failure))
    assert phases(done) == [wire.FAILED]
    assert state.published.failure == failure
    end = events.Exit(1, "corrupt state: after step 40, the parameters differ", is_error=True)
    assert play(state, hub_changed(regroup()), events.Wanted())[1] == [end]


# The grace of a world that ends.


def test_a_world_whose_members_are_all_blocked_gets_no_more_grace() -> None:
    """The agent says what it sees; the hub, which knows of all members, takes the grace back."""
    ending = regroup(3, checkpoint=True)
    state, done = play(make_state(Stage.RUNNING), hub_changed(ending), events.Parked(), events.Saved())
    assert events.Terminate(has_grace=True) in done
    state, done = play(state, events.Blocked(True), events.Blocked(True), now=NOW + 1)
    assert [one.state.blocked for one in done if isinstance(one, events.Publish)] == [True], "it is said once"
    state, done = play(state, events.Blocked(False), now=NOW + 1)
    assert [one.state.blocked for one in done if isinstance(one, events.Publish)] == [False]
    state, done = play(state, events.Blocked(True), hub_changed(regroup(3)), now=NOW + 2)
    assert isinstance(done[-1], events.Kill)
    state, done = play(state, events.Stopped(), events.Wanted(), events.Listening(STORE), now=NOW + 3)
    assert not state.published.blocked


@pytest.mark.parametrize("seconds", [3.0, 10.0], ids=["it answers", "it does not answer"])
def test_what_a_script_gets_to_save_and_to_stop_is_one_grace(seconds: float) -> None:
    state, _ = play(make_state(Stage.RUNNING), hub_changed(regroup(3, checkpoint=True, grace=10.0)), events.Parked())
    state, done = play(state, events.Saved() if seconds < 10 else events.Tick(), now=NOW + seconds)
    assert events.Terminate(has_grace=seconds < 10) in done
    end = max(NOW + 10.0, NOW + seconds + stages.LOSS_GRACE)
    assert kinds(play(state, events.Tick(), now=end - 0.01)[1]) == ["CheckStopped"]
    assert kinds(play(state, events.Tick(), now=end)[1]) == ["Kill"]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        pytest.param(replace(CRASH, exit_code=1), True, id="it raised"),
        pytest.param(wire.Failure(3, exit_code=139, signal="SIGSEGV"), True, id="it crashed"),
        pytest.param(wire.Failure(3, exit_code=143, signal="SIGTERM"), False, id="it has no handler"),
        pytest.param(wire.Failure(3, exit_code=143), False, id="its handler ends so"),
        pytest.param(wire.Failure(3, exit_code=137, signal="SIGKILL"), False, id="it was killed"),
        pytest.param(None, False, id="it ended well"),
    ],
)
@pytest.mark.parametrize("may_save", [True, False])
def test_a_worker_that_fails_while_it_may_save_is_told(found: wire.Failure | None, told: bool, may_save: bool) -> None:
    """The world ends without a failure, and is formed again without a charge; but the steps since are lost."""
    state, _ = play(make_state(Stage.RUNNING), hub_changed(regroup(3, checkpoint=may_save)), events.Parked())
    state, _ = play(state, events.Saved(), events.Stopped(found), events.Wanted(), events.Listening(STORE))
    assert state.published.phase == wire.READY
    assert state.published.unsaved == (found if told and may_save else None)
    if may_save:
        assert state.published.failure is None
    state, _ = play(state, hub_changed(world(4)), events.Entered(4))
    assert state.published.unsaved is None


def test_a_session_that_is_stopped_saves_and_leaves_within_one_grace() -> None:
    stop = wire.Stop("over", checkpoint=True, grace_seconds=10.0)
    state, done = play(make_state(Stage.RUNNING, sessions=True), hub_changed(stop))
    assert kinds(done) == ["Save"]
    state, done = play(state, events.Saved(), now=NOW + 2.0)
    assert "AskPause" in kinds(done)
    state, done = play(state, events.Tick(), now=NOW + 9.9 + stages.PATIENCE)
    assert kinds(done) == []
    state, done = play(state, events.Tick(), now=NOW + 10 + stages.PATIENCE)
    assert "KillSessions" in kinds(done)


@pytest.mark.parametrize(
    ("directive", "expected"),
    [
        pytest.param(None, 19.0, id="the hub is away"),
        pytest.param(world(3), 19.0, id="its own time is up"),
        pytest.param(regroup(3, checkpoint=True), 19.0, id="it may save"),
        pytest.param(wire.Stop("over", checkpoint=True), 19.0, id="it may save, and stops"),
        pytest.param(regroup(2), 19.0, id="an older world ended"),
        pytest.param(regroup(3), 0.0, id="nothing can be saved"),
        pytest.param(wire.Stop("over"), 0.0, id="nothing can be saved, and it stops"),
    ],
)
def test_the_grace_of_a_pod_that_is_terminated(directive: wire.Directive | None, expected: float) -> None:
    """Its own grace period limits it, unless the hub knows that nothing can be saved."""
    state, _ = play(make_state(Stage.RUNNING), hub_changed(directive), events.Terminated())
    assert rules.find_grace(replace(state, stage=Stage.ENDING), NOW + 10) == expected


def test_a_terminated_pod_whose_world_is_blocked_gets_no_more_grace() -> None:
    state, done = play(make_state(Stage.RUNNING), events.Terminated(), hub_changed(regroup(3, checkpoint=True)))
    state, done = play(state, events.Parked(), events.Saved())
    assert events.Terminate(has_grace=True) in done
    assert not any(isinstance(one, events.Kill) for one in play(state, events.Tick(), now=NOW + 2)[1])
    _, done = play(state, hub_changed(regroup(3)), now=NOW + 2)
    assert isinstance(done[-1], events.Kill)


def test_nobody_looks_whether_workers_without_a_grace_are_blocked() -> None:
    _, done = play(make_state(Stage.RUNNING), hub_changed(regroup(3)), events.Parked())
    assert events.Terminate(has_grace=False) in done


def test_the_hub_hears_while_all_workers_of_a_running_world_wait() -> None:
    waits, works = events.Blocked(True, is_stopping=False), events.Blocked(False, is_stopping=False)
    state, done = play(make_state(Stage.RUNNING), waits, waits, works, waits)
    assert [one.state.blocked for one in done if isinstance(one, events.Publish)] == [True, False, True]
    _, done = play(state, hub_changed(regroup(3)))
    told = [(one.state.phase, one.state.blocked) for one in done if isinstance(one, events.Publish)]
    assert told == [(wire.STOPPING, False)], "that they waited is no evidence that they cannot save"


def test_what_was_seen_of_running_workers_comes_too_late_when_they_stop() -> None:
    for stage, event in (
        (Stage.STOPPING, events.Blocked(True, is_stopping=False)),
        (Stage.READY, events.Blocked(True, is_stopping=False)),
        (Stage.RUNNING, events.Blocked(True)),
    ):
        _, done = play(make_state(stage), event)
        assert not [one for one in done if isinstance(one, events.Publish)], stage


def test_workers_that_have_stopped_are_not_blocked() -> None:
    state, done = play(make_state(Stage.STOPPED), events.Blocked(True))
    assert done == []
    assert not state.published.blocked


def test_a_member_that_restores_says_so_until_its_workers_run() -> None:
    state = make_state(Stage.ENTERING, world=world())
    state, actions = play(state, events.Kept(wire.Checkpoint(7, 1)))
    assert [a.state.checkpoint for a in actions if isinstance(a, events.Publish)] == [wire.Checkpoint(7, 1, True)]
    state, actions = play(state, events.Kept(wire.Checkpoint(8, 2)), events.Entered(4))
    assert state.stage is Stage.RUNNING
    assert state.published.checkpoint == wire.Checkpoint(8, 2)
    state, actions = play(state, events.Kept(wire.Checkpoint(8, 2)))
    assert not actions, "nothing is new"


@pytest.mark.parametrize(
    ("directive", "leave_at", "size", "seconds", "all_leave"),
    [
        pytest.param(None, None, 2, 0.0, False, id="nothing ends"),
        pytest.param(wire.Regroup(3, "scale-up", True, 20.0), None, 2, 0.0, False, id="the world changes"),
        pytest.param(wire.Stop("suspended", True, True, 20.0), None, 2, 20.0, True, id="all pods are stopped"),
        pytest.param(wire.Stop("completed"), None, 2, 0.0, True, id="there is nothing to save"),
        pytest.param(wire.Regroup(3, "pod-leaving", True, 20.0), NOW + 10.0, 2, 15.0, False, id="one of two pods goes"),
        pytest.param(wire.Regroup(3, "pod-leaving", True, 20.0), NOW + 10.0, 1, 15.0, True, id="the only pod goes"),
        pytest.param(wire.Stop("the job is gone", True, True, 30.0), NOW + 10.0, 2, 15.0, True, id="a deleted job"),
        pytest.param(wire.Stop("the job is gone", True, True, 30.0), NOW - 20.0, 2, 0.0, True, id="its time is up"),
    ],
)
def test_how_long_the_last_checkpoint_may_take_to_the_archive(
    directive: wire.Directive | None, leave_at: float | None, size: int, seconds: float, all_leave: bool
) -> None:
    world = wire.World(3, 0, (1,) * size, STORE)
    state = make_state(Stage.STOPPED, leave_at=leave_at, world=world)
    state = replace(state, hub=HubView(directive=directive))
    assert rules.find_time_to_archive(state, NOW) == seconds
    assert rules.do_all_leave(state) is all_leave


CODE, OLDER = wire.Code(2, "2" * 64), wire.Code(1, "1" * 64)


def test_workers_without_a_session_run_the_code_of_their_world() -> None:
    found = replace(world(4), code=CODE)
    state, done = play(make_state(Stage.READY), hub_changed(found), events.Entered(4))
    assert state.code == CODE
    assert done[-1] == events.Begin(found, to_sessions=False)


def test_sessions_that_end_for_an_update_start_again_with_its_code() -> None:
    order = replace(regroup(checkpoint=True, reason="update"), fresh=True, code=CODE)
    state, done = play(make_state(Stage.RUNNING, sessions=True), hub_changed(order), events.Saved(), events.Wanted())
    assert (state.stage, state.code) == (Stage.LAUNCHED, CODE)
    assert events.Launch(CODE) in done


def test_sessions_that_were_started_with_other_code_than_their_world_start_again() -> None:
    found = replace(world(4), code=CODE)
    state, done = play(make_state(Stage.READY, sessions=True, code=OLDER), hub_changed(found))
    assert kinds(done) == [wire.STOPPING, "Save"], "they may have made steps since the last one"
    state, done = play(state, events.Saved())
    assert kinds(done) == [wire.STARTING, "KillProcesses"]
    state, done = play(state, events.Gone(1), events.Wanted())
    assert events.Launch(CODE) in done
    assert state.published.failure is None, "they were ended, which is not a failure"
    state, done = play(state, events.Idle(2), events.Listening(STORE))
    assert kinds(done) == ["CloseStores", "OpenStore", wire.READY, "Enter"]
    _, done = play(make_state(Stage.READY, sessions=True, code=CODE), hub_changed(found))
    assert kinds(done) == ["Enter"]


def test_new_code_that_fails_before_it_has_a_session_runs_in_a_world_and_fails_there() -> None:
    """There everybody hears of it: only the failures of a world count, and take its code back."""
    order = replace(regroup(checkpoint=True, reason="update"), fresh=True, code=CODE)
    state, done = play(make_state(Stage.RUNNING, sessions=True), hub_changed(order), events.Saved(), events.Wanted())
    assert done[-2] == events.Launch(CODE)
    state, done = play(state, events.Wanted(FAILURE), events.Listening(STORE))
    assert kinds(done) == [wire.STARTING, "Log", "CloseStores", "OpenStore", wire.READY]
    assert (state.keeps_memory, state.published.failure) == (False, None), "it is none of the world that is over"
    state, done = play(state, hub_changed(replace(world(4), code=CODE)), events.Entered(4))
    assert kinds(done) == ["Enter", wire.RUNNING, "Begin"]
    state, done = play(state, events.Wanted(replace(FAILURE, generation=4)), events.Listening(STORE))
    assert (state.published.phase, state.published.failure) == (wire.READY, replace(FAILURE, generation=4))


def test_a_session_that_fails_again_before_it_waits_for_a_world_is_started_in_one() -> None:
    state, _ = play(make_state(Stage.RUNNING, sessions=True), events.Gone(1), events.Wanted(FAILURE))
    state, done = play(state, events.Wanted(CRASH), events.Listening(STORE))
    assert "Launch" not in kinds(done)
    assert (state.keeps_memory, state.published.failure) == (False, FAILURE), "why its world ended is still to be told"


def test_a_session_that_dies_while_it_waits_is_started_again_without_a_world() -> None:
    state, done = play(make_state(Stage.READY, sessions=True), events.Gone(1), events.Wanted(CRASH))
    assert kinds(done)[-1] == "Launch"
    state, done = play(state, events.Idle(2), events.Listening(STORE), events.Gone(2), events.Wanted(CRASH))
    assert kinds(done)[-1] == "Launch", "it had come to wait"


def test_it_says_which_revisions_it_has() -> None:
    state, done = play(make_state(Stage.RUNNING), events.Codes(("2" * 64,)))
    assert state.published.codes == ("2" * 64,) and len(phases(done)) == 1


def test_it_says_which_devices_its_workers_have() -> None:
    told = [events.Device(1, "cuda:1 GPU-b"), events.Device(0, "cuda:0 GPU-a"), events.Device(1, "cuda:1 GPU-b")]
    state, done = play(make_state(Stage.RUNNING), *told, events.Device(wire.MAX_DEVICES, "cuda:16"))
    assert state.published.devices == ("cuda:0 GPU-a", "cuda:1 GPU-b") and len(phases(done)) == 2
