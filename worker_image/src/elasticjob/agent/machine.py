"""Decides what an agent does next: `step(state, event, now) -> (state, actions)`. Pure; `executor` acts on it.

Two worlds must never train at the same time. The agent contributes these guarantees:

- It enters a world only from `ready`, and only if it is newer than every generation that this agent has published.
- It publishes `ready` only with a store opened after the last workers had stopped or left their world.
- When its generation is over, it first stops its workers or has its sessions leave, before it does anything else.

A handler first updates the state from the event. Then the rules of the current stage (`stages`) decide what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticjob.agent import events, rules, stages
from elasticjob.agent.events import Event
from elasticjob.agent.stages import Result
from elasticjob.agent.state import Stage, State
from elasticjob.protocol import directives, wire

HUNG_PATIENCE = 5.0  # seconds that the hub has to react when this agent reports a hang


def step(state: State, event: Event, now: float) -> Result:
    """The state after this event, and the actions to perform. `now`: seconds of any monotonic clock."""
    handler = _HANDLERS.get(type(event))
    state, actions = (state, ()) if handler is None else handler(state, event, now)
    while (ladder := stages.LADDERS.get(state.stage)) is not None:
        before = state.stage
        state, more = ladder(state, now)
        actions += more
        if state.stage is before:
            break
    return state, actions


def _hub_changed(state: State, event: events.HubChanged, now: float) -> Result:
    return replace(state, hub=event.hub), ()


def _terminated(state: State, event: events.Terminated, now: float) -> Result:
    if state.leave_at is not None:
        return state, ()
    state = replace(state, leave_at=now + directives.leave_after(state.grace_seconds))
    return (
        stages.publish(state, phase=wire.LEAVING, failure=None)
        if state.published.phase == wire.RUNNING
        else (state, ())
    )


def _sized(state: State, event: events.Sized, now: float) -> Result:
    return (state, ()) if event.nproc == state.published.nproc else stages.publish(state, nproc=event.nproc)


def _watches(state: State, event: events.Watches, now: float) -> Result:
    return stages.publish(state, watches=event.digest)


def _codes(state: State, event: events.Codes, now: float) -> Result:
    return stages.publish(state, codes=event.digests)


def _device(state: State, event: events.Device, now: float) -> Result:
    known = state.published.devices
    if event.local_rank >= wire.MAX_DEVICES:
        return state, ()
    names = [*known, *([""] * (event.local_rank + 1 - len(known)))]
    names[event.local_rank] = event.name
    return (state, ()) if tuple(names) == known else stages.publish(state, devices=tuple(names))


def _wrote(state: State, event: events.Wrote, now: float) -> Result:
    """The first line of each rank counts, until there is a new world."""
    known, sign = state.published.signs, event.sign
    is_known = any((one.rule, one.rank) == (sign.rule, sign.rank) for one in known)
    if is_known or sign.generation != state.generation or len(known) >= wire.MAX_SIGNS:
        return state, ()
    return stages.publish(state, signs=(*known, sign))


def _checked(state: State, event: events.Checked, now: float) -> Result:
    return stages.publish(state, preflight=event.found)


def _wanted(state: State, event: events.Wanted, now: float) -> Result:
    if state.end is not None:
        return state, (state.end,)
    code = rules.find_code(state)
    if rules.starts_early(state):
        state, published = stages.publish(
            replace(state, ran=True, proven=state.wants_sessions is True, launched=True, code=code), in_process=True
        )
        return stages.launch(state, now), (*published, events.Launch(code))
    failure = rules.find_why(state, event.found, now)
    if not state.keeps_memory:
        return stages.prepare(state, failure, now)
    state = replace(state, idle=(), replaced=frozenset())
    if state.proven and not (state.launched and event.found is not None):
        state = replace(state, failure=failure, launched=True, code=code)
        state, published = stages.publish(state, phase=wire.STARTING, failure=failure)
        return stages.launch(state, now), (*published, events.Launch(code))
    # Only in a world does it count as a failure of the job, and of the code that it runs.
    text = (
        "The script exited before it created an elasticjob.Session; from now on it is started only once a world exists."
    )
    state, published = stages.publish(replace(state, ran=False, launched=False), in_process=False)
    state, actions = stages.prepare(state, state.failure, now)
    return state, (*published, events.Log(text), *actions)


def _listening(state: State, event: events.Listening, now: float) -> Result:
    if state.stage is not Stage.PREPARING:
        return state, ()
    end = rules.find_end(state)
    if end is not None:
        return stages.give_up(state, end, now)
    state = replace(state, stage=Stage.READY)
    shards = tuple(sorted({shard for one in state.idle for shard in one.shards}))
    return stages.publish(state, phase=wire.READY, store=event.store, failure=state.failure, shards=shards)


def _entered(state: State, event: events.Entered, now: float) -> Result:
    world = _entering(state, event.generation)
    if world is None:
        return state, ()
    state = replace(state, stage=Stage.RUNNING, ran=True, parked=False, until=None, granted=0.0, deadline=None, idle=())
    state = replace(state, evidence=None, failure=None, waiting=frozenset(), replaced=frozenset(), code=world.code)
    state, published = stages.publish(
        state, phase=wire.RUNNING, generation=world.generation, store=None, failure=None, unsaved=None, signs=()
    )
    return state, (*published, events.Begin(world, state.keeps_memory))


def _missed(state: State, event: events.Missed, now: float) -> Result:
    world = _entering(state, event.generation)
    if world is None:
        return state, ()
    state, published = stages.publish(state, phase=wire.STOPPING, generation=world.generation, store=None)
    state, actions = stages.prepare(state, None, now)
    return state, (*published, *actions)


def _entering(state: State, generation: int) -> wire.World | None:
    """The world of this generation, if the agent is entering it; None if the event came too late."""
    if state.stage is not Stage.ENTERING or state.world is None or state.world.generation != generation:
        return None
    return state.world


def _kept(state: State, event: events.Kept, now: float) -> Result:
    found = replace(event.checkpoint, restoring=state.stage is Stage.ENTERING)
    return (state, ()) if found == state.published.checkpoint else stages.publish(state, checkpoint=found)


def _parked(state: State, event: events.Parked, now: float) -> Result:
    if state.stage is Stage.OVER:
        return stages.stop(replace(state, granted=0.0), now)
    granted = rules.find_grace(state, now) if state.stage is Stage.ENDING else state.granted
    failure = event.found if state.stage is Stage.ENDING and granted == 0 else state.failure
    return replace(state, parked=True, granted=granted, failure=failure), ()


def _hung(state: State, event: events.Hung, now: float) -> Result:
    if event.quiet is not None:  # a hang only if all agents say so: one rank may compute while the others wait for it
        if state.stage is not Stage.RUNNING:
            return state, ()
        return stages.publish(state, quiet=state.generation * event.quiet, beside=state.generation * event.beside)
    return state, (events.Examine(),) if state.stage is Stage.RUNNING and state.evidence is None else ()


def _examined(state: State, event: events.Examined, now: float) -> Result:
    if state.stage is Stage.EXAMINING:
        state = replace(state, stage=Stage.HOLDING, until=now + stages.HOLD)
    elif state.stage is Stage.RUNNING:
        state = replace(state, until=now + HUNG_PATIENCE)
    else:
        return state, ()
    state = replace(state, evidence=event.evidence, waiting=event.waiting)
    return stages.publish(state, failure=event.evidence) if state.stage is Stage.RUNNING else (state, ())


def _saved(state: State, event: events.Saved, now: float) -> Result:
    return (replace(state, until=now), ()) if state.stage is Stage.SAVING else (state, ())


def _blocked(state: State, event: events.Blocked, now: float) -> Result:
    if state.stage is Stage.PAUSING and state.asked is False and event.is_stopping and event.blocked:
        # Its connections are shut down: a session that is in a collective all the same never leaves it.
        return replace(state, until=now), ()
    stage = Stage.STOPPING if event.is_stopping else Stage.RUNNING
    if state.stage is not stage or event.blocked is state.published.blocked:
        return state, ()
    return stages.publish(state, blocked=event.blocked)


def _stopped(state: State, event: events.Stopped, now: float) -> Result:
    if state.stage is not Stage.STOPPING:
        return state, ()
    failure = state.failure
    if failure is None and state.granted == 0 and event.found is not None and event.found.traceback:
        failure = event.found  # it was already exiting with an exception of its own
    state = replace(state, stage=Stage.STOPPED, failure=failure, until=None)
    unsaved = rules.find_unsaved(state, event.found)
    return (state, ()) if unsaved is None else stages.publish(state, unsaved=unsaved)


def _sessions_made(state: State, event: events.SessionsMade, now: float) -> Result:
    runs = state.stage is Stage.RUNNING and event.generation == state.generation
    if state.keeps_memory or state.wants_sessions is False or not runs:
        return state, ()  # too late: these workers are stopped like any others
    text = f"Generation {state.generation}: all workers have a session and keep their memory from now on."
    state, published = stages.publish(replace(state, proven=True, idle=()), in_process=True)
    return state, (*published, events.Log(text, is_warning=False))


def _idle(state: State, event: events.Idle, now: float) -> Result:
    idle = (*(one for one in state.idle if one.pid != event.pid), event)
    return replace(state, idle=idle, proven=state.wants_sessions is not False), ()


def _gone(state: State, event: events.Gone, now: float) -> Result:
    return replace(state, idle=tuple(one for one in state.idle if one.pid != event.pid)), ()


def _replaced(state: State, event: events.Replaced, now: float) -> Result:
    evidence = rules.find_why(state, event.found, now)
    idle = tuple(one for one in state.idle if one.pid not in event.lost)
    state = replace(state, evidence=evidence, replaced=state.replaced | event.pids, idle=idle)
    return stages.pause(state, now) if state.stage is Stage.RUNNING else (state, ())


def _finished(state: State, event: events.Finished, now: float) -> Result:
    return stages.publish(replace(state, stage=Stage.FINISHED, until=None), phase=wire.SUCCEEDED, failure=None)


def _ended(state: State, event: events.Ended, now: float) -> Result:
    failure = event.failure
    end = events.Exit(1, failure.message or "", is_error=True) if failure is not None else None
    state = replace(state, stage=Stage.FINISHED, until=None, end=state.end or end)
    return (
        (state, ())
        if event.phase == state.published.phase
        else stages.publish(state, phase=event.phase, failure=failure)
    )


_HANDLERS: dict[type, Callable[[State, Any, float], Result]] = {
    events.HubChanged: _hub_changed,
    events.Terminated: _terminated,
    events.Sized: _sized,
    events.Checked: _checked,
    events.Watches: _watches,
    events.Codes: _codes,
    events.Device: _device,
    events.Wrote: _wrote,
    events.Wanted: _wanted,
    events.Listening: _listening,
    events.Entered: _entered,
    events.Missed: _missed,
    events.Kept: _kept,
    events.Parked: _parked,
    events.Hung: _hung,
    events.Examined: _examined,
    events.Saved: _saved,
    events.Blocked: _blocked,
    events.Stopped: _stopped,
    events.SessionsMade: _sessions_made,
    events.Idle: _idle,
    events.Gone: _gone,
    events.Replaced: _replaced,
    events.Finished: _finished,
    events.Ended: _ended,
}
