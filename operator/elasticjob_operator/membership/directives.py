"""Builds the directives for the agents of a job. Pure; a directive stays in force until another one replaces it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from elasticjob_operator.api import Member, names, wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.membership.member_health import Situation
from elasticjob_operator.model.observe import Agent


def build_worlds(situation: Situation, members: Sequence[Member]) -> dict[str, wire.Directive]:
    """The `world` directives of the current generation for each of `members`, by pod UID.

    All of them share one list of members: otherwise a world of a thousand would create a million objects.
    """
    if not members:
        return {}
    world = situation.world
    assert world.store is not None, "a generation is persisted with its store"
    one = wire.World(
        generation=world.generation,
        rank=0,
        members=tuple(wire.Member(pod=m.pod, rank=m.rank, address=m.address, nproc=m.nproc) for m in world.members),
        store=wire.Store(address=world.store.address, port=world.store.port),
        restarts=situation.restarts,
        repeats=situation.repeats or None,
        before=situation.before,
        code=situation.code,
    )
    return {m.uid: one.model_copy(update={"rank": m.rank}) for m in members}


def build_regroup(situation: Situation, cause: str, *, checkpoint: bool, generation: int | None = None) -> wire.Regroup:
    """The directive that this generation (by default the current one) and all earlier ones are over."""
    over = situation.world.generation if generation is None else generation
    ends = situation.ordered is not None or situation.is_outdated
    fresh = True if ends and generation is None else None
    return wire.Regroup(
        generation=over,
        reason=cause,
        checkpoint=checkpoint,
        grace_seconds=situation.grace,
        fresh=fresh,
        code=situation.code,
    )


def fence(situation: Situation, members: Iterable[Member]) -> dict[str, wire.Directive]:
    """Directives that stop agents outside the world that still run an old generation."""
    inside = {m.uid for m in members}
    return {
        w.pod.uid: wire.Regroup(generation=situation.world.generation, reason="fenced")
        for w in situation.workers
        if w.pod.uid not in inside and w.agent and w.agent.connected and w.agent.state.phase in wire.BUSY
    }


def release(agents: Mapping[str, Agent], served: Collection[str]) -> dict[str, wire.Directive]:
    """Stop directives for terminating agents whose pods (by UID) no job manages any more.

    No world will be formed without them, so they need not wait for one. An agent that is not terminating keeps
    training: whoever deletes a job with orphaned pods intends that.
    """
    stop = wire.Stop(reason=names.GONE, checkpoint=True)
    return {
        uid: stop
        for uid, agent in agents.items()
        if uid not in served and agent.connected and agent.state.phase is AgentPhase.LEAVING
    }
