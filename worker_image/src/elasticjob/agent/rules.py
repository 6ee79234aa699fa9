"""What an agent's state means: questions that the machine, the executor and torch's loop ask of it. Pure.

`now` is in seconds of any monotonic clock. A directive counts for the generations that it names and is ignored
otherwise (`protocol.directives`), so an old or repeated one does no harm.
"""

from __future__ import annotations

from elasticjob.agent import events
from elasticjob.agent.state import Stage, State
from elasticjob.protocol import directives, wire

LOOK_EVERY = 0.02  # seconds between two looks at workers that were told to stop
HURRY_EVERY = 0.1  # ... or to save


def find_wake(state: State, now: float) -> float | None:
    """When the machine has to step again although nothing happened; None: not before the next event."""
    times = [time for time in (state.until, state.leave_at) if time is not None and time > now]
    if state.stage is Stage.STOPPING:
        times.append(now + LOOK_EVERY)
    elif state.stage is Stage.SAVING:
        times.append(now + HURRY_EVERY)
    return min(times, default=None)


def is_over(state: State, generation: int, now: float) -> bool:
    """Whether this generation has to end here."""
    if state.hub.fatal is not None:
        return True
    if state.leave_at is not None and (now >= state.leave_at or state.hub.rejected):
        return True  # a hub that does not know this pod any more forms no world without it
    return directives.is_over(generation, state.hub.directive)


def is_missed(state: State, generation: int) -> bool:
    """Whether there is no sense in connecting to this generation's store any longer."""
    return state.leave_at is not None or directives.is_over(generation, state.hub.directive)


def find_grace(state: State, now: float) -> float:
    """Seconds the workers may have to save their state, now that the generation is over."""
    if state.leave_at is None:
        return directives.grace_of(state.hub.directive)
    left = state.leave_at + state.grace_seconds - directives.leave_after(state.grace_seconds)
    return max(0.0, left - now - 1.0)


def find_end(state: State) -> events.Exit | None:
    """Why there will be no world for this pod."""
    if state.hub.fatal is not None:
        return events.Exit(1, state.hub.fatal, is_error=True)
    directive = state.hub.directive
    if isinstance(directive, wire.Stop):
        return events.Exit(0 if directive.ok else 1, directive.reason)
    if state.leave_at is not None:
        return events.Exit(0, "asked to leave, and the world goes on without this pod")
    return None


def must_hurry(state: State, now: float) -> bool:
    """Somebody was lost while the others save their state: nobody can finish saving now."""
    return state.granted > 0 and find_grace(state, now) == 0


def is_released(state: State) -> bool:
    """Whether an agent whose workers ended well need not wait for the others any longer."""
    return find_end(state) is not None


def starts_early(state: State) -> bool:
    """Whether the workers are started before there is a world, because they make a session and wait for one."""
    if state.stage is not Stage.IDLE or state.wants_sessions is False:
        return False
    return state.wants_sessions is True or (state.hub.welcome is not None and state.hub.welcome.in_process)


def holds_torch(state: State) -> bool:
    """Whether torch's loop must not look at its workers: they are being ended, which is no failure of theirs."""
    if state.stage in (Stage.OVER, Stage.STOPPING, Stage.STOPPED):
        return True
    ending = (Stage.ENDING, Stage.EXAMINING, Stage.HOLDING, Stage.SAVING)
    return state.stage in ending and not state.keeps_memory


def find_why(state: State, found: wire.Failure | None, now: float) -> wire.Failure | None:
    """Why the workers ended, unless they were asked to. `found` is what torch knows of it.

    A failure here may be the reason why the hub calls: others feel it, and tell of it, before torch looks.
    """
    if not state.ran:
        return None
    if state.evidence is not None:
        return state.evidence
    if state.stage is Stage.STOPPED:
        return state.failure
    over = is_over(state, state.generation, now)
    if over and (state.leave_at is not None or find_grace(state, now) > 0):
        return None
    return found or (None if over else wire.Failure(state.generation, message="a worker failed"))


def find_breakage(state: State, now: float) -> wire.Failure | None:
    """What the sessions say of the end of their world, where the hub did not order it."""
    if state.generation == 0 or is_over(state, state.generation, now):
        return None
    errors = [one.error for one in state.idle if one.error]
    return wire.Failure(state.generation, message=errors[0]) if errors else None
