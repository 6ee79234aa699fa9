"""`spec.health.rules`: what people call sick in their own training, and what is to be done about it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from elasticjob_operator.api import patterns
from elasticjob_operator.api.base import MOST_SECONDS, Model

MOST_RULES: Final = 16
AT_MOST: Final = 3  # times that a rule restarts or replaces, unless it says otherwise

Number = Annotated[float, Field(allow_inf_nan=False, ge=-(2**53), le=2**53)]


@functools.lru_cache(maxsize=1024)
def _count_groups(text: str) -> int:
    """The groups of an expression. A job is read again for each status that is written. Raises PatternError."""
    return patterns.compile_pattern(text).groups


def _check_pattern(text: str) -> str:
    _count_groups(text)  # a PatternError is a ValueError
    return text


def _check_number(text: str) -> str:
    if _count_groups(text) != 1:
        raise ValueError("it needs exactly one group, around the number: write (?: ) for others")
    return text


def _count_given(*fields: object) -> int:
    return sum(one is not None for one in fields)


_SYNTAX = "A regular expression of RE2's syntax without \\b, \\p and flags other than a (?i) at its start"


class MetricCheck(Model):
    """A number that the script reports, and what is wrong with it."""

    name: str = Field(
        min_length=1,
        max_length=63,
        description="As in elasticjob.report(step, loss=0.5); or samplesPerSecond, tokensPerSecond, stepSeconds or "
        "mfu.",
    )
    log: Annotated[str, AfterValidator(_check_number)] | None = Field(
        default=None,
        min_length=1,
        max_length=patterns.MOST_CHARACTERS,
        description=f"Where the script does not report it: {_SYNTAX}, with one group around the number, that is looked "
        "for in each line that a rank writes.",
    )
    not_finite: Literal[True] | None = Field(default=None, description="NaN or infinite, at any rank.")
    above: Number | None = Field(default=None, description="More than this, at any pod's first rank.")
    below: Number | None = Field(default=None, description="Less than this, at any pod's first rank.")
    sigma: Annotated[Number, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="So many standard deviations above the median of the rank's own last 64 reports, of which there "
        "are at least 16; at the first rank of each of the first 64 pods. The deviation is estimated from the median "
        "distance to that median.",
    )
    falls_percent: Annotated[int, Field(ge=1, le=99)] | None = Field(
        default=None,
        description="The median of its last 8 reports is by so much below the best median of its last 64 at the same "
        "number of pods; at rank 0.",
    )

    CEL = (
        (
            "[has(self.notFinite), has(self.above), has(self.below), has(self.sigma), has(self.fallsPercent)]"
            ".filter(x, x).size() == 1",
            "a metric needs exactly one of notFinite, above, below, sigma and fallsPercent: write two rules",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if _count_given(self.not_finite, self.above, self.below, self.sigma, self.falls_percent) != 1:
            raise ValueError(self.CEL[0][1])
        return self


class SlowCheck(Model):
    """A part of the training that takes too long."""

    first_step_seconds: Annotated[int, Field(ge=1, le=MOST_SECONDS)] | None = Field(
        default=None, description="From the formation of a world to its first reported step."
    )
    checkpoint_seconds: Annotated[int, Field(ge=1, le=MOST_SECONDS)] | None = Field(
        default=None,
        description="That the steps between two reports have waited for saves by elasticjob.Checkpointer; known when "
        "the wait is over.",
    )

    CEL = (
        (
            "has(self.firstStepSeconds) != has(self.checkpointSeconds)",
            "slow needs exactly one of firstStepSeconds and checkpointSeconds",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if _count_given(self.first_step_seconds, self.checkpoint_seconds) != 1:
            raise ValueError(self.CEL[0][1])
        return self


class When(Model):
    """What a rule looks for: exactly one of these."""

    metric: MetricCheck | None = Field(default=None, description=(MetricCheck.__doc__ or ""))
    log: Annotated[str, AfterValidator(_check_pattern)] | None = Field(
        default=None,
        min_length=1,
        max_length=patterns.MOST_CHARACTERS,
        description=f"{_SYNTAX}: a line that a rank writes to its output or its errors has it somewhere. The first "
        "such line of each rank in each world counts.",
    )
    no_progress: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="So many charged restarts in a row without a step beyond the one before."
    )
    slow: SlowCheck | None = Field(default=None, description=(SlowCheck.__doc__ or ""))

    CEL = (
        (
            "[has(self.metric), has(self.log), has(self.noProgress), has(self.slow)].filter(x, x).size() == 1",
            "when needs exactly one of metric, log, noProgress and slow",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if _count_given(self.metric, self.log, self.no_progress, self.slow) != 1:
            raise ValueError(self.CEL[0][1])
        return self


class HealthAction(StrEnum):
    REPORT = "Report"
    RESTART = "Restart"
    REPLACE = "Replace"
    SUSPEND = "Suspend"
    FAIL = "Fail"


class RestoreFrom(StrEnum):
    NEWEST = "Newest"
    BEFORE_INCIDENT = "BeforeIncident"


RESTARTS: Final = (HealthAction.RESTART, HealthAction.REPLACE)


class HealthRule(Model):
    """What counts as sick, and what is done about it."""

    name: str = Field(
        max_length=63,
        pattern=r"^[A-Z][A-Za-z0-9]*$",
        description="Of the rule, in CamelCase: the reason of the condition Incident.",
    )
    when: When = Field(description=(When.__doc__ or ""))
    action: HealthAction = Field(
        default=HealthAction.REPORT,
        description="Report: in the condition Incident, an event, status.incidents and a metric, as do all others. "
        "Restart: all workers start anew. Replace: the same, with another pod in place of the one that showed it. "
        "Suspend: as runPolicy.suspend, until somebody resumes the job. Fail: the job ends.",
    )
    from_: RestoreFrom | None = Field(
        default=None,
        description="What Restart and Replace continue from. Newest, the default: the scripts save first. "
        "BeforeIncident: nothing is saved, and elasticjob.Checkpointer restores a checkpoint from before the first bad "
        "step, if there is one.",
    )
    for_seconds: Annotated[int, Field(ge=1, le=MOST_SECONDS)] | None = Field(
        default=None, description="For how long all reports of a rank have to show it. Default: one is enough."
    )
    at_most: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description=f"How often the rule restarts or replaces, in the life of the job; afterwards it only reports. "
        f"Default: {AT_MOST}.",
    )

    CEL = (
        (
            "!has(self.from) && !has(self.atMost) || has(self.action) && self.action in ['Restart', 'Replace']",
            "from and atMost are for the actions Restart and Replace: remove them, or choose one of these",
        ),
        ("!has(self.forSeconds) || has(self.when.metric)", "forSeconds needs when.metric: remove it"),
        (
            "!has(self.action) || self.action != 'Replace' || has(self.when.metric) || has(self.when.log)",
            "the action Replace is for rules that name a pod: use when.metric or when.log, or Restart",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.from_ is not None or self.at_most is not None) and self.action not in RESTARTS:
            raise ValueError(self.CEL[0][1])
        if self.for_seconds is not None and self.when.metric is None:
            raise ValueError(self.CEL[1][1])
        if self.action is HealthAction.REPLACE and self.when.metric is None and self.when.log is None:
            raise ValueError(self.CEL[2][1])
        return self

    @property
    def most(self) -> int:
        """How often it acts."""
        return self.at_most or AT_MOST

    @property
    def goes_back(self) -> bool:
        return self.from_ is RestoreFrom.BEFORE_INCIDENT


def list_patterns(rules: Iterable[HealthRule]) -> str:
    """What the agents look for in the lines of their ranks, as JSON; "" if there is nothing."""
    found = []
    for rule in rules:
        metric = rule.when.metric
        if rule.when.log is not None:
            found.append({"rule": rule.name, "pattern": rule.when.log})
        elif metric is not None and metric.log is not None:
            found.append({"rule": rule.name, "pattern": metric.log, "metric": metric.name})
    # The kubelet would replace a $(NAME) in a variable.
    return json.dumps(found).replace("$", "\\u0024") if found else ""


def digest_patterns(listed: str) -> str:
    """By which agents say what they look for; "" if that is nothing."""
    return hashlib.sha256(listed.encode()).hexdigest()[:12] if listed else ""


# Where a job has no rules of its own. They only report.
DEFAULT_RULES: Final = (HealthRule(name="LossNotFinite", when=When(metric=MetricCheck(name="loss", not_finite=True))),)
