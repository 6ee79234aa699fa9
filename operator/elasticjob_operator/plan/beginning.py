"""What a job takes from another object before it begins, once: its template, and where another job archives. Pure."""

from __future__ import annotations

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.failures import archives
from elasticjob_operator.model.observe import Job, NoRoom
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import reporting
from elasticjob_operator.plan.values import Plan, Seen
from elasticjob_operator.templates import taking
from elasticjob_operator.times import parse_time


def take_template(seen: Seen, awaited: taking.Awaited) -> Plan:
    """Let a job take its template, or wait for it: nothing else happens before, and nothing is lost."""
    if not awaited.is_ours:
        return Plan(seen.job.status, f"managed by {awaited.manager}")
    if seen.template is None:
        return Plan(seen.job.status, "waits for its template")
    found = seen.template if isinstance(seen.template, taking.Refusal) else taking.take(awaited, seen.template)
    if isinstance(found, taking.Refusal):
        return _wait(seen, found.reason, found.message)
    text = f"took {names.TEMPLATE_KIND} {found.name} of namespace {found.namespace}, generation {found.generation}"
    after = revise(_without_problem(seen), template=found)
    return Plan(after, "took its template", events=(reporting.Event("TemplateTaken", text),))


def find_awaited_origin(job: Job) -> api.CheckpointOrigin | None:
    """What names another job, if this one has still to find out where that archives. Only before it starts."""
    checkpoints = None if job.spec is None else job.spec.checkpoints
    wanted = None if checkpoints is None else checkpoints.from_
    if wanted is None or wanted.job is None or job.status.start_time is not None:
        return None
    origin = job.status.origin
    return None if origin is not None and origin.job == wanted.job else wanted


def take_origin(seen: Seen, wanted: api.CheckpointOrigin) -> Plan:
    """Let a job note where the other one archives, or wait for that: so it begins there even if the other one goes."""
    found = archives.find_origin(wanted, seen.job.name, seen.origin)
    if isinstance(found, str):
        return _wait(seen, archives.NOTHING, found)
    after = revise(_without_problem(seen), origin=found)
    return Plan(after, "knows where it begins", events=(reporting.Event("OriginTaken", f"begins from {found.url}"),))


def may_begin_anew(seen: Seen) -> bool:
    """Whether a job that never began, for what its manifest said, begins with the corrected one: once it has no pod."""
    is_refused = seen.problem is not None and seen.problem[0] == "InvalidTemplate"  # still that of the manifest before
    return seen.job.is_corrected and seen.job.spec is not None and not seen.pods and not is_refused


def begin_anew(seen: Seen) -> Plan:
    """A status as that of a new job. What the job has taken from its template stays, and so do its conditions."""
    before, why = seen.job.status, "Corrected"
    conditions = reporting.with_condition(before.conditions, "Failed", False, why, "", seen.now)
    conditions = reporting.with_condition(conditions, "Running", False, why, "", seen.now)
    after = api.Status(
        phase=api.Phase.PENDING,
        conditions=conditions,
        template=before.template,
        written_replicas=before.written_replicas,
        observed_generation=seen.job.generation,
    )
    told = reporting.Event(
        why, f"generation {seen.job.generation} of the spec is valid: the job begins as if it were new"
    )
    return Plan(after, "begins anew", events=(told,), wake_at=seen.now)


def wait_for_room(seen: Seen, missing: NoRoom) -> Plan:
    """Let a job wait until its spec can be kept. One that has started goes on as it is."""
    if not names.is_ours(missing.manager):
        return Plan(seen.job.status, f"managed by {missing.manager}")
    return _wait(seen, missing.REASON, missing.message)


def _wait(seen: Seen, reason: str, message: str) -> Plan:
    """What is missing is told, and looked for again."""
    status, now = seen.job.status, seen.now
    conditions = reporting.with_condition(status.conditions, "Degraded", True, reason, message, now)
    phase = api.Phase.PENDING if status.start_time is None else status.phase
    after = revise(status, phase=phase, conditions=conditions, observed_generation=seen.job.generation)
    since = parse_time(next(c.last_transition_time for c in conditions if c.type == "Degraded")) or now
    events = reporting.describe_changes(status, after, None, now)
    return Plan(after, reason, events=events, wake_at=now + taking.find_pause(now - since))


def _without_problem(seen: Seen) -> api.Status:
    """The status of a job that has what it waited for."""
    status = seen.job.status
    if not status.is_true("Degraded"):
        return status
    return revise(
        status, conditions=reporting.with_condition(status.conditions, "Degraded", False, "AllWanted", "", seen.now)
    )
