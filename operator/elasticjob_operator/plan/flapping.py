"""Members that leave a world and are ready again at once, again and again, with no failure to account for. Pure.

It happens in a job that is well: a connection between two pods breaks and comes back. So a few are free. A program
that does nothing else would have the operator form worlds without end; from then on it is that member's failure, the
next world waits until one more is free, and a condition names the member. The status keeps one time: when all of them
will be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.failures.classify import Fault
from elasticjob_operator.failures.silence import Finding
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict
from elasticjob_operator.model.observe import format_time, parse_time
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan.values import Seen

FREE = 5  # that are free at once ...
SECONDS = 60.0  # ... and one more whenever this has passed
CALM_SECONDS = 3 * SECONDS  # without one that is charged: a job that goes on so is charged every other minute
REASON = "LeftWorld"


def find_first(seen: Seen, spec: api.Spec, verdicts: Sequence[MemberVerdict]) -> MemberVerdict | None:
    """The member that left first, where the world has ended and nothing else has ended it; else None."""
    if not verdicts or not all(_left_by_itself(j) for j in verdicts):
        return None
    members = {j.member.uid for j in verdicts}
    if len(members) < spec.wanted and any(
        a.connected and a.state.phase is AgentPhase.READY for uid, a in seen.agents.items() if uid not in members
    ):
        return None  # it was to grow
    if _has_lost_others(seen.job.status):
        return None  # it was to grow, and the joiner has failed meanwhile
    return min(verdicts, key=_left_at)


def _has_lost_others(status: api.Status) -> bool:
    """Whether a failure of something else was noted since the world was formed."""
    backoff = status.restarts.backoff
    failed, formed = parse_time(backoff.since) if backoff else None, parse_time(status.rendezvous.formed_time)
    return failed is not None and formed is not None and failed >= formed


def _left_by_itself(verdicts: MemberVerdict) -> bool:
    agent = verdicts.worker.agent if verdicts.worker else None
    return (
        verdicts.health is MemberHealth.STOPPED
        and not verdicts.leaving
        and agent is not None
        and agent.state.failure is None
    )


def _left_at(verdicts: MemberVerdict) -> float:
    agent = verdicts.worker.agent if verdicts.worker else None
    return agent.state_since if agent else 0.0


def note(restarts: api.RestartStatus, generation: int, now: float) -> tuple[api.RestartStatus, bool]:
    """The status with one more, and whether it is free."""
    until = max(now, _until(restarts, now)) + SECONDS
    if until <= now + FREE * SECONDS:
        counted = max(generation, restarts.generation)
        return revise(restarts, unasked_until=format_time(until), generation=counted), True
    # What charges it notes the generation.
    return revise(restarts, unasked_until=format_time(now + (FREE + 1) * SECONDS)), False


def hold_until(restarts: api.RestartStatus, now: float) -> float:
    """No world is formed before this."""
    return _until(restarts, now) - FREE * SECONDS


def fault_of(verdicts: MemberVerdict) -> Fault:
    """What is charged: the failure of the one that began."""
    member = verdicts.member
    message = (
        "it left the world and was ready again, again and again, without a failure: does its script call for that?"
    )
    return Fault(pod=member.pod, node=member.node, rank=member.rank, reason=REASON, message=message)


def find_restless(status: api.Status, now: float) -> Finding:
    """What was charged to a member lately; cleared once the job has been calm for a while."""
    last = status.last_failure
    left = parse_time(last.time) if last is not None and last.reason == REASON else None
    if last is None or left is None or not left <= now < left + CALM_SECONDS:
        return Finding()
    return Finding(REASON, last.message or "", left + CALM_SECONDS)


def _until(restarts: api.RestartStatus, now: float) -> float:
    until = parse_time(restarts.unasked_until) or 0.0
    # A clock that was set back: nobody waits for the old time to come again.
    return until if until <= now + (FREE + 1) * SECONDS else 0.0
