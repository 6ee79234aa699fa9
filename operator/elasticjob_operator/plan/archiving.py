"""What the status says of the store that outlives all pods, while there are agents that tell. Pure."""

from __future__ import annotations

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.failures import archives
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import reporting
from elasticjob_operator.plan.values import Seen


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
