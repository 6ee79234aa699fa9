"""What the rules of a job would have found in what is left of a training: its reports, or a log. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from elasticjob_operator import api
from elasticjob_operator.api import patterns
from elasticjob_operator.failures import health_watch
from elasticjob_operator.failures.health_watch import Report, RuleMemory
from elasticjob_operator.times import parse_time


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule would have fired."""

    rule: str
    where: str  # the step, or the number of the line
    message: str


@dataclass(frozen=True, slots=True)
class Replay:
    fired: tuple[Fired, ...] = ()
    untested: tuple[tuple[str, str], ...] = ()  # (rule, why)


def replay_reports(rules: Sequence[api.HealthRule], status: api.Status) -> Replay:
    """From the reports that the status keeps (at most 60, of three metrics), world by world."""
    reports = status.progress.history.reports if status.progress and status.progress.history else []
    fired: list[Fired] = []
    untested: list[tuple[str, str]] = []
    for rule in rules:
        check = rule.when.metric
        if check is None or check.log is not None:
            untested.append(
                (rule.name, "reports do not show it; pipe a log to `rules test -`" if _reads(rule) else _LIVE)
            )
            continue
        known = [one for one in reports if check.name in one.metrics]
        if not known or check.not_finite is not None:
            why = "only finite numbers are kept" if known or check.not_finite is not None else "no such report is kept"
            untested.append((rule.name, why))
        for size, told in _split(known, status.timeline):
            numbers = [Report(parse_time(one.time) or 0.0, one.metrics[check.name], step=one.step) for one in told]
            fired += _replay(rule, numbers, size, [f"step {one.step}" for one in told])
    return Replay(tuple(fired), tuple(untested))


_LIVE = "it is known only while the job runs"


def _reads(rule: api.HealthRule) -> bool:
    return rule.when.log is not None or (rule.when.metric is not None and rule.when.metric.log is not None)


def _split(
    reports: Sequence[api.ReportStatus], worlds: Sequence[api.WorldStatus]
) -> list[tuple[int, list[api.ReportStatus]]]:
    """The reports of each world, with its size."""
    began = [(parse_time(world.time) or 0.0, world.size) for world in worlds] or [(0.0, 0)]
    found: dict[int, list[api.ReportStatus]] = {}
    for one in reports:
        at = parse_time(one.time) or 0.0
        place = max((i for i, (since, _) in enumerate(began) if since <= at), default=0)
        found.setdefault(place, []).append(one)
    return [(began[place][1], told) for place, told in found.items()]


# What `kubectl elasticjob logs` writes before each line: the ranks of its pod, or the pod's name.
_LABEL = re.compile(r"\[([0-9]{1,7}(?:-[0-9]{1,7})?|[a-z0-9][a-z0-9.-]{0,240}-worker-[0-9]{1,7})\](?: |$)")
_LINES_OF_LABEL = 4  # on average; a script that writes the step in brackets has few lines with the same one
_MOST_LABELS = 10_000


@dataclass(slots=True)
class _Reading:
    """What has been found so far in the lines of a log."""

    logged: Mapping[str, patterns.Pattern]
    read: Mapping[str, patterns.Pattern]
    numbers: dict[str, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)  # by rule and pod
    fired: dict[str, Fired] = field(default_factory=dict)

    def look(self, number: int, label: str, *texts: str) -> None:
        """At a line, as it may be read."""
        for name, pattern in self.logged.items():
            text = next((one for one in texts if pattern.matches(one)), None) if name not in self.fired else None
            if text is not None:
                self.fired[name] = Fired(name, f"line {number}", f"wrote {health_watch.text_of(text)}")
        for name, pattern in self.read.items():
            found = (patterns.read_number(pattern.find_group(one)) for one in texts)
            value = next((one for one in found if one is not None), None)
            if value is not None:
                self.numbers.setdefault(name, {}).setdefault(label, []).append((number, value))


def replay_lines(rules: Sequence[api.HealthRule], lines: Iterable[str]) -> Replay:
    """From the lines of a log. What they say follows each other in a second, since a log has no clock of its own.

    Each pod is judged by itself if all lines say of which one they are, but those that are empty or indented. Scripts
    write brackets as well: then there is one pod, and they are a part of its lines.
    """
    logged = {rule.name: patterns.compile_pattern(rule.when.log) for rule in rules if rule.when.log is not None}
    read = {
        rule.name: patterns.compile_pattern(rule.when.metric.log)
        for rule in rules
        if rule.when.metric is not None and rule.when.metric.log is not None
    }
    whole, apart = _Reading(logged, read), _Reading(logged, read)
    labels: set[str] = set()
    count, last, is_labelled = 0, "", True
    for number, line in enumerate(map(patterns.read_line, lines), 1):
        whole.look(number, "", line)
        if not is_labelled:
            continue
        label = _LABEL.match(line)
        if label is not None:
            count, last = count + 1, label[1]
            labels.add(last)
            apart.look(number, last, line[label.end() :], line)
        elif not line or line[0].isspace():
            apart.look(number, last, line)
        if (label is None and line and not line[0].isspace()) or len(labels) > _MOST_LABELS:
            is_labelled, apart, labels = False, whole, set()
    found = apart if is_labelled and count >= _LINES_OF_LABEL * max(1, len(labels)) else whole
    fired = list(found.fired.values())
    for rule in rules:
        for told in found.numbers.get(rule.name, {}).values():
            reports = [Report(i, value) for i, (_, value) in enumerate(told, 1)]
            fired += _replay(rule, reports, 0, [f"line {number}" for number, _ in told])
    untested = [(rule.name, "no line tells it") for rule in rules if not _reads(rule)]
    return Replay(tuple(sorted(fired, key=lambda one: one.rule)), tuple(untested))


def _replay(rule: api.HealthRule, reports: Sequence[Report], size: int, places: Sequence[str]) -> list[Fired]:
    memory, fired, is_open = RuleMemory(rule, 1, 0.0, size), [], False
    for report, where in zip(reports, places, strict=True):
        one = report if math.isfinite(report.value) else Report(report.at, math.nan, step=report.step)
        memory = health_watch.note(memory, [one], present=("",))
        finding = health_watch.find_sick(memory, report.at)
        if finding is not None and not is_open:
            bad = memory.bad[""]
            fired.append(Fired(rule.name, where, bad.text))
        is_open = finding is not None
    return fired
