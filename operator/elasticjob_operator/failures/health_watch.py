"""What the reports of the ranks say about the rules of a job (`spec.health.rules`). Pure.

Each pass folds the latest reports into a memory, which holds a few numbers for each rule and begins anew with each
world: what a training does after a restart says nothing about what it did before. An operator that starts anew has to
see it again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import budget
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.text import clean
from elasticjob_operator.times import parse_time

# Reports by whose median a rule with `sigma` judges, and whose best `fallsPercent` compares with ...
WINDOW: Final = 64
LEAST: Final = 16  # ... or more than that, after which they judge at all
RECENT: Final = 8  # reports of which the median may fall
# From the last bad report until an incident is over, at least: a good one has to come as well.
QUIET_SECONDS: Final = 60.0
MOST_BAD: Final = 32  # ranks that are remembered for a rule
MOST_SERIES: Final = 64  # pods whose reports are kept for a rule with `sigma`: those of the lowest ranks
_MOST_LINE: Final = 256  # characters that are told
_DEVIATION: Final = 1.4826  # of a normal distribution, in median distances to the median
_MOST_VALUE: Final = 1e300  # beyond which sums and differences of numbers would be infinite
_LEAST_DEVIATION: Final = 0.01  # of the median: numbers that hardly change would deviate by any change


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank has reported of what a rule looks at."""

    at: float
    value: float  # NaN also for what is infinite
    rank: int = 0
    step: int | None = None
    pod: str = ""
    uid: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Bad:
    """Reports in a row of one pod that show what a rule looks for."""

    first: Report
    last: float
    text: str
    good: int | None  # the last step at which no rank showed it; None: none did in this world
    is_past: bool = False  # a good report has come since


@dataclass(frozen=True, slots=True)
class Series:
    """The last numbers that one rank has reported."""

    seen: float = 0.0  # when it reported the last one
    rank: int = 0  # as it said then
    values: tuple[float, ...] = ()


_NONE: Final = Series()


@dataclass(frozen=True, slots=True)
class RuleMemory:
    """What is known for one rule in one world."""

    rule: api.HealthRule
    generation: int
    began: float
    size: int = 0  # pods of the world
    good: int | None = None
    series: Mapping[str, Series] = field(default_factory=dict)  # by the UID of the pod
    saved: float | None = None  # that the steps of the leading rank had waited for checkpoints
    best: float | None = None  # in a world of this size
    bad: Mapping[str, Bad] = field(default_factory=dict)  # by the UID of the pod


Memory = Mapping[str, RuleMemory]  # by the name of the rule


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule whose `when` holds now."""

    rule: api.HealthRule
    message: str
    step: int | None = None
    good: int | None = None
    rank: int | None = None
    pod: str = ""
    uid: str = ""
    node: str = ""

    @property
    def where(self) -> str:
        return f"{self.pod} on {self.node}" if self.node else self.pod

    def name_with(self, device: str) -> str:
        """What is told, with the device of the rank if it is known."""
        return self.message.replace(f"({self.where})", f"({self.where}, {device})", 1) if device else self.message


def rules_of(spec: api.Spec) -> Sequence[api.HealthRule]:
    return api.DEFAULT_RULES if spec.health.rules is None else spec.health.rules


# --- what the reports say --------------------------------------------------------------------------------


def look(before: Memory, spec: api.Spec, status: api.Status, agents: Mapping[str, Agent], now: float) -> Memory:
    """The memory after a look at the latest report of each member of this world."""
    world = status.rendezvous
    told = [
        (member, agent)
        for member in world.members
        if (agent := agents.get(member.uid)) is not None
        and agent.progress is not None
        and agent.progress.generation == world.generation
    ]
    found: dict[str, RuleMemory] = {}
    for rule in rules_of(spec):
        if rule.when.no_progress is not None or not world.generation:
            continue
        known = before.get(rule.name)
        if known is None or known.rule != rule or known.generation != world.generation:
            known = RuleMemory(rule, world.generation, now, len(world.members), best=_find_best(rule, status))
        if rule.when.log is not None:
            found[rule.name] = _note_signs(known, world, agents, now)
        elif rule.when.metric is not None:
            reports = [one for member, agent in told if (one := _read(rule.when.metric.name, member, agent))]
            found[rule.name] = note(known, reports, present=agents.keys())
        else:
            found[rule.name] = _note_saves(known, told)
    return found


def _find_best(rule: api.HealthRule, status: api.Status) -> float | None:
    known = next((one for one in status.incidents if one.rule == rule.name), None)
    size, metric = len(status.rendezvous.members), rule.when.metric
    if known is None or metric is None or known.metric not in (None, metric.name):
        return None  # the rule has looked at another one before; an earlier version did not say at which
    return next((one.value for one in known.best if one.size == size), None)


def _read(name: str, member: api.Member, agent: Agent) -> Report | None:
    progress = agent.progress
    assert progress is not None, "only agents with a report are read"
    if name in progress.not_finite_at:
        value, rank = math.nan, progress.not_finite_at[name]
    else:
        found, rank = find_value(progress, name), progress.rank
        if found is None:
            return None
        value = max(-_MOST_VALUE, min(found, _MOST_VALUE)) if math.isfinite(found) else math.nan
    return Report(agent.progress_since, value, rank, progress.step, member.pod, member.uid, member.node)


def find_value(progress: wire.Progress, name: str) -> float | None:
    """The script's own metric, or else what `elasticjob.report` computes."""
    if name in progress.metrics:
        return progress.metrics[name]
    if name in progress.not_finite:
        return math.nan
    computed = {
        "samplesPerSecond": progress.samples_per_second,
        "tokensPerSecond": progress.tokens_per_second,
        "stepSeconds": progress.step_seconds,
        "mfu": progress.mfu,
    }
    return computed.get(name)


def note(before: RuleMemory, reports: Sequence[Report], present: Iterable[str] = ()) -> RuleMemory:
    """The memory of a rule about a metric after the latest report of each rank. `present`: pods that exist."""
    check = before.rule.when.metric
    here = {*present}
    bad = {uid: one for uid, one in before.bad.items() if uid in here}
    if check is None or not reports:
        return replace(before, bad=bad)
    is_series = check.sigma is not None or check.falls_percent is not None
    if is_series:
        first = _find_first(before, reports, here, 1 if check.sigma is None else MOST_SERIES)
        reports = [one for one in reports if one.uid in first and one.at > before.series.get(one.uid, _NONE).seen]
        before = replace(before, series={uid: one for uid, one in before.series.items() if uid in first})
        bad = {uid: one for uid, one in bad.items() if uid in first}
    judged = [(report, _find_wrong(check, before, report)) for report in reports]
    for report, text in judged:
        known = bad.pop(report.uid, None)
        one = _judge(known, report, text, before)
        if one is not None and (known is not None or len(bad) < MOST_BAD):
            bad[report.uid] = one
    series = _keep(before, judged, bad) if is_series else before.series
    after = replace(before, bad=bad, series=series)
    if check.falls_percent is not None and reports and len(values := series[reports[0].uid].values) >= LEAST:
        usual = median(values)  # of a few of them, the best that there ever was would be that of their noise
        after = replace(after, best=usual if before.best is None else max(before.best, usual))
    steps = [report.step for report, _ in judged if report.step is not None]
    is_sick = any(text for _, text in judged) or any(
        one.last == series[uid].seen for uid, one in bad.items() if is_series
    )
    return after if not steps or is_sick else replace(after, good=min(steps))


def _find_first(before: RuleMemory, reports: Sequence[Report], here: Collection[str], most: int) -> set[str]:
    """The pods (UIDs) of the lowest ranks that have told it: so many, whatever ranks the pods say that they have."""
    ranks = {uid: one.rank for uid, one in before.series.items() if uid in here}
    ranks |= {one.uid: one.rank for one in reports}
    return {*sorted(ranks, key=ranks.__getitem__)[:most]}


def _keep(before: RuleMemory, judged: Sequence[tuple[Report, str]], bad: Mapping[str, Bad]) -> Mapping[str, Series]:
    """The last numbers of each rank. A spike that has yet to stay for long enough is not to become what is usual."""
    check, series = before.rule.when.metric, dict(before.series)
    is_spike = check is not None and check.sigma is not None
    for report, text in judged:
        known, one = series.get(report.uid, _NONE), bad.get(report.uid)
        is_early = is_spike and text != "" and one is not None and not _is_long(one, before.rule)
        more = () if is_early or math.isnan(report.value) else (report.value,)
        series[report.uid] = Series(report.at, report.rank, (*known.values, *more)[-WINDOW:])
    return series


def _judge(known: Bad | None, report: Report, text: str, before: RuleMemory) -> Bad | None:
    """What is remembered of a pod after one more of its reports, in which `text` is wrong."""
    if known is None or (known.is_past and report.at - known.last > QUIET_SECONDS):
        return Bad(report, report.at, text, before.good) if text else None
    if text:
        return replace(known, last=report.at, text=text, is_past=False)
    if report.at <= known.last:
        return known
    return replace(known, is_past=True) if _is_long(known, before.rule) else None


def _find_wrong(check: api.MetricCheck, before: RuleMemory, report: Report) -> str:
    """What is wrong with a report; "" if nothing is."""
    name, value = check.name, report.value
    if check.not_finite is not None:
        return f"{name} is NaN or infinite" if math.isnan(value) else ""
    if math.isnan(value):
        return ""
    if check.above is not None:
        return f"{name} is {value:g}, above {check.above:g}" if value > check.above else ""
    if check.below is not None:
        return f"{name} is {value:g}, below {check.below:g}" if value < check.below else ""
    values = before.series.get(report.uid, _NONE).values
    if len(values) < LEAST:
        return ""
    if check.sigma is not None:
        middle = median(values)
        distance = median(abs(one - middle) for one in values)
        deviation = max(_DEVIATION * distance, _LEAST_DEVIATION * abs(middle), 1e-12)
        far = (value - middle) / deviation
        return f"{name} is {value:g}, {far:.1f} deviations above its median {middle:g}" if far > check.sigma else ""
    recent, best = median((*values, value)[-RECENT:]), before.best
    if check.falls_percent is None or not best:  # of nothing there are no percents
        return ""
    fallen = 100 * ((best - recent) / abs(best))  # a reward may be negative
    if fallen <= check.falls_percent:
        return ""
    return f"{name} is {recent:g}, {fallen:.0f} % below its best of {best:g} with {before.size} pods"


def _note_signs(before: RuleMemory, world: api.RendezvousStatus, agents: Mapping[str, Agent], now: float) -> RuleMemory:
    """The pods of whose ranks one has written such a line in this world."""
    bad: dict[str, Bad] = {}
    for member in world.members:
        agent = agents.get(member.uid)
        signs = agent.state.signs if agent is not None else ()
        sign = next((s for s in signs if s.rule == before.rule.name and s.generation == world.generation), None)
        if sign is not None and len(bad) < MOST_BAD:
            known = before.bad.get(member.uid)
            report = Report(now, 0.0, sign.rank, sign.step, member.pod, member.uid, member.node)
            text = f"wrote {text_of(sign.line)}"
            bad[member.uid] = Bad(known.first if known else report, now, text, sign.step)
    return replace(before, bad=bad)


def text_of(line: str) -> str:
    return repr(clean(line, _MOST_LINE))


def _note_saves(before: RuleMemory, told: Sequence[tuple[api.Member, Agent]]) -> RuleMemory:
    """Whether the steps between the last two reports of a rank have waited too long for saves."""
    limit = before.rule.when.slow.checkpoint_seconds if before.rule.when.slow else None
    if limit is None or not told:
        return before
    member, agent = min(told, key=lambda one: one[1].progress.rank if one[1].progress else 0)
    progress, bad = agent.progress, dict(before.bad)
    if progress is None or progress.checkpoint_seconds is None:
        return replace(before, saved=before.saved or 0.0)
    waited = progress.checkpoint_seconds - (before.saved or 0.0)
    if before.saved is not None and waited > limit:
        report = Report(agent.progress_since, waited, progress.rank, progress.step, member.pod, member.uid, member.node)
        text = f"its steps waited {waited:.0f} s for a save"
        bad[member.uid] = Bad(report, report.at, text, before.good, is_past=True)
    return replace(before, saved=progress.checkpoint_seconds, bad=bad, good=progress.step)


# --- what that means -------------------------------------------------------------------------------------


def find(spec: api.Spec, status: api.Status, memory: Memory, now: float) -> dict[str, Finding]:
    """The rules whose `when` holds now, by name."""
    found = {}
    for rule in rules_of(spec):
        if rule.when.no_progress is not None:
            finding = _find_stuck(rule, status)
        elif rule.when.slow is not None and rule.when.slow.first_step_seconds is not None:
            finding = _find_slow_start(rule, status, now)
        else:
            finding = find_sick(memory.get(rule.name), now)
        if finding is not None:
            found[rule.name] = finding
    return found


def find_sick(known: RuleMemory | None, now: float) -> Finding | None:
    """The pod that showed it first, if one has shown it for long enough and not long ago."""
    if known is None:
        return None
    long = [one for one in known.bad.values() if _is_long(one, known.rule) and _is_held(one, now)]
    if not long:
        return None
    bad = min(long, key=lambda one: (one.first.at, one.first.rank))
    first, others = bad.first, len(long) - 1
    where = f"{first.pod} on {first.node}" if first.node else first.pod
    at = "" if first.step is None else f" at step {first.step}"
    more = f", and {others} more" if others else ""
    message = f"rank {first.rank} ({where}): {bad.text}{at}{more}"
    return Finding(known.rule, message, first.step, bad.good, first.rank, first.pod, first.uid, first.node)


def _is_held(bad: Bad, now: float) -> bool:
    """Steps may take longer than the quiet time: until there is a good report, what the last one showed holds."""
    return not bad.is_past or now - bad.last < QUIET_SECONDS


def _is_long(bad: Bad, rule: api.HealthRule) -> bool:
    return bad.last - bad.first.at >= (rule.for_seconds or 0)


def _find_stuck(rule: api.HealthRule, status: api.Status) -> Finding | None:
    """A restart is charged, and the budget is full again once a step is beyond the one before."""
    restarts = status.restarts
    count = restarts.user if restarts.step is None else budget.count_stuck(restarts)
    if rule.when.no_progress is None or count < rule.when.no_progress:
        return None
    where = "before any step" if restarts.step is None else f"without a step beyond {restarts.step}"
    last = status.last_failure
    told = f"; last: {last.message}" if last is not None and last.message else ""
    many = "a restart" if count == 1 else f"{count} restarts in a row"
    return Finding(
        rule,
        f"{many} {where}{told}",
        restarts.step,
        None,
        last.rank if last else None,
        (last.pod or "") if last else "",
        "",
        (last.node or "") if last else "",
    )


def _find_slow_start(rule: api.HealthRule, status: api.Status, now: float) -> Finding | None:
    at = due_at(rule, status)
    if at is None or now < at:
        return None
    limit = rule.when.slow.first_step_seconds if rule.when.slow else 0
    return Finding(rule, f"generation {status.rendezvous.generation} has made no step in {limit} s")


def due_at(rule: api.HealthRule, status: api.Status) -> float | None:
    """When the present world should have made its first step; None if it has, or if nothing is known of that."""
    world, limit = status.rendezvous, rule.when.slow.first_step_seconds if rule.when.slow else None
    formed = parse_time(world.formed_time)
    if limit is None or formed is None or not world.world_size:
        return None
    return None if status.goodput.step_generation == world.generation else formed + limit
