"""Members that leave a world and are ready again at once, again and again, with no failure to account for. Pure.

It happens in a job that is well: a connection between two pods breaks and comes back. So a few are free. A program
that does nothing else would have the operator form worlds without end; from then on it is that member's failure, and
the next world waits until one more is free. The status keeps one time: when all of them will be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.faults import Fault
from elasticjob_operator.observe import format_time, parse_time
from elasticjob_operator.records import Seen
from elasticjob_operator.standing import Judged, Standing
from elasticjob_operator.wire import AgentPhase

FREE = 5  # that are free at once ...
SECONDS = 60.0  # ... and one more whenever this has passed


def find_first(seen: Seen, spec: api.Spec, judged: Sequence[Judged]) -> Judged | None:
    """The member that left first, where the world has ended and nothing else has ended it; else None."""
    if not judged or not all(_left_by_itself(j) for j in judged):
        return None
    members = {j.member.uid for j in judged}
    if len(members) < spec.wanted and any(
        a.connected and a.state.phase is AgentPhase.READY for uid, a in seen.agents.items() if uid not in members
    ):
        return None  # it was to grow
    return min(judged, key=_left_at)


def _left_by_itself(judged: Judged) -> bool:
    agent = judged.worker.agent if judged.worker else None
    return (
        judged.standing is Standing.STOPPED and not judged.leaving and agent is not None and agent.state.failure is None
    )


def _left_at(judged: Judged) -> float:
    agent = judged.worker.agent if judged.worker else None
    return agent.state_since if agent else 0.0


def note(restarts: api.RestartStatus, generation: int, now: float) -> tuple[api.RestartStatus, bool]:
    """The status with one more, and whether it is free."""
    until = max(now, _until(restarts, now)) + SECONDS
    changes = {"unasked_until": format_time(until), "generation": max(generation, restarts.generation)}
    if until <= now + FREE * SECONDS:
        return restarts.model_copy(update=changes), True
    changes["unasked_until"] = format_time(now + (FREE + 1) * SECONDS)
    del changes["generation"]  # what charges it says so
    return restarts.model_copy(update=changes), False


def hold_until(restarts: api.RestartStatus, now: float) -> float:
    """No world is formed before this."""
    return _until(restarts, now) - FREE * SECONDS


def fault_of(judged: Judged) -> Fault:
    """What is charged: the failure of the one that began."""
    member = judged.member
    message = (
        "it left the world and was ready again, again and again, without a failure: does its script call for that?"
    )
    return Fault(pod=member.pod, node=member.node, rank=member.rank, reason="LeftWorld", message=message)


def _until(restarts: api.RestartStatus, now: float) -> float:
    until = parse_time(restarts.unasked_until) or 0.0
    # A clock that was set back: nobody waits for the old time to come again.
    return until if until <= now + (FREE + 1) * SECONDS else 0.0
