"""Every order of events for the agent's machine in a small world: invariants of its messages and actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from elasticjob.agent import events, machine, rules
from elasticjob.agent.events import Action, Event, HubView
from elasticjob.agent.state import Stage, State
from elasticjob.protocol import wire

STORES = 4
GENERATIONS = 3


@dataclass(frozen=True)
class Around:
    """What the executor and the processes would do, as far as it matters: the machine's actions, not its state."""

    state: State
    running: int = 0  # the generation that workers run in; 0: none runs in a world
    opened: int = 0  # stores so far
    spent: int = 0  # the store (number) that the latest world was entered with; it must not be said again
    entering: int = 0
    launched: bool = False


def perform(before: Around, state: State, actions: tuple[Action, ...]) -> Around:
    after = replace(before, state=state)
    for action in actions:
        match action:
            case events.Publish(published):
                check_published(after, before, published)
            case events.OpenStore():
                assert after.running == 0, "a store for the next world while workers run in this one"
                after = replace(after, opened=after.opened + 1)
            case events.Enter(world):
                assert after.running == 0
                after = replace(after, entering=world.generation)
            case events.Begin(world):
                assert after.running == 0, "two worlds"
                assert world.generation > before.state.generation, "a generation twice"
                after = replace(after, running=world.generation, entering=0, spent=after.opened)
    return after


def check_published(around: Around, before: Around, published: wire.AgentState) -> None:
    assert published.generation >= before.state.generation, "it goes back"
    if published.phase == wire.READY:
        assert around.running == 0, "ready, and workers run"
        assert published.store is not None
        assert published.store.port > around.spent, "ready with the store of an old world"


def happenings(around: Around, sessions: bool) -> Iterator[tuple[Event, Around]]:
    """What can come next."""
    state = around.state
    for generation in range(1, GENERATIONS + 1):
        for directive in (
            wire.World(generation, 0, (1,), wire.Store("a", around.opened)),
            wire.Regroup(generation, "x"),
        ):
            if directive != state.hub.directive:
                yield events.HubChanged(HubView(directive=directive)), around
    if state.stage is Stage.PREPARING and around.opened < STORES:
        yield events.Listening(wire.Store("a", around.opened)), around
    if around.entering:
        yield events.Entered(around.entering), around
        yield events.Missed(around.entering), replace(around, entering=0)
    out = replace(around, running=0)
    if state.keeps_memory:
        yield events.Idle(1), out  # the session left its world
        yield events.Gone(1), out
        if rules.may_replace(state, {1}):
            yield events.Replaced(frozenset({1}), frozenset({2})), out
        if state.replaced:
            yield events.Idle(2), out
        if around.running == 0 or state.stage is Stage.LAUNCHED:
            yield events.Wanted(), out
    elif state.stage in (Stage.RUNNING, Stage.ENDING):
        if state.stage is Stage.ENDING:
            yield events.Parked(), around
        yield events.Wanted(), out  # torch saw them die
        if sessions:
            yield events.SessionsMade(state.generation), around
    elif state.stage is Stage.STOPPING:
        yield events.Stopped(), out
    elif state.stage is Stage.STOPPED:
        yield events.Wanted(), around


@pytest.mark.parametrize("sessions", [False, True], ids=["workers", "sessions"])
def test_no_order_of_events_makes_two_worlds(sessions: bool) -> None:
    first, actions = machine.step(State(wire.AgentState(), 30.0), events.Wanted(), 0.0)
    start = perform(Around(State(wire.AgentState(), 30.0)), first, actions)
    seen, level = {start}, [start]
    while level:
        found: list[Around] = []
        for around in level:
            for event, world in happenings(around, sessions):
                state, actions = machine.step(world.state, event, 0.0)
                after = perform(world, state, actions)
                if after not in seen and after.opened < STORES:
                    seen.add(after)
                    found.append(after)
        level = found
    assert len(seen) > 100
    assert {around.running for around in seen} == {0, 1, 2, 3}
