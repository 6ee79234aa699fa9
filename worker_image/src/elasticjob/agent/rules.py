"""Predicates on the agent's state, used by the machine, the executor and torch's loop. Pure.

`now` is in seconds of any monotonic clock. A directive applies only to the generations that it names
(`protocol.directives`), so an old or repeated one has no effect.
"""

from __future__ import annotations

import signal
from collections.abc import Collection

from elasticjob.agent import events
from elasticjob.agent.state import Stage, State
from elasticjob.protocol import directives, wire
from elasticjob.protocol.preflight import Peer, Preflight, Probe

LOOK_EVERY = 0.02  # seconds between two checks of workers that were signalled to stop
_STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGINT)  # exit codes of who was stopped
HURRY_EVERY = 0.1  # ... or to save a checkpoint


def find_wake(state: State, now: float) -> float | None:
    """When the machine must step even without an event; None: not before the next event."""
    times = [time for time in (state.until, state.leave_at) if time is not None and time > now]
    if state.stage is Stage.STOPPING:
        times.append(now + LOOK_EVERY)
    elif state.stage is Stage.SAVING:
        times.append(now + HURRY_EVERY)
    return min(times, default=None)


def is_over(state: State, generation: int, now: float) -> bool:
    """Whether this generation must end in this pod."""
    if state.hub.fatal is not None:
        return True
    if state.leave_at is not None and (now >= state.leave_at or state.hub.rejected):
        return True  # a hub that no longer knows this pod will not send a directive
    return directives.is_over(generation, state.hub.directive)


def is_missed(state: State, generation: int) -> bool:
    """Whether connecting to this generation's store has become pointless."""
    return state.leave_at is not None or directives.is_over(generation, state.hub.directive)


def find_grace(state: State, now: float) -> float:
    """Seconds that the workers have to save their state, now that the generation is over."""
    directive = state.hub.directive
    if state.leave_at is None or directives.ends_at_once(state.generation, directive):
        return directives.grace_of(directive)
    left = state.leave_at + state.grace_seconds - directives.leave_after(state.grace_seconds)
    return max(0.0, left - now - 1.0)


def find_time_to_archive(state: State, now: float) -> float:
    """Seconds until what was saved last has to be in the archive, if no pod of the world stays; 0: pods stay."""
    directive = state.hub.directive
    if state.leave_at is not None:
        return max(0.0, state.leave_at + state.grace_seconds - directives.leave_after(state.grace_seconds) - now)
    return directive.grace_seconds if isinstance(directive, wire.Stop) and directive.checkpoint else 0.0


def do_all_leave(state: State) -> bool:
    """Whether no pod of the world stays, as far as this one knows: others may have been told to end as well.

    A pod that is terminated alone leaves copies with the others. What the hub stops, it stops in all pods.
    """
    is_alone = state.world is not None and len(state.world.nprocs) == 1
    return is_alone or isinstance(state.hub.directive, wire.Stop)


def find_end(state: State) -> events.Exit | None:
    """The exit to take if there will be no further world for this pod; None otherwise."""
    if state.hub.fatal is not None:
        return events.Exit(1, state.hub.fatal, is_error=True)
    directive = state.hub.directive
    if isinstance(directive, wire.Stop):
        return events.Exit(0 if directive.ok else 1, directive.reason)
    if state.leave_at is not None:
        return events.Exit(0, "this pod was terminated; the job continues without it")
    return None


def find_unmeasured(state: State, found: Preflight) -> tuple[Peer, ...]:
    """The pods that the hub wants to be measured, and have not been."""
    directive = state.hub.directive
    if not isinstance(directive, Probe):
        return ()
    measured = {link.uid for link in found.links}
    return tuple(peer for peer in directive.peers if peer.uid not in measured)


def is_told_of_links(state: State, found: Preflight) -> bool:
    """Whether the check of the network goes on: there is something to measure, a result, or the pod has to end."""
    directive = state.hub.directive
    has_result = isinstance(directive, Probe) and directive.passed is not None
    return has_result or bool(find_unmeasured(state, found)) or find_end(state) is not None


def may_save_idle(state: State) -> bool:
    """Whether sessions in no world may save what they have in memory, as the hub stops all of them. Once."""
    directive = state.hub.directive
    is_asked = isinstance(directive, wire.Stop) and directives.grace_of(directive) > 0
    return is_asked and state.keeps_memory and state.all_idle and state.deadline is None


def has_other_code(state: State) -> bool:
    """Whether sessions run other code than the next world does: started before the hub knew, or said, which one."""
    directive = state.hub.directive
    if not isinstance(directive, wire.World) or directive.generation <= state.generation:
        return False
    return state.keeps_memory and directive.code != state.code


def must_hurry(state: State, now: float) -> bool:
    """Whether a member was lost while the others save their state, so that no save can complete."""
    return state.granted > 0 and find_grace(state, now) == 0


def is_released(state: State) -> bool:
    """Whether an agent whose workers succeeded may exit without waiting for the other members."""
    return find_end(state) is not None


def find_code(state: State) -> wire.Code | None:
    """The code for workers that start before there is a world: as the hub said last."""
    directive = state.hub.directive
    return directive.code if isinstance(directive, wire.World | wire.Regroup) else state.code


def starts_early(state: State) -> bool:
    """Whether to start the workers before a world exists, because they create a session and wait for one."""
    if state.stage is not Stage.IDLE or state.wants_sessions is False:
        return False
    return state.wants_sessions is True or (state.hub.welcome is not None and state.hub.welcome.in_process)


def awaits_imports(state: State) -> bool:
    """Whether to let the workers' imports end before this pod is ready: others train, and will stop to let it join."""
    welcome = state.hub.welcome
    return welcome is not None and welcome.training and not state.ran and not starts_early(state)


def holds_torch(state: State) -> bool:
    """Whether torch's loop must not poll its workers: they are being stopped, which is not a failure."""
    if state.stage in (Stage.OVER, Stage.STOPPING, Stage.STOPPED):
        return True
    ending = (Stage.ENDING, Stage.EXAMINING, Stage.HOLDING, Stage.SAVING)
    return state.stage in ending and not state.keeps_memory


def may_replace(state: State, pids: Collection[int]) -> bool:
    """Whether these workers, which have failed, can be started again while the sessions of the others stay.

    A new one that fails before it has come to wait for a world may fail always: then all are started again.
    """
    stages = (Stage.RUNNING, Stage.PAUSING, Stage.LAUNCHED, Stage.READY)
    is_proven = state.keeps_memory and state.proven and not state.launched
    return is_proven and state.stage in stages and find_end(state) is None and not state.replaced & frozenset(pids)


def is_between(state: State) -> bool:
    """Whether workers that fail have to be left alone for a moment: the agent is about to be ready, or in a world."""
    return state.keeps_memory and state.proven and state.stage in (Stage.PREPARING, Stage.ENTERING)


def is_short_of_new_ones(state: State) -> bool:
    """Whether all sessions that have left the world wait for the next one, and those that were replaced do not yet."""
    return len(state.replaced | {one.pid for one in state.idle}) >= state.published.nproc


def find_why(state: State, found: wire.Failure | None, now: float) -> wire.Failure | None:
    """Why the workers exited, unless they were asked to. `found` is the failure that torch noted.

    A local failure may be what ended the generation: other members can report it before torch polls its workers.
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


def find_unsaved(state: State, found: wire.Failure | None) -> wire.Failure | None:
    """The failure of a worker that was asked to save, and ended with an error of its own instead."""
    if state.granted == 0 or found is None or found.exit_code in _STOPPED:
        return None
    return found


def find_breakage(state: State, now: float) -> wire.Failure | None:
    """The error that the sessions reported if their world broke without an order of the hub."""
    if state.generation == 0 or is_over(state, state.generation, now):
        return None
    errors = [one.error for one in state.idle if one.error]
    return wire.Failure(state.generation, message=errors[0]) if errors else None
