"""What the status says of the store that outlives all pods, while there are agents that tell. Pure."""

from __future__ import annotations

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.failures import archives
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import reporting
from elasticjob_operator.plan.values import Plan, Seen
from elasticjob_operator.templates import taking
from elasticjob_operator.times import parse_time


def note(seen: Seen, spec: api.Spec, status: api.Status) -> api.Status:
    """The status with what rank 0 tells of the archive, also before and after it trains."""
    wanted = None if spec.checkpoints is None else spec.checkpoints.archive
    members = seen.job.status.rendezvous.members or status.rendezvous.members
    first = seen.agents.get(members[0].uid) if members else None
    if wanted is None or first is None:
        return status
    told, job = first.state.checkpoint, seen.job
    url = names.archive_url(wanted.to, job.namespace, job.name, job.uid)
    found = archives.find_archived(told, url)
    conditions = status.conditions
    if found is not None:
        conditions = reporting.with_condition(conditions, "CheckpointArchived", *found, seen.now)
    return revise(status, archive=archives.describe(told, status.archive, url), conditions=conditions)


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
    status, now = seen.job.status, seen.now
    found = archives.find_origin(wanted, seen.job.name, seen.origin)
    if isinstance(found, str):
        conditions = reporting.with_condition(status.conditions, "Degraded", True, archives.NOTHING, found, now)
        after = revise(status, phase=api.Phase.PENDING, conditions=conditions, observed_generation=seen.job.generation)
        since = parse_time(next(c.last_transition_time for c in conditions if c.type == "Degraded")) or now
        events = reporting.describe_changes(status, after, None, now)
        return Plan(after, archives.NOTHING, events=events, wake_at=now + taking.find_pause(now - since))
    conditions = status.conditions
    if status.is_true("Degraded"):
        conditions = reporting.with_condition(conditions, "Degraded", False, "AllWanted", "", now)
    after = revise(status, origin=found, conditions=conditions)
    return Plan(after, "knows where it begins", events=(reporting.Event("OriginTaken", f"begins from {found.url}"),))
