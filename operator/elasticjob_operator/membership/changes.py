"""Whether to replace an intact world, because members leave or joiners are ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob_operator.api.names import Cause
from elasticjob_operator.membership import joiners
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Situation, Worker


@dataclass(frozen=True, slots=True)
class Change:
    """Why an intact world should end ("" if it should not), and when to check again."""

    cause: str = ""
    wake_at: float | None = None


def find_change(situation: Situation, verdicts: Sequence[MemberVerdict]) -> Change:
    """Whether to replace an intact world."""
    sizes, coming = situation.sizes, joiners.find_joiners(situation, verdicts)
    leaving = [j.worker for j in verdicts if j.worker and j.worker.leaving]
    urgent = next((w for w in leaving if not w.patient), None)
    if urgent:
        return Change(urgent.leaving)
    if leaving and sizes.legal(len(verdicts) - len(leaving) + len(coming)):
        return Change(leaving[0].leaving)
    if sizes.legal(len(verdicts)) not in (0, len(verdicts)):
        return Change(Cause.SCALE_DOWN)
    if any(j.health in (MemberHealth.SUSPECT, MemberHealth.STARTING) for j in verdicts):
        # Do not grow a world while a member may be lost or may still be entering it: if it lost its connection then,
        # it would keep training in the old world while the new one runs without it.
        return Change()
    replaced = [j for j in verdicts if j.worker and j.worker.replaced]
    if replaced and coming and sizes.legal(len(verdicts) + len(coming)) <= len(verdicts):
        return Change(Cause.STRAGGLER)
    return _find_growth(situation, verdicts, coming)


def _find_growth(situation: Situation, verdicts: Sequence[MemberVerdict], coming: Sequence[Worker]) -> Change:
    sizes, now = situation.sizes, situation.now
    admissible = [w for w in coming if w.held_until <= now]
    held = min((w.held_until for w in coming if w.held_until > now), default=None)
    target = sizes.legal(len(verdicts) + len(admissible))
    if target <= len(verdicts):
        return Change(wake_at=held)
    possible = sizes.legal(len(verdicts) + len(admissible) + joiners.count_coming(situation, verdicts))
    if possible > target:  # others will be ready soon: make one change for all of them
        until = min(w.agent.state_since for w in admissible if w.agent) + situation.settings.admit
        if now < until:
            return Change(wake_at=until)
    return Change(Cause.SCALE_UP)
