"""The jobs that operators of other releases decide over: which they are, and what they are told. See `model.claims`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from elasticjob_operator.api import names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.model import claims
from elasticjob_operator.model.claims import Judgement, Verdict
from elasticjob_operator.model.observe import Agent, Job
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan.plan import Plan
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.recent import Recent

TOLD_SECONDS: Final = 1800.0  # between two events of one job: the API server forgets events
PRUNED_SECONDS: Final = 300.0  # until it is tried again whether the API server keeps claims
MET_SECONDS: Final = 3600.0  # since another release was met: until then, new jobs are claimed before all else
GROUPS: Final = 10_000  # other releases, by namespace, that are remembered


@dataclass(slots=True)
class _Left:
    """A job that is left alone."""

    uid: str
    question: claims.Question | None = None
    told: str = ""  # of which release ...
    told_at: float = field(default=float("-inf"))  # ... and when


class Others:
    """What is remembered of other releases. Without a release of its own, an operator knows no others."""

    def __init__(
        self, release: str = "", lease_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.release = release
        self._patience = claims.Patience(lease_seconds)
        self._clock = clock
        self._left: dict[JobKey, _Left] = {}
        self._known: Recent[tuple[str, str], claims.Other] = Recent(GROUPS)  # by release and namespace
        self._pruned_at = self._met_at = float("-inf")

    def count(self) -> int:
        """How many jobs are left alone."""
        return len(self._left)

    def forget(self, key: JobKey) -> None:
        self._left.pop(key, None)

    def judge(self, job: Job) -> Judgement:
        """What to do about this job now; `look_at` is in how many seconds to judge again."""
        claim, now = job.status.operator, self._clock()
        if not self.release or not names.is_ours(job.manager) or claim is None:
            self.forget(job.key)  # a job of another controller has the status that this one writes
            return Judgement(Verdict.DECIDE)
        if claim.asked or claims.is_of_another(claim, self.release):
            self._met_at = now
        if not claims.is_of_another(claim, self.release):
            self.forget(job.key)
            return Judgement(Verdict.DECIDE)
        left = self._left.get(job.key)
        if left is None or left.uid != job.uid:
            left = self._left[job.key] = _Left(job.uid)
        group = (claim.release, job.namespace)
        made = claims.judge(
            claim, self.release, self._known.get(group, claims.Other()), left.question, now, self._patience
        )
        self._known[group], left.question = made.other, made.question
        return replace(made, look_at=max(0.0, made.look_at - now))

    def tell_taken(self, job: Job) -> tuple[Event, ...]:
        """What a job is told that this operator has taken over."""
        former = job.status.operator.release if job.status.operator is not None else ""
        text = (
            f"the operator {former} has not answered for {self._patience.answer:.0f} s: {self.release} decides over "
            "this job from now on"
        )
        return (Event("TakenOver", text, warning=True),)

    def find_news(self, job: Job) -> tuple[Event, ...]:
        """What a job is told that is left alone, once in a while."""
        claim, left, now = job.status.operator, self._left.get(job.key), self._clock()
        if claim is None or left is None:
            return ()
        if left.told == claim.release and now - left.told_at < TOLD_SECONDS:
            return ()
        left.told, left.told_at = claim.release, now
        text = (
            f"the operator {claim.release} (namespace and name of its Lease) decides over this job, so {self.release}, "
            "which watches this namespace too, leaves it alone, and takes it over within "
            f"{self._patience.longest:.0f} s if the other one is gone. Remove one of them, or let them watch different "
            "namespaces: kubectl get deployments -A -l app.kubernetes.io/name=elasticjob"
        )
        return (Event("DecidedElsewhere", text, warning=True),)

    def mark(self, job: Job, made: Plan, agents: Mapping[str, Agent]) -> Plan:
        """The plan with the claim of this operator, and its answer if it was asked."""
        if not self.release or not names.is_ours(job.manager):
            return made
        # A world that was formed before there were claims is of whom its agents follow.
        is_led = not job.status.finished and any(agent.connected for agent in agents.values())
        now = self._clock()
        begins = (made.writes(job.status) or is_led) and now - self._pruned_at >= PRUNED_SECONDS
        claim = claims.keep(job.status.operator, self.release, begins=begins)
        if claim == made.status.operator:
            return made
        is_contested = job.status.operator is None and now - self._met_at < MET_SECONDS
        return replace(made, status=revise(made.status, operator=claim), claims=is_contested)

    def note_pruned(self) -> None:
        """The API server has an older definition of the job, and drops claims: to send them again would be in vain."""
        self._pruned_at = self._clock()
