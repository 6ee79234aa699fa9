"""Incidents: what the rules of a job have found, as the status keeps it, and what is done about it. Pure.

An incident is opened once for each world in which a rule's `when` holds. What is to be done is in the status before it
is done, so another operator goes on with it. Nothing here counts against a node or the restart budget: what a rule does
concerns this job alone, and of what is wrong on all ranks one is heard of first, or the only one that reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.failures import health_watch
from elasticjob_operator.failures.health_watch import Finding, Memory
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.model.revise import revise
from elasticjob_operator.text import clean
from elasticjob_operator.times import format_time

_MOST_SIZES: Final = 16
_GROWTH: Final = 0.02  # a best that is better by more than that is written
_MOST_TEXT: Final = 1024
_MOST_DEVICE: Final = 96


def update(
    spec: api.Spec, status: api.Status, memory: Memory, now: float, agents: Mapping[str, Agent] = MappingProxyType({})
) -> api.Status:
    """The status with the incidents of this pass, and with the end of this world where a rule asks for it.

    `agents`: by the UID of their pod, for the names of devices.
    """
    found = health_watch.find(spec, status, memory, now)
    before = {one.rule: one for one in status.incidents}
    incidents: list[api.IncidentStatus] = []
    ordered = status.restarts.ordered
    for rule in health_watch.rules_of(spec):
        known, finding = before.get(rule.name), found.get(rule.name)
        after = _note_best(known, memory.get(rule.name), rule)
        if finding is None:
            is_over = after is not None and after.since is not None and _has_watched(memory.get(rule.name), rule, now)
            after = revise(after, since=None) if after is not None and is_over else after
        elif _is_new(after, rule, status.rendezvous.generation):
            after = _open(after, finding, status, now, _find_device(finding, status.rendezvous, agents))
            if after.last_action in api.RESTARTS:
                ordered = order(rule, finding, status)
        if after is not None:
            incidents.append(after)
    if incidents == status.incidents and ordered == status.restarts.ordered:
        return status
    restarts = status.restarts if ordered == status.restarts.ordered else revise(status.restarts, ordered=ordered)
    return revise(status, incidents=incidents, restarts=restarts)


def _is_new(known: api.IncidentStatus | None, rule: api.HealthRule, generation: int) -> bool:
    """Whether what is found is to be told, and something to be done about it: once in each world, and again when the
    rule says now what it did not say then.
    """
    if known is None or known.since is None or known.generation != generation:
        return True
    if rule.action is api.HealthAction.REPORT or known.last_action == rule.action:
        return False
    return rule.action not in api.RESTARTS or known.acted < rule.most


def _find_device(finding: Finding, world: api.RendezvousStatus, agents: Mapping[str, Agent]) -> str:
    """The device of the rank that shows it, as its agent knows it; "" if it knows of none."""
    agent = agents.get(finding.uid)
    place = next((member.rank for member in world.members if member.uid == finding.uid), None)
    if agent is None or finding.rank is None or place is None:
        return ""
    local_rank = finding.rank - sum(member.nproc for member in world.members if member.rank < place)
    devices = agent.state.devices
    return clean(devices[local_rank], _MOST_DEVICE) if 0 <= local_rank < len(devices) else ""


def _open(
    known: api.IncidentStatus | None, finding: Finding, status: api.Status, now: float, device: str
) -> api.IncidentStatus:
    rule, before = finding.rule, known or api.IncidentStatus(rule=finding.rule.name)
    is_restart = rule.action in api.RESTARTS
    acts = not is_restart or before.acted < rule.most
    spent = "" if acts else f"; {rule.action} was done {before.acted} times (atMost), so the job goes on"
    return revise(
        before,
        count=before.count + 1,
        acted=before.acted + (is_restart and acts),
        last_action=rule.action.value if acts else api.HealthAction.REPORT.value,
        since=format_time(now),
        last_time=format_time(now),
        generation=status.rendezvous.generation,
        step=finding.step,
        rank=finding.rank,
        pod=finding.pod or None,
        node=finding.node or None,
        device=device or None,
        message=f"{finding.name_with(device)}{spent}"[:_MOST_TEXT],
    )


def _has_watched(known: health_watch.RuleMemory | None, rule: api.HealthRule, now: float) -> bool:
    """Whether it is over as far as is known: an operator that has just started has to look for a while first."""
    if rule.when.metric is None and rule.when.log is None:
        return True
    return known is not None and now - known.began >= health_watch.QUIET_SECONDS


def _note_best(
    known: api.IncidentStatus | None, memory: health_watch.RuleMemory | None, rule: api.HealthRule
) -> api.IncidentStatus | None:
    """What the script does best at each size is kept: a job may not come back to a size for days."""
    metric = rule.when.metric
    if memory is None or memory.best is None or metric is None:
        return known
    before = known or api.IncidentStatus(rule=rule.name)
    if before.metric != metric.name:
        before = revise(before, best=before.best if before.metric is None else [], metric=metric.name)
    values = {one.size: one.value for one in before.best}
    told = values.get(memory.size)
    if told is not None and memory.best <= told + abs(told) * _GROWTH:
        return before
    others = [one for one in before.best if one.size != memory.size][1 - _MOST_SIZES :]
    return revise(before, best=[*others, api.BestValue(size=memory.size, value=memory.best)])


def order(rule: api.HealthRule, finding: Finding, status: api.Status) -> api.OrderedRestart:
    """How the next world is to begin."""
    last, step = status.restarts.ordered, status.progress.step if status.progress else None
    is_replace = rule.action is api.HealthAction.REPLACE
    before = tries = until = None
    if rule.goes_back:
        before = finding.good if finding.good is not None else finding.step
        until = max((one for one in (step, finding.step) if one is not None), default=None)
        if finding.good is None:  # what it has restored may be why
            tries = 1 + (last.tries or 0 if last is not None and last.before is not None else 0)
            if last is not None and last.before is not None and before is not None:
                before = min(before, last.before)
    return api.OrderedRestart(
        rule=rule.name,
        generation=status.rendezvous.generation,
        uid=finding.uid if is_replace and finding.uid else None,
        pod=finding.pod or None,
        node=(finding.node or None) if is_replace else None,
        rank=finding.rank,
        saves=not rule.goes_back,
        before=before,
        until=until,
        tries=tries,
    )


def forget_passed(status: api.Status, step: int | None) -> api.Status:
    """The status without the order to restore an older checkpoint, once training has passed where it was sick.

    `step`: the highest one that this world has reported.
    """
    ordered = status.restarts.ordered
    if ordered is None or ordered.before is None or step is None or ordered.generation >= status.rendezvous.generation:
        return status
    if step <= (ordered.until or ordered.before):
        return status
    ordered = ordered.model_copy(update={"before": None, "until": None, "tries": None})
    return revise(status, restarts=revise(status.restarts, ordered=ordered))


def close_all(incidents: Sequence[api.IncidentStatus]) -> list[api.IncidentStatus]:
    """The incidents of a job that is resumed."""
    return [one if one.since is None else revise(one, since=None) for one in incidents]


def has_suspended(status: api.Status) -> bool:
    """Whether a rule has suspended the job, and nobody has resumed it since."""
    return any(one.since is not None and one.last_action == api.HealthAction.SUSPEND for one in status.incidents)


def find_end(spec: api.Spec, status: api.Status) -> str:
    """Why the job has to fail; "" if no rule says so."""
    return next((f"{one.rule}: {one.message}" for one in _open_with(spec, status, api.HealthAction.FAIL)), "")


def is_to_suspend(spec: api.Spec, status: api.Status) -> bool:
    return any(_open_with(spec, status, api.HealthAction.SUSPEND))


def _open_with(spec: api.Spec, status: api.Status, action: api.HealthAction) -> list[api.IncidentStatus]:
    wanted = {rule.name for rule in health_watch.rules_of(spec) if rule.action is action}
    return [one for one in status.incidents if one.rule in wanted and one.since and one.last_action == action]


def describe(incidents: Sequence[api.IncidentStatus]) -> tuple[bool, str, str]:
    """(status, reason, message) of the condition Incident."""
    now = [one for one in incidents if one.since is not None]
    if not now:
        return False, "NothingToTell", ""
    return (
        True,
        now[0].rule,
        "; ".join(one.message if i == 0 else f"{one.rule}: {one.message}" for i, one in enumerate(now)),
    )


def find_ordered(status: api.Status) -> api.OrderedRestart | None:
    """The order to end the present world; None if there is none."""
    ordered = status.restarts.ordered
    world = status.rendezvous
    return ordered if ordered is not None and 0 < world.generation == ordered.generation else None


def replaced(status: api.Status) -> Mapping[str, str]:
    """The pod (UID) whose place another one takes, with its node."""
    ordered = status.restarts.ordered
    return {} if ordered is None or ordered.uid is None else {ordered.uid: ordered.node or ""}
