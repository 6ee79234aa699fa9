"""What follows from an agent's state: for each stage a ladder, read from the top. Pure.

A ladder changes the stage or leaves it; `machine` goes on until it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from elasticjob.agent import events, rules
from elasticjob.agent.events import Actions
from elasticjob.agent.state import Stage, State
from elasticjob.protocol import directives, wire

LOSS_GRACE = 1.0  # seconds between SIGTERM and SIGKILL where nothing can be saved
HOLD = 1.0  # seconds that workers of a hung world are left as they are: other agents look at theirs
PATIENCE = 8.0  # seconds beyond the script's grace to leave a world; the operator waits longer for the pod
ADVICE = 60.0  # seconds between two warnings about workers without a session

Result = tuple[State, Actions]


# Transitions.


def say(state: State, **changes: object) -> Result:
    """The hub is told of a change."""
    state = replace(state, said=replace(state.said, **changes))  # type: ignore[arg-type]
    return state, (events.Say(state.said),)


def prepare(state: State, failure: wire.Failure | None) -> Result:
    """No worker runs in a world. A new store is opened, so that nobody of an old world finds this one."""
    end = rules.find_end(state)
    if end is not None:
        return give_up(state, end)
    state = replace(state, stage=Stage.PREPARING, failure=failure, until=None, world=None)
    return state, (events.CloseStores(), events.OpenStore())


def give_up(state: State, end: events.Exit) -> Result:
    """There will be no world. Where workers wait for one, torch hears it when it wants to start them anew."""
    state = replace(state, stage=Stage.OVER, end=end, until=None)
    return state, () if state.keeps_memory else (end,)


def launch(state: State, now: float) -> State:
    """The workers are in no world; all of them have to make their sessions first."""
    return replace(state, stage=Stage.LAUNCHED, until=now + ADVICE, asked=None)


def stop(state: State, now: float) -> Result:
    """End the workers. torch's own stop comes later; it would wait 30 s for a script that does not end."""
    grace = LOSS_GRACE if state.end is not None else max(rules.find_grace(state, now), LOSS_GRACE)
    return replace(state, stage=Stage.STOPPING, until=now + grace), (events.Terminate(),)


def pause(state: State, now: float) -> Result:
    """Have the sessions leave their world."""
    until = now + state.grace_seconds + PATIENCE
    return say(
        replace(state, stage=Stage.PAUSING, until=until, asked=None), phase=wire.STOPPING, failure=state.evidence
    )


def end_hang(state: State, now: float) -> Result:
    """Nothing can be saved in this world. What holds it up is found out first, by all agents."""
    if state.evidence is not None:
        return replace(state, stage=Stage.HOLDING, until=now + HOLD), ()
    return replace(state, stage=Stage.EXAMINING, until=None), (events.Examine(),)


# Ladders.


def _while_launched(state: State, now: float) -> Result:
    if state.all_idle:
        return prepare(state, state.failure or state.evidence or rules.find_breakage(state, now))
    actions: Actions = ()
    if state.asked is None and rules.is_over(state, state.generation, now):
        state, actions = replace(state, asked=False), (events.CloseStores(),)
    if state.until is not None and now >= state.until:
        missing = state.said.nproc - len(state.idle)
        text = (
            f"Still waiting for elasticjob.Session in {missing} of {state.said.nproc} workers."
            " They were started before there is a world; ELASTICJOB_IN_PROCESS=0 forbids it."
        )
        state, actions = replace(state, until=now + ADVICE), (*actions, events.Log(text))
    return state, actions


def _while_ready(state: State, now: float) -> Result:
    end = rules.find_end(state)
    if end is not None:
        return give_up(state, end)
    if state.keeps_memory and not state.all_idle:  # a worker died: who is left cannot enter the world
        return say(replace(launch(state, now), asked=False), phase=wire.STARTING)
    directive = state.hub.directive
    world = directives.find_world(state.generation, state.said.store, directive)
    if world is not None:
        return replace(state, stage=Stage.ENTERING, world=world), (events.Enter(world),)
    if isinstance(directive, wire.Regroup) and directives.is_given_up(state.generation, directive):
        return say(state, generation=directive.generation)
    return state, ()


def _while_running(state: State, now: float) -> Result:
    over = rules.is_over(state, state.generation, now)
    directive = state.hub.directive
    if over and (directives.is_hung(directive) or (state.evidence is not None and not state.keeps_memory)):
        return end_hang(state, now)
    if over and not state.keeps_memory:
        return say(replace(state, stage=Stage.ENDING, until=None), phase=wire.STOPPING, failure=None)
    if over and isinstance(directive, wire.Stop) and directive.checkpoint:
        # Nobody keeps this memory: the scripts save while the world still works.
        return replace(state, stage=Stage.SAVING, until=now + directive.grace_seconds), (events.Save(),)
    if over:
        return pause(state, now)
    if state.until is not None and now >= state.until:  # a hang, and the hub does not answer
        return (replace(state, until=None), (events.Kill(),)) if state.keeps_memory else end_hang(state, now)
    if state.keeps_memory and state.all_idle:
        return prepare(state, state.evidence or rules.find_breakage(state, now))
    return state, ()


def _while_ending(state: State, now: float) -> Result:
    if not state.parked:
        return state, ()
    if state.granted > 0:
        return replace(state, stage=Stage.SAVING, until=now + state.granted), (events.Save(),)
    return stop(state, now)


def _while_holding(state: State, now: float) -> Result:
    if state.until is not None and now < state.until:
        return state, ()
    if state.keeps_memory:  # those that wait can be freed and keep their memory
        state, actions = pause(state, now)
        return state, (events.KillProcesses(state.waiting), *actions)
    if not state.parked:
        return state, ()
    return say(replace(state, stage=Stage.STOPPING, until=now), phase=wire.STOPPING, failure=state.evidence)


def _while_saving(state: State, now: float) -> Result:
    late = state.until is None or now >= state.until
    if state.keeps_memory:
        return pause(state, now) if late else (state, ())
    return stop(state, now) if late or rules.must_hurry(state, now) else (state, ())


def _while_stopping(state: State, now: float) -> Result:
    late = state.until is not None and now >= state.until
    return state, (events.Kill(),) if late or rules.must_hurry(state, now) else (events.Look(),)


def _while_pausing(state: State, now: float) -> Result:
    if state.all_idle:
        return prepare(state, state.evidence)
    if state.until is not None and now >= state.until:
        idle = frozenset(one.pid for one in state.idle)
        return replace(launch(state, now), asked=False), (events.KillSessions(idle),)
    announced = directives.grace_of(state.hub.directive) > 0
    if announced is state.asked:
        return state, ()
    ask = events.AskPause(state.generation, announced)
    # A closed store frees those who wait in it for members that are gone.
    return replace(state, asked=announced), (ask,) if announced else (events.CloseStores(), ask)


LADDERS: dict[Stage, Callable[[State, float], Result]] = {
    Stage.LAUNCHED: _while_launched,
    Stage.READY: _while_ready,
    Stage.RUNNING: _while_running,
    Stage.ENDING: _while_ending,
    Stage.HOLDING: _while_holding,
    Stage.SAVING: _while_saving,
    Stage.STOPPING: _while_stopping,
    Stage.PAUSING: _while_pausing,
}
