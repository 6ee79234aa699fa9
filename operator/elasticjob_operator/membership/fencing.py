"""Fencing: which members have left the old world, which must still confirm it, and the deadline for that. Pure.

A world can train only with all its members, so a single member that has left it for good ends it.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Situation, lost_its_store
from elasticjob_operator.times import parse_time


def is_out(verdicts: MemberVerdict, world: api.RendezvousStatus) -> bool:
    """Whether it is certain that this member does not train in the current generation, now or later.

    `ready` is no proof: a `world` directive may be in flight. A confirmation stays valid after a disconnect: an agent
    never enters a generation that it has left or given up.
    """
    worker = verdicts.worker
    if worker is None or worker.pod.terminal or verdicts.health is MemberHealth.SUCCEEDED:
        return True
    if worker.agent is None:
        return False
    state = worker.agent.state
    if state.phase in (AgentPhase.READY, AgentPhase.STARTING) and state.generation >= world.generation:
        return True
    return state.phase is AgentPhase.FAILED or lost_its_store(verdicts.member, state, world)


def is_late(verdicts: MemberVerdict, situation: Situation) -> bool:
    """Whether the member could not start because of rank 0. Send it nothing: its reply would hide rank 0's failure."""
    return verdicts.health is MemberHealth.STOPPED and not is_out(verdicts, situation.world)


def has_to_stop(verdicts: MemberVerdict, situation: Situation) -> bool:
    """Whether the next world waits for this member. A ready member must confirm that it gives up this one."""
    if verdicts.health is MemberHealth.LOST:  # blamed for the other members' failure, but it may still run or start
        agent = verdicts.worker.agent if verdicts.worker else None
        if agent is None or not agent.connected or agent.mute:
            return False
        if agent.state.phase is AgentPhase.READY:
            return verdicts.member.rank == 0 and not is_out(verdicts, situation.world)
        return agent.state.phase in wire.IN_WORLD
    return verdicts.health in (MemberHealth.RUNNING, MemberHealth.STARTING, MemberHealth.STOPPING, MemberHealth.SUSPECT)


def stop_deadline(situation: Situation, verdicts: Sequence[MemberVerdict]) -> float | None:
    """The deadline (seconds since the epoch) for members to stop, counted from the latest change."""
    if situation.broken_since is None:
        return None
    agents = [j.worker.agent for j in verdicts if j.worker and j.worker.agent]
    times = [situation.broken_since, parse_time(situation.world.formed_time) or 0.0]
    times += [t for a in agents for t in (a.since, a.state_since)]
    return max(times) + situation.grace + situation.settings.stop + situation.settings.start
