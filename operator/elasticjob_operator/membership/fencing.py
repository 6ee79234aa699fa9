"""Whether the old world is over: who is out of it, who still has to say so, and how long that is waited for. Pure.

A world trains only with all its members. One member that is out of it for good ends it, wherever the others are.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Situation, lost_its_store
from elasticjob_operator.model.observe import parse_time


def is_out(verdicts: MemberVerdict, world: api.RendezvousStatus) -> bool:
    """Proof that this member trains in the present generation neither now nor later.

    That it is ready and has not started is none: the word that it may start can be on its way. What it said once holds
    when it is away, too: an agent never enters a generation that it has left or given up.
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
    """It could not start, and rank 0 is blamed for it. It is told nothing meanwhile: its answer would be no blame."""
    return verdicts.health is MemberHealth.STOPPED and not is_out(verdicts, situation.world)


def has_to_stop(verdicts: MemberVerdict, situation: Situation) -> bool:
    """Whether the next world waits for this member. One that is ready has to say that it gives this one up."""
    if verdicts.health is MemberHealth.LOST:  # blamed for the others' trouble, and it still runs or may start to
        agent = verdicts.worker.agent if verdicts.worker else None
        if agent is None or not agent.connected:
            return False
        if agent.state.phase is AgentPhase.READY:
            return verdicts.member.rank == 0 and not is_out(verdicts, situation.world)
        return agent.state.phase in wire.IN_WORLD
    return verdicts.health in (MemberHealth.RUNNING, MemberHealth.STARTING, MemberHealth.STOPPING, MemberHealth.SUSPECT)


def stop_deadline(situation: Situation, verdicts: Sequence[MemberVerdict]) -> float | None:
    """When the patience with members that do not stop is over: counted from the last thing that happened."""
    if situation.broken_since is None:
        return None
    agents = [j.worker.agent for j in verdicts if j.worker and j.worker.agent]
    times = [situation.broken_since, parse_time(situation.world.formed_time) or 0.0]
    times += [t for a in agents for t in (a.since, a.state_since)]
    return max(times) + situation.grace + situation.settings.stop + situation.settings.start
