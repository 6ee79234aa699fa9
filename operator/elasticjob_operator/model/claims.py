"""Which operator decides over a job: the one whose release its status names. Pure.

A release is all replicas with one Lease, whichever of them leads. Only operators and administrators may write a status,
and each write names the version that it was decided on: of two operators that claim a job, one does.

An operator that finds the claim of another release does nothing for the job but ask, in its status, whether the other
one is there, which answers by removing the question. If it does not, the job is taken over: it was uninstalled, or it
watches this namespace no more. Nobody reads the clock of another machine, and nobody needs to read another's Lease.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from elasticjob_operator import api


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds, from how long a leader may be silent until another replica takes over."""

    lease: float = 10.0

    @property
    def calm(self) -> float:
        """From a sign of life to the next question."""
        return 3 * self.lease

    @property
    def answer(self) -> float:
        """That a question waits for an answer: a release that restarts is back by then."""
        return 6 * self.lease

    @property
    def first(self) -> float:
        """From the question in one job of a namespace until all others are asked, too."""
        return 3 * self.lease

    @property
    def longest(self) -> float:
        """Until the last job of a release that is gone is taken over."""
        return self.calm + self.first + self.answer


@dataclass(frozen=True, slots=True)
class Other:
    """What is known of another release in one namespace: it may watch some and others not. By this machine's clock."""

    heard: float = -math.inf  # its last answer
    asked: float = -math.inf  # the first question since


@dataclass(frozen=True, slots=True)
class Question:
    """One that was seen in the status of a job."""

    release: str  # whom it asks
    since: float  # when it was first seen; restarts of this operator begin anew


class Verdict(StrEnum):
    DECIDE = "decide"  # over the job as if there were no other operator
    WAIT = "wait"  # and leave the job alone
    ASK = "ask"
    TAKE = "take"


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    other: Other = Other()  # what is known now ...
    question: Question | None = None  # ... and what this job's status asks
    look_at: float = 0.0  # when to judge again, if nothing happens


def judge(
    claim: api.OperatorStatus | None,
    release: str,
    other: Other,
    question: Question | None,
    now: float,
    patience: Patience = Patience(),
) -> Judgement:
    """What the operator of this release does about a job with this claim.

    `other` and `question` are what the last judgements have said.
    """
    if not is_of_another(claim, release):
        return Judgement(Verdict.DECIDE)
    assert claim is not None, "it is somebody's"
    same = question if question is not None and question.release == claim.release else None
    if claim.asked:
        same = same or Question(claim.release, now)
        due = same.since + patience.answer
        return Judgement(Verdict.TAKE if now >= due else Verdict.WAIT, other, same, due)
    if same is not None:
        other = Other(heard=now)
    is_open = other.asked > other.heard
    rest = other.asked + patience.first if is_open else other.heard + patience.calm
    if now < rest:
        return Judgement(Verdict.WAIT, other, None, rest)
    return Judgement(Verdict.ASK, other if is_open else replace(other, asked=now), None, now + patience.answer)


def is_of_another(claim: api.OperatorStatus | None, release: str) -> bool:
    """Whether an operator of another release decides over a job with this claim."""
    return claim is not None and claim.release not in ("", release)


def keep(claim: api.OperatorStatus | None, release: str, *, begins: bool) -> api.OperatorStatus | None:
    """The claim that goes into a status that an operator of this release writes; it answers a question.

    `begins`: the job is claimed if nobody has claimed it yet.
    """
    if claim is None or claim.release != release:
        return take(release) if begins else claim
    return claim.model_copy(update={"asked": None}) if claim.asked else claim


def take(release: str) -> api.OperatorStatus:
    return api.OperatorStatus(release=release)


def ask(claim: api.OperatorStatus, release: str) -> api.OperatorStatus:
    return claim.model_copy(update={"asked": release})
