"""Flapping: members that repeatedly leave a world and become ready again without a failure. Pure.

This also happens in a healthy job, when a connection between two pods breaks and recovers, so a few cases are free. A
program that does nothing else would make the operator form worlds for ever. After the free cases, each one is charged
to that member, the next world is delayed, and a condition names the member. The status stores a single time: when all
cases will have expired.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.api.names import Cause
from elasticjob_operator.failures.classify import Failure
from elasticjob_operator.failures.silence import Finding
from elasticjob_operator.membership import decide
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Situation
from elasticjob_operator.model.revise import revise
from elasticjob_operator.times import format_time, parse_time

FREE = 5  # cases that are free at once ...
SECONDS = 60.0  # ... plus one more per this many seconds
CALM_SECONDS = 3 * SECONDS  # time without a charge after which the condition is cleared
REASON = "LeftWorld"


def find_first(situation: Situation, status: api.Status, verdicts: Sequence[MemberVerdict]) -> MemberVerdict | None:
    """The member that left first, if the world ended for no other reason. `status`: as it was before this pass."""
    if not verdicts or not all(_has_left(j) for j in verdicts):
        return None
    if decide.breaking_cause(situation, verdicts) != Cause.REGROUP:
        return None
    if _has_lost_others(status):
        return None  # the world was ended to grow, and the joiner has failed meanwhile
    return min(verdicts, key=_left_at)


def _has_lost_others(status: api.Status) -> bool:
    """Whether another failure was recorded since the world was formed."""
    backoff = status.restarts.backoff
    failed, formed = parse_time(backoff.since) if backoff else None, parse_time(status.rendezvous.formed_time)
    return failed is not None and formed is not None and failed >= formed


def _has_left(verdict: MemberVerdict) -> bool:
    """Whether its agent says so: members of torch's own rendezvous have none."""
    agent = verdict.worker.agent if verdict.worker else None
    return agent is not None and verdict.health is MemberHealth.STOPPED


def _left_at(verdicts: MemberVerdict) -> float:
    agent = verdicts.worker.agent if verdicts.worker else None
    return agent.state_since if agent else 0.0


def note(restarts: api.RestartStatus, generation: int, now: float) -> tuple[api.RestartStatus, bool]:
    """The restart status with one more case, and whether that case is free."""
    until = max(now, _until(restarts, now)) + SECONDS
    if until <= now + FREE * SECONDS:
        counted = max(generation, restarts.generation)
        return revise(restarts, unasked_until=format_time(until), generation=counted), True
    # The generation is recorded when the case is charged.
    return revise(restarts, unasked_until=format_time(now + (FREE + 1) * SECONDS)), False


def hold_until(restarts: api.RestartStatus, now: float) -> float:
    """The time (seconds since the epoch) before which no world is formed."""
    return _until(restarts, now) - FREE * SECONDS


def failure_of(verdicts: MemberVerdict) -> Failure:
    """The failure to charge: that of the member that left first."""
    member = verdicts.member
    message = (
        "it repeatedly left the world and became ready again without a failure: check whether its script exits early"
    )
    return Failure(pod=member.pod, node=member.node, rank=member.rank, reason=REASON, message=message)


def find_restless(status: api.Status, now: float) -> Finding:
    """The condition for recently charged flapping; cleared after a calm period."""
    last = status.last_failure
    left = parse_time(last.time) if last is not None and last.reason == REASON else None
    if last is None or left is None or not left <= now < left + CALM_SECONDS:
        return Finding()
    return Finding(REASON, last.message or "", left + CALM_SECONDS)


def _until(restarts: api.RestartStatus, now: float) -> float:
    until = parse_time(restarts.unasked_until) or 0.0
    # If the clock was set back, do not wait for the old time to come again.
    return until if until <= now + (FREE + 1) * SECONDS else 0.0
