"""Decides who is in the world. Pure: agents, pods, wanted sizes and the time → a directive for every agent.

A *generation* is a numbered world: ordered members, ranks and the address of rank 0's store. It is written to the job's
status before any agent gets it, so that a restarted operator reads it and continues.
`decide` is level-triggered: it depends on the health of each member in the current generation, never on past events,
and is idempotent.

The rules, in order: a success freezes the world; a broken world regroups at once with the remaining members; an intact
world changes only for members that leave or joiners that are ready; otherwise nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import Cause
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.membership import changes, directives, fencing, joiners
from elasticjob_operator.membership.member_health import (
    MemberHealth,
    MemberVerdict,
    Situation,
    Worker,
    judge,
)
from elasticjob_operator.sizing.legal import Sizes
from elasticjob_operator.times import format_time


class State(StrEnum):
    WAITING = "waiting"  # too few pods are ready
    STARTING = "starting"  # announced, but not all members run yet
    RUNNING = "running"
    REGROUPING = "regrouping"
    ENDING = "ending"  # a member succeeded; the world is frozen


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    reason: str
    directives: Mapping[str, wire.Directive] = field(default_factory=dict)  # by pod UID
    world: api.RendezvousStatus | None = None  # a new generation, to be persisted before it is announced
    verdicts: tuple[MemberVerdict, ...] = ()
    cause: str = ""  # why the current generation is over: scale-up, scale-down, lost, failed, ...
    wake_at: float | None = None

    def health(self, *standings: MemberHealth) -> tuple[MemberVerdict, ...]:
        return tuple(j for j in self.verdicts if j.health in standings)


_MOVES = (Cause.DRAIN, Cause.NODE_LEAVING)  # why a pod that still can train is to do so elsewhere
_BROKEN = (MemberHealth.STOPPED, MemberHealth.STOPPING, MemberHealth.LOST)


def decide(situation: Situation, verdicts: tuple[MemberVerdict, ...] | None = None) -> Decision:
    """Decide whether to keep the world, regroup, form the next generation, or wait.

    `verdicts`: the result of `judge` for this situation, if it has been computed already.
    """
    if situation.world.succeeded:  # only members that have not finished yet continue
        situation = replace(situation, sizes=Sizes(min=1, wanted=len(situation.world.members)))
    if verdicts is None:
        verdicts = judge(situation)
    if not verdicts:  # the first world, or the first one after a suspension
        return _form(situation, verdicts, cause=Cause.START)
    if any(j.health is MemberHealth.SUCCEEDED for j in verdicts):
        return _finish(situation, verdicts)
    if any(j.health in _BROKEN or _is_hung(j, situation) for j in verdicts) or _are_quiet(verdicts, situation):
        return _regroup(
            situation, verdicts, cause=breaking_cause(situation, verdicts), checkpoint=_can_save(situation, verdicts)
        )
    if situation.ordered is not None:
        return _regroup(situation, verdicts, cause=Cause.RULE, checkpoint=situation.ordered.saves)
    if situation.is_outdated:
        return _regroup(situation, verdicts, cause=Cause.UPDATE, checkpoint=True)
    change = changes.find_change(situation, verdicts)
    if change.cause:
        return _regroup(situation, verdicts, cause=change.cause, checkpoint=True)
    return _keep(situation, verdicts, change.wake_at)


def _finish(situation: Situation, verdicts: tuple[MemberVerdict, ...]) -> Decision:
    """A member has succeeded: the world is frozen. Members that can no longer finish run again without the others."""
    rest = tuple(j for j in verdicts if j.health is not MemberHealth.SUCCEEDED)
    if any(j.health in _BROKEN for j in rest):
        alone = replace(situation, sizes=Sizes(min=1, wanted=len(rest)))
        return _regroup(alone, verdicts, cause=breaking_cause(situation, rest), checkpoint=False)
    kept = _keep(situation, verdicts, None)
    return replace(kept, state=State.ENDING, reason="members are finishing")


# --- why a world ends ------------------------------------------------------------------------------------


def _has_failed(verdicts: MemberVerdict) -> bool:
    agent = verdicts.worker.agent if verdicts.worker else None
    return agent is not None and agent.state.failure is not None


def _is_hung(verdicts: MemberVerdict, situation: Situation) -> bool:
    """Whether the member's agent reports that this world hangs."""
    agent = verdicts.worker.agent if verdicts.worker else None
    failure = agent.state.failure if agent is not None else None
    return failure is not None and failure.kind == wire.HANG and failure.generation == situation.world.generation


def _are_quiet(verdicts: Sequence[MemberVerdict], situation: Situation) -> bool:
    """Whether all members run, and no worker of any of them computes, communicates, reads or writes.

    One that does has a reason to let the others wait: it evaluates, or saves a checkpoint.
    """
    agents = [j.worker.agent for j in verdicts if j.worker is not None and j.health is MemberHealth.RUNNING]
    generation = situation.world.generation
    return len(agents) == len(verdicts) > 0 and all(a is not None and a.state.quiet == generation for a in agents)


def breaking_cause(situation: Situation, verdicts: Sequence[MemberVerdict]) -> str:
    """Why the world must end, evaluated anew in every pass; `REGROUP` if its members have left it for no reason."""
    if any(_is_hung(j, situation) for j in verdicts) or _are_quiet(verdicts, situation):
        return Cause.HUNG
    broken = [j for j in verdicts if j.health in _BROKEN]
    if any(_has_failed(j) for j in broken):
        return Cause.FAILED
    if any(j.health is MemberHealth.LOST and not j.leaving for j in broken):
        return Cause.LOST
    if situation.ordered is not None:
        return Cause.RULE
    if situation.is_outdated:
        return Cause.UPDATE
    leaving = next((j.leaving for j in verdicts if j.leaving), "")
    if leaving:
        return leaving
    coming = joiners.find_joiners(situation, verdicts)
    if coming and any(j.worker and j.worker.replaced for j in verdicts):
        return Cause.STRAGGLER
    return Cause.SCALE_UP if situation.sizes.legal(len(verdicts) + len(coming)) > len(verdicts) else Cause.REGROUP


def _can_save(situation: Situation, verdicts: Sequence[MemberVerdict]) -> bool:
    """Whether the running members can save a checkpoint.

    They must not if a rule wants an older state. They cannot if a member has failed, if one that was not leaving is
    lost, or if every running member is blocked in a collective: none of them will return from it.
    """
    if situation.ordered is not None and not situation.ordered.saves:
        return False
    if _are_quiet(verdicts, situation) or any(
        _has_failed(j) or (j.health is MemberHealth.LOST and not j.leaving) for j in verdicts
    ):
        return False
    rest = [j for j in verdicts if j.health not in (MemberHealth.STOPPED, MemberHealth.LOST)]
    return not rest or not all(_is_blocked(j) for j in rest)


def _is_blocked(verdict: MemberVerdict) -> bool:
    agent = verdict.worker.agent if verdict.worker else None
    return verdict.health is MemberHealth.STOPPING and agent is not None and agent.state.blocked


# --- keeping, regrouping, forming ------------------------------------------------------------------------


def _keep(situation: Situation, verdicts: tuple[MemberVerdict, ...], wake_at: float | None) -> Decision:
    told: dict[str, wire.Directive] = {}
    inside: list[api.Member] = []
    for j in verdicts:
        agent = j.worker.agent if j.worker else None
        if agent is None or not agent.connected:
            continue
        if agent.state.generation < situation.world.generation and agent.state.phase is not AgentPhase.READY:
            # It missed the end of an older generation; the current one is not over.
            late = directives.build_regroup(situation, "late", checkpoint=False, generation=agent.state.generation)
            told[j.member.uid] = late
        else:
            inside.append(j.member)
    told |= directives.build_worlds(situation, inside)
    told |= directives.fence(situation, situation.world.members)
    suspect = next((j for j in verdicts if j.health is MemberHealth.SUSPECT), None)
    starting = any(j.health is MemberHealth.STARTING for j in verdicts)
    reason = f"{suspect.member.pod}: {suspect.why}" if suspect else ("members are starting" if starting else "running")
    state = State.STARTING if starting else State.RUNNING
    return Decision(state, reason, told, verdicts=verdicts, wake_at=_earliest(verdicts, wake_at))


def _regroup(situation: Situation, verdicts: tuple[MemberVerdict, ...], *, cause: str, checkpoint: bool) -> Decision:
    """The generation is over: all members stop. Once all live ones have stopped, the next generation is formed."""
    pending = [j for j in verdicts if fencing.has_to_stop(j, situation)]
    until = fencing.stop_deadline(situation, verdicts)
    if until is not None and situation.now >= until:  # their store and peers are gone, and they do not react
        why = "it did not stop its workers"
        verdicts = tuple(replace(j, health=MemberHealth.LOST, why=why) if j in pending else j for j in verdicts)
        pending = []
    if not pending:
        return _form(situation, verdicts, cause=cause)
    told = _end_directives(
        situation, [j for j in verdicts if not fencing.is_late(j, situation)], cause, checkpoint=checkpoint
    )
    told |= directives.fence(situation, situation.world.members)
    waits = ", ".join(j.member.pod for j in pending)
    reason = f"{cause}: waiting for {waits} to stop"
    wake_at = _earliest(verdicts, until)
    return Decision(State.REGROUPING, reason, told, verdicts=verdicts, cause=cause, wake_at=wake_at)


def _end_directives(
    situation: Situation, verdicts: Sequence[MemberVerdict], cause: str, *, checkpoint: bool
) -> dict[str, wire.Directive]:
    return {
        j.member.uid: directives.build_regroup(situation, cause, checkpoint=checkpoint)
        for j in verdicts
        if j.worker and j.worker.agent and j.worker.agent.connected and j.health is not MemberHealth.SUCCEEDED
    }


def _form(situation: Situation, verdicts: tuple[MemberVerdict, ...], *, cause: str) -> Decision:
    """Form the next generation from the ready agents: survivors keep their order, joiners are appended."""
    survivors = [j.worker for j in verdicts if j.worker and _may_go_on(j)]
    coming = joiners.find_joiners(situation, verdicts)
    candidates = [*survivors, *coming]
    size = situation.sizes.legal(len(candidates))
    if size == 0 and not joiners.count_coming(situation, verdicts):
        # Nobody else can train, and pods that are to leave need not until others can.
        survivors = [j.worker for j in verdicts if j.worker and _may_go_on(j, until_replaced=True)]
        candidates = [*survivors, *coming]
        size = situation.sizes.legal(len(candidates))
    wait = _why_wait(situation, verdicts, survivors, candidates, size)
    if wait is not None:
        told = directives.fence(situation, ())
        told |= _end_directives(
            situation, [j for j in verdicts if not fencing.is_out(j, situation.world)], cause, checkpoint=False
        )
        return Decision(State.WAITING, wait.reason, told, verdicts=verdicts, cause=cause, wake_at=wait.until)
    world = _next_world(situation, joiners.choose(situation, survivors, coming, size), cause)
    announced = replace(situation, world=world)
    told = directives.fence(announced, world.members)
    told |= directives.build_worlds(announced, world.members)
    wake_at = situation.now + situation.settings.start
    return Decision(State.STARTING, cause, told, world=world, verdicts=verdicts, cause=cause, wake_at=wake_at)


def _may_go_on(verdicts: MemberVerdict, *, until_replaced: bool = False) -> bool:
    """`until_replaced`: also one that is to leave its node, once others can train without it."""
    worker = verdicts.worker
    return (
        worker is not None
        and verdicts.health is MemberHealth.STOPPED
        and joiners.is_ready(worker)
        and (not worker.leaving or (until_replaced and worker.leaving in _MOVES))
        and worker.pod.live
    )


@dataclass(frozen=True, slots=True)
class _Wait:
    reason: str
    until: float | None = None


def _why_wait(
    situation: Situation,
    verdicts: Sequence[MemberVerdict],
    survivors: Sequence[Worker],
    candidates: Sequence[Worker],
    size: int,
) -> _Wait | None:
    """Why no world is formed now, and when to check again; None if one is formed."""
    sizes, now, settings = situation.sizes, situation.now, situation.settings
    if size == 0:
        return _Wait(f"{len(candidates)} of at least {sizes.min} pods are ready")
    if now < situation.hold_until:
        return _Wait("backing off after a failure", situation.hold_until)
    doubtful = [j for j in verdicts if not fencing.is_out(j, situation.world)]
    # It may still train in the old world: there must never be two. A world that lost a member for good has ended.
    ended = bool(survivors) and len(doubtful) < len(verdicts)
    if doubtful and not ended:
        return _Wait(f"{doubtful[0].member.pod} of the old world may still be training")
    if len(survivors) >= sizes.min or size >= sizes.legal(sizes.wanted):
        return None
    if not joiners.count_coming(situation, verdicts):
        return None
    since = sorted(w.agent.state_since for w in candidates if w.agent)
    patience = since[sizes.min - 1] + settings.join_patience
    # Without their number: each pod that becomes ready would be a write.
    return _Wait("enough pods are ready, others are starting", patience) if now < patience else None


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
    assert store is not None, "only ready agents are chosen, and each has a store"
    return api.RendezvousStatus(
        generation=situation.world.generation + 1,
        world_size=len(members),
        processes=sum(m.nproc for m in members),
        members=members,
        store=api.StoreAddress(address=store.address, port=store.port),
        formed_time=format_time(situation.now),
        reason=cause,
        revision=(situation.code.revision or None) if situation.code else None,
    )


def _earliest(verdicts: Sequence[MemberVerdict], other: float | None) -> float | None:
    return min((at for at in (other, *(j.until for j in verdicts)) if at is not None), default=None)
