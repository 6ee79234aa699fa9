"""The transitions of the agent: for each stage a ladder of rules, the first that applies wins. Pure.

`machine` applies ladders until the stage no longer changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from elasticjob.agent import events, rules
from elasticjob.agent.events import Actions
from elasticjob.agent.state import Stage, State
from elasticjob.protocol import directives, wire

LOSS_GRACE = 1.0  # seconds between SIGTERM and SIGKILL if nothing can be saved
HOLD = 3.0  # seconds that hung workers are kept running while the other agents examine theirs, which may take 2.75
PATIENCE = 8.0  # seconds beyond the grace period to leave a world; the operator's own limit is longer
ADVICE = 60.0  # seconds between two warnings about workers without a session

Result = tuple[State, Actions]


# Transitions.


def publish(state: State, **changes: object) -> Result:
    """Change fields of the published state, and send it to the hub.

    What was seen of the workers, or told by them, ends with a phase, and so does a restore.
    """
    if "phase" in changes:
        kept = state.published.checkpoint
        changes = {"blocked": False, "checkpoint": kept and replace(kept, restoring=False), "shards": (), **changes}
    state = replace(state, published=replace(state.published, **changes))  # type: ignore[arg-type]
    return state, (events.Publish(state.published),)


def prepare(state: State, failure: wire.Failure | None, now: float) -> Result:
    """No worker is in a world: open a new store, which no member of an old world can know."""
    end = rules.find_end(state)
    if end is not None:
        return give_up(state, end, now)
    state = replace(state, stage=Stage.PREPARING, failure=failure, until=None, world=None)
    return state, (events.CloseStores(), events.OpenStore())


def give_up(state: State, end: events.Exit, now: float) -> Result:
    """There will be no further world. If workers wait for one, torch gets the exit at its next request.

    Sessions that wait for one may have made steps since the last save, and are asked for one if there is time.
    """
    if rules.may_save_idle(state):
        return save_idle(state, rules.find_grace(state, now), now)
    state = replace(state, stage=Stage.OVER, end=end, until=None)
    return state, () if state.keeps_memory else (end,)


def launch(state: State, now: float) -> State:
    """The workers run without a world; all of them must create their sessions first."""
    return replace(state, stage=Stage.LAUNCHED, until=now + ADVICE, asked=None)


def save(state: State, grace: float, now: float) -> Result:
    """Ask the scripts for a checkpoint. What they do not use of the grace is theirs when they are stopped."""
    return replace(state, stage=Stage.SAVING, until=now + grace, deadline=now + grace), (events.Save(),)


def save_idle(state: State, grace: float, now: float) -> Result:
    """Ask sessions that wait for a world for a checkpoint. They are about to lose what they have in memory."""
    state, published = publish(state, phase=wire.STOPPING, store=None)
    state, _ = save(state, grace, now)
    return state, (*published, events.Save(alone=max((one.made for one in state.idle), default=0)))


def begin_anew(state: State, now: float) -> Result:
    """Start the sessions again, with the code of the next world."""
    state, published = publish(replace(launch(state, now), asked=False, idle=()), phase=wire.STARTING)
    return state, (*published, events.KillProcesses(frozenset()))


def stop(state: State, now: float) -> Result:
    """Terminate the workers, earlier than torch would: it waits 30 s for a script that ignores SIGTERM."""
    left = rules.find_grace(state, now)
    left = left if state.deadline is None else min(left, state.deadline - now)
    grace = LOSS_GRACE if state.end is not None else max(left, LOSS_GRACE)
    return replace(state, stage=Stage.STOPPING, until=now + grace), (events.Terminate(grace > LOSS_GRACE),)


def pause(state: State, now: float) -> Result:
    """Ask the sessions to leave their world."""
    until = (now + state.grace_seconds if state.deadline is None else max(now, state.deadline)) + PATIENCE
    return publish(
        replace(state, stage=Stage.PAUSING, until=until, asked=None), phase=wire.STOPPING, failure=state.evidence
    )


def leave(state: State, now: float) -> Result:
    """End the world of sessions, and the sessions with it if the hub wants other ones."""
    state, actions = pause(state, now)
    is_fresh = isinstance(state.hub.directive, wire.Regroup) and state.hub.directive.fresh
    return state, (events.KillProcesses(frozenset()), *actions) if is_fresh else actions


def end_hang(state: State, now: float) -> Result:
    """End a hung world, in which nothing can be saved. First all agents collect the stacks of their workers."""
    if state.evidence is not None:
        return replace(state, stage=Stage.HOLDING, until=now + HOLD), ()
    return replace(state, stage=Stage.EXAMINING, until=None), (events.Examine(),)


# Ladders.


def _while_launched(state: State, now: float) -> Result:
    if state.all_idle:
        why = state.failure or state.evidence or rules.find_breakage(state, now)
        return prepare(replace(state, launched=False), why, now)
    actions: Actions = ()
    if state.asked is None and rules.is_over(state, state.generation, now):
        state, actions = replace(state, asked=False), (events.CloseStores(),)
    if state.until is not None and now >= state.until:
        missing = state.published.nproc - len(state.idle)
        text = (
            f"{missing} of {state.published.nproc} workers have not created an elasticjob.Session; no world can start."
            " Workers are started before a world exists; set ELASTICJOB_IN_PROCESS=0 to prevent it."
        )
        state, actions = replace(state, until=now + ADVICE), (*actions, events.Log(text))
    return state, actions


def _while_ready(state: State, now: float) -> Result:
    end = rules.find_end(state)
    if end is not None:
        return give_up(state, end, now)
    if state.keeps_memory and not state.all_idle:  # a worker died: the others cannot enter the world without it
        return publish(replace(launch(state, now), asked=False), phase=wire.STARTING)
    if rules.has_other_code(state):
        return save_idle(state, state.grace_seconds, now) if state.deadline is None else begin_anew(state, now)
    directive = state.hub.directive
    world = directives.find_world(state.generation, state.published.store, directive)
    if world is not None:
        return replace(state, stage=Stage.ENTERING, world=world), (events.Enter(world),)
    if isinstance(directive, wire.Regroup) and directives.is_given_up(state.generation, directive):
        return publish(state, generation=directive.generation)
    return state, ()


def _while_running(state: State, now: float) -> Result:
    over = rules.is_over(state, state.generation, now)
    directive = state.hub.directive
    if over and (directives.is_hung(directive) or (state.evidence is not None and not state.keeps_memory)):
        return end_hang(state, now)
    if over and not state.keeps_memory:
        return publish(replace(state, stage=Stage.ENDING, until=None), phase=wire.STOPPING, failure=None)
    if over and directives.ends_memory(directive) and directives.grace_of(directive):
        # The workers' memory is about to be lost: let the scripts save while the world still works.
        return save(state, directives.grace_of(directive), now)
    if over:
        return leave(state, now)
    if state.until is not None and now >= state.until:  # the hub did not react to the reported hang
        return (replace(state, until=None), (events.Kill(),)) if state.keeps_memory else end_hang(state, now)
    if state.keeps_memory and state.all_idle:
        return prepare(state, state.evidence or rules.find_breakage(state, now), now)
    return state, ()


def _while_ending(state: State, now: float) -> Result:
    if not state.parked:
        return state, ()
    if state.granted > 0:
        return save(state, state.granted, now)
    return stop(state, now)


def _while_holding(state: State, now: float) -> Result:
    if state.until is not None and now < state.until:
        return state, ()
    if state.keeps_memory:  # workers blocked in a collective can be released and keep their memory
        state, actions = pause(state, now)
        return state, (events.KillProcesses(state.waiting), *actions)
    if not state.parked:
        return state, ()
    return publish(replace(state, stage=Stage.STOPPING, until=now), phase=wire.STOPPING, failure=state.evidence)


def _while_saving(state: State, now: float) -> Result:
    late = state.until is None or now >= state.until
    if state.keeps_memory and late:
        return begin_anew(state, now) if rules.has_other_code(state) else leave(state, now)
    if state.keeps_memory:
        return state, ()
    return stop(state, now) if late or rules.must_hurry(state, now) else (state, ())


def _while_stopping(state: State, now: float) -> Result:
    late = state.until is not None and now >= state.until
    return state, (events.Kill(),) if late or rules.must_hurry(state, now) else (events.CheckStopped(),)


def _while_pausing(state: State, now: float) -> Result:
    if state.all_idle:
        return prepare(state, state.evidence, now)
    if state.until is not None and now >= state.until:
        idle = frozenset(one.pid for one in state.idle)
        return replace(launch(state, now), asked=False), (events.KillSessions(idle),)
    if state.asked is not None and rules.is_short_of_new_ones(state):
        return publish(replace(launch(state, now), asked=False), phase=wire.STARTING, failure=state.evidence)
    # A session that was thrown out of its world ends no last step, and others may wait for it alone.
    is_broken = bool(state.replaced) or any(one.error for one in state.idle)
    announced = directives.grace_of(state.hub.directive) > 0 and not is_broken
    if announced is state.asked:
        return state, ()
    ask = events.AskPause(state.generation, announced)
    # Closing the store releases workers that wait in it for lost members.
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
