"""Whether the old world is over: who is out of it, who still has to say so, and how long that is waited for. Pure.

A world trains only with all its members. One member that is out of it for good ends it, wherever the others are.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.observe import parse_time
from elasticjob_operator.standing import Judged, Situation, Standing, lost_its_store
from elasticjob_operator.wire import AgentPhase


def is_out(judged: Judged, world: api.RendezvousStatus) -> bool:
    """Proof that this member trains in the present generation neither now nor later.

    That it is ready and has not started is none: the word that it may start can be on its way. What it said once holds
    when it is away, too: an agent never enters a generation that it has left or given up.
    """
    worker = judged.worker
    if worker is None or worker.pod.terminal or judged.standing is Standing.SUCCEEDED:
        return True
    if worker.agent is None:
        return False
    state = worker.agent.state
    if state.phase in (AgentPhase.READY, AgentPhase.STARTING) and state.generation >= world.generation:
        return True
    return state.phase is AgentPhase.FAILED or lost_its_store(judged.member, state, world)


def is_late(judged: Judged, situation: Situation) -> bool:
    """It could not start, and rank 0 is blamed for it. It is told nothing meanwhile: its answer would be no blame."""
    return judged.standing is Standing.STOPPED and not is_out(judged, situation.world)


def has_to_stop(judged: Judged, situation: Situation) -> bool:
    """Whether the next world waits for this member. One that is ready has to say that it gives this one up."""
    if judged.standing is Standing.LOST:  # blamed for the others' trouble, and it still runs or may start to
        agent = judged.worker.agent if judged.worker else None
        if agent is None or not agent.connected:
            return False
        if agent.state.phase is AgentPhase.READY:
            return judged.member.rank == 0 and not is_out(judged, situation.world)
        return agent.state.phase in (AgentPhase.RUNNING, AgentPhase.LEAVING)
    return judged.standing in (Standing.RUNNING, Standing.STARTING, Standing.STOPPING, Standing.SUSPECT)


def stop_deadline(situation: Situation, judged: Sequence[Judged]) -> float | None:
    """When the patience with members that do not stop is over: counted from the last thing that happened."""
    if situation.broken_since is None:
        return None
    agents = [j.worker.agent for j in judged if j.worker and j.worker.agent]
    times = [situation.broken_since, parse_time(situation.world.formed_time) or 0.0]
    times += [t for a in agents for t in (a.since, a.state_since)]
    return max(times) + situation.grace + situation.settings.stop + situation.settings.start
