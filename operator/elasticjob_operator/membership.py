"""Who is in the world. Pure: agents' states + pods + wanted sizes + now → what every agent is told.

A *generation* is a numbered world: ordered members, ranks and the address of rank 0's store. It lives in the job's
status and is written there before anybody hears of it, so an operator that starts anew reads it and goes on.
`decide` is level-triggered: it looks at how each member stands towards the present generation, never at what happened
before, and calling it twice with the same values gives the same answer.

The rules, from the top: a success freezes the world; a broken world regroups at once with whoever is left; a whole
world changes only for members that leave or newcomers that are ready; everything else is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elasticjob_operator import api, directives, newcomers, proof, wire
from elasticjob_operator.observe import format_time
from elasticjob_operator.standing import (
    Judged,
    Situation,
    Sizes,
    Standing,
    Worker,
    judge,
)
from elasticjob_operator.wire import AgentPhase


class State(StrEnum):
    WAITING = "waiting"  # too few are ready
    STARTING = "starting"  # announced, not all run yet
    RUNNING = "running"
    REGROUPING = "regrouping"
    ENDING = "ending"  # a member succeeded; the world is frozen


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    reason: str
    directives: Mapping[str, wire.Directive] = field(default_factory=dict)  # by pod UID
    world: api.RendezvousStatus | None = None  # a new generation, to be persisted before it is announced
    judged: tuple[Judged, ...] = ()
    cause: str = ""  # why the present generation is over: scale-up, scale-down, lost, failed, ...
    wake_at: float | None = None

    def standing(self, *standings: Standing) -> tuple[Judged, ...]:
        return tuple(j for j in self.judged if j.standing in standings)


_BROKEN = (Standing.STOPPED, Standing.STOPPING, Standing.LOST)


def decide(situation: Situation) -> Decision:
    """What holds now: keep, regroup, form the next generation, or wait."""
    if situation.world.succeeded:  # only those that have not finished yet go on
        situation = replace(situation, sizes=Sizes(min=1, wanted=len(situation.world.members)))
    judged = judge(situation)
    if not judged:  # the first world, or the first after a pause
        return _form(situation, judged, cause="start")
    if any(j.standing is Standing.SUCCEEDED for j in judged):
        return _finish(situation, judged)
    if any(j.standing in _BROKEN or _is_hung(j, situation) for j in judged):
        return _regroup(situation, judged, cause=_breaking_cause(situation, judged), checkpoint=_can_save(judged))
    change = _wanted_change(situation, judged)
    if change.cause:
        return _regroup(situation, judged, cause=change.cause, checkpoint=True)
    return _keep(situation, judged, change.wake_at)


def _finish(situation: Situation, judged: tuple[Judged, ...]) -> Decision:
    """A member has succeeded: the world is frozen. Members that cannot end any more run again without the others."""
    rest = tuple(j for j in judged if j.standing is not Standing.SUCCEEDED)
    if any(j.standing in _BROKEN for j in rest):
        alone = replace(situation, sizes=Sizes(min=1, wanted=len(rest)))
        return _regroup(alone, judged, cause=_breaking_cause(situation, rest), checkpoint=False)
    kept = _keep(situation, judged, None)
    return replace(kept, state=State.ENDING, reason="members finish")


# --- why a world ends ------------------------------------------------------------------------------------


def _has_failed(judged: Judged) -> bool:
    agent = judged.worker.agent if judged.worker else None
    return agent is not None and agent.state.failure is not None


def _is_hung(judged: Judged, situation: Situation) -> bool:
    """Whether its agent says that this world makes no steps any more."""
    agent = judged.worker.agent if judged.worker else None
    failure = agent.state.failure if agent is not None else None
    return failure is not None and failure.kind == wire.HANG and failure.generation == situation.world.generation


def _breaking_cause(situation: Situation, judged: Sequence[Judged]) -> str:
    """Looked at anew in every pass, so it says what holds now: who failed, who is gone, who goes, who comes."""
    if any(_is_hung(j, situation) for j in judged):
        return wire.HUNG
    broken = [j for j in judged if j.standing in _BROKEN]
    if any(_has_failed(j) for j in broken):
        return "failed"
    if any(j.standing is Standing.LOST and not j.leaving for j in broken):
        return "lost"
    leaving = next((j.leaving for j in judged if j.leaving), "")
    if leaving:
        return leaving
    return "scale-up" if newcomers.find_newcomers(situation, judged) else "regroup"


def _can_save(judged: Sequence[Judged]) -> bool:
    """Whether the members that still run can checkpoint: nobody failed, and only those are gone who were to go."""
    return not any(_has_failed(j) or (j.standing is Standing.LOST and not j.leaving) for j in judged)


@dataclass(frozen=True, slots=True)
class _Change:
    cause: str = ""
    wake_at: float | None = None


def _wanted_change(situation: Situation, judged: Sequence[Judged]) -> _Change:
    """Whether a whole world should become another one."""
    sizes, coming = situation.sizes, newcomers.find_newcomers(situation, judged)
    leaving = [j.worker for j in judged if j.worker and j.worker.leaving]
    urgent = next((w for w in leaving if not w.patient), None)
    if urgent:
        return _Change(urgent.leaving)
    if leaving and sizes.legal(len(judged) - len(leaving) + len(coming)):
        return _Change(leaving[0].leaving)
    if sizes.legal(len(judged)) not in (0, len(judged)):
        return _Change("scale-down")
    if any(j.standing in (Standing.SUSPECT, Standing.STARTING) for j in judged):
        # Do not grow a world of which a member may just be lost, nor one that a member may be entering: if it were cut
        # off then, it would train on in the old world while the new one goes on without it.
        return _Change()
    return _wanted_growth(situation, judged, coming)


def _wanted_growth(situation: Situation, judged: Sequence[Judged], coming: Sequence[Worker]) -> _Change:
    sizes, now = situation.sizes, situation.now
    admissible = [w for w in coming if w.held_until <= now]
    held = min((w.held_until for w in coming if w.held_until > now), default=None)
    target = sizes.legal(len(judged) + len(admissible))
    if target <= len(judged):
        return _Change(wake_at=held)
    possible = sizes.legal(len(judged) + len(admissible) + newcomers.count_coming(situation, judged))
    if possible > target:  # others come soon: one change for all of them
        until = min(w.agent.state_since for w in admissible if w.agent) + situation.settings.admit
        if now < until:
            return _Change(wake_at=until)
    return _Change("scale-up")


# --- keeping, regrouping, forming ------------------------------------------------------------------------


def _keep(situation: Situation, judged: tuple[Judged, ...], wake_at: float | None) -> Decision:
    told: dict[str, wire.Directive] = {}
    inside: list[api.Member] = []
    for j in judged:
        agent = j.worker.agent if j.worker else None
        if agent is None or not agent.connected:
            continue
        if agent.state.generation < situation.world.generation and agent.state.phase is not AgentPhase.READY:
            # It missed the end of an older generation; the present one is not over.
            late = directives.build_regroup(situation, "late", checkpoint=False, generation=agent.state.generation)
            told[j.member.uid] = late
        else:
            inside.append(j.member)
    told |= directives.build_worlds(situation, inside)
    told |= directives.fence(situation, situation.world.members)
    suspect = next((j for j in judged if j.standing is Standing.SUSPECT), None)
    starting = any(j.standing is Standing.STARTING for j in judged)
    reason = f"{suspect.member.pod}: {suspect.why}" if suspect else ("members start" if starting else "running")
    state = State.STARTING if starting else State.RUNNING
    return Decision(state, reason, told, judged=judged, wake_at=_earliest(judged, wake_at))


def _regroup(situation: Situation, judged: tuple[Judged, ...], *, cause: str, checkpoint: bool) -> Decision:
    """The generation is over: everybody stops; when all that live have stopped, the next one is formed."""
    pending = [j for j in judged if proof.has_to_stop(j, situation)]
    until = proof.stop_deadline(situation, judged)
    if until is not None and situation.now >= until:  # their store and their peers are gone, and they do not listen
        why = "it did not stop its workers"
        judged = tuple(replace(j, standing=Standing.LOST, why=why) if j in pending else j for j in judged)
        pending = []
    if not pending:
        return _form(situation, judged, cause=cause)
    told = _tell_end(situation, [j for j in judged if not proof.is_late(j, situation)], cause, checkpoint=checkpoint)
    told |= directives.fence(situation, situation.world.members)
    waits = ", ".join(j.member.pod for j in pending)
    reason = f"{cause}: waiting for {waits} to stop"
    wake_at = _earliest(judged, until)
    return Decision(State.REGROUPING, reason, told, judged=judged, cause=cause, wake_at=wake_at)


def _tell_end(
    situation: Situation, judged: Sequence[Judged], cause: str, *, checkpoint: bool
) -> dict[str, wire.Directive]:
    return {
        j.member.uid: directives.build_regroup(situation, cause, checkpoint=checkpoint)
        for j in judged
        if j.worker and j.worker.agent and j.worker.agent.connected and j.standing is not Standing.SUCCEEDED
    }


def _form(situation: Situation, judged: tuple[Judged, ...], *, cause: str) -> Decision:
    """The next generation, from whoever is ready: survivors keep their order, newcomers are appended."""
    survivors = [j.worker for j in judged if j.worker and _may_go_on(j)]
    candidates = [*survivors, *newcomers.find_newcomers(situation, judged)]
    size = situation.sizes.legal(len(candidates))
    wait = _why_wait(situation, judged, survivors, candidates, size)
    if wait is not None:
        told = directives.fence(situation, ())
        told |= _tell_end(
            situation, [j for j in judged if not proof.is_out(j, situation.world)], cause, checkpoint=False
        )
        return Decision(State.WAITING, wait.reason, told, judged=judged, cause=cause, wake_at=wait.until)
    world = _next_world(situation, candidates[:size], cause)
    announced = replace(situation, world=world)
    told = directives.fence(announced, world.members)
    told |= directives.build_worlds(announced, world.members)
    wake_at = situation.now + situation.settings.start
    return Decision(State.STARTING, cause, told, world=world, judged=judged, cause=cause, wake_at=wake_at)


def _may_go_on(judged: Judged) -> bool:
    worker = judged.worker
    return (
        worker is not None
        and judged.standing is Standing.STOPPED
        and newcomers.is_ready(worker)
        and not worker.leaving
        and worker.pod.live
    )


@dataclass(frozen=True, slots=True)
class _Wait:
    reason: str
    until: float | None = None


def _why_wait(
    situation: Situation,
    judged: Sequence[Judged],
    survivors: Sequence[Worker],
    candidates: Sequence[Worker],
    size: int,
) -> _Wait | None:
    """Why no world is formed now, and when to look again; None where one is."""
    sizes, now, settings = situation.sizes, situation.now, situation.settings
    if size == 0:
        return _Wait(f"{len(candidates)} of at least {sizes.min} ready")
    if now < situation.hold_until:
        return _Wait("backing off after a failure", situation.hold_until)
    doubtful = [j for j in judged if not proof.is_out(j, situation.world)]
    # It may still train in the old world: never two worlds at once. A world that misses one member for good has ended.
    ended = bool(survivors) and len(doubtful) < len(judged)
    if doubtful and not ended:
        return _Wait(f"{doubtful[0].member.pod} of the old world is not confirmed dead")
    if len(survivors) >= sizes.min or size >= sizes.legal(sizes.wanted):
        return None
    if not newcomers.count_coming(situation, judged):
        return None
    since = sorted(w.agent.state_since for w in candidates if w.agent)
    patience = since[sizes.min - 1] + settings.join_patience
    return _Wait(f"{len(candidates)} ready, others are on their way", patience) if now < patience else None


def _next_world(situation: Situation, chosen: Sequence[Worker], cause: str) -> api.RendezvousStatus:
    members = [
        api.Member(
            pod=w.pod.name,
            uid=w.pod.uid,
            node=w.pod.node,
            rank=rank,
            address=(w.agent.state.address if w.agent else None) or w.pod.ip or None,
            nproc=w.agent.state.nproc if w.agent else 1,
        )
        for rank, w in enumerate(chosen)
    ]
    first = chosen[0].agent
    store = first.state.store if first else None
    assert store is not None, "only ready agents are chosen, and they host a store"
    return api.RendezvousStatus(
        generation=situation.world.generation + 1,
        world_size=len(members),
        processes=sum(m.nproc for m in members),
        members=members,
        store=api.StoreAddress(address=store.address, port=store.port),
        formed_time=format_time(situation.now),
        reason=cause,
    )


def _earliest(judged: Sequence[Judged], other: float | None) -> float | None:
    times = [j.until for j in judged if j.until is not None]
    if other is not None:
        times.append(other)
    return min(times, default=None)
