"""What the status says of the store that outlives all pods, while there are agents that tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.failures import archives
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import reporting
from elasticjob_operator.plan.values import Seen
from elasticjob_operator.times import parse_time


def note(seen: Seen, spec: api.Spec, status: api.Status) -> api.Status:
    """The status with what rank 0 tells of the archive, also before and after it trains.

    Where its pod is gone, another one may have archived what it holds before it goes as well.
    """
    wanted = None if spec.checkpoints is None else spec.checkpoints.archive
    members = seen.job.status.rendezvous.members or status.rendezvous.members
    agents = [seen.agents.get(member.uid) for member in members]
    if wanted is None or not any(agents):
        return status
    told, job = find_told([None if agent is None else agent.state.checkpoint for agent in agents]), seen.job
    url = names.archive_url(wanted.to, job.namespace, job.name, job.uid)
    found = archives.find_archived(told, url)
    conditions = status.conditions
    if found is not None:
        conditions = reporting.with_condition(conditions, "CheckpointArchived", *found, seen.now)
    return revise(status, archive=archives.describe(told, status.archive, url), conditions=conditions)


def find_told(said: Sequence[wire.Checkpoint | None]) -> wire.Checkpoint | None:
    """What counts of what the members say, by rank. None: there is no such pod, or it says nothing of checkpoints."""
    first = next(iter(said), None)
    if first is not None:
        return first
    # Several may have archived alone what they hold, and only one of them in time.
    told = [one for one in said if one and one.archive and (one.archive.saves or one.archive.reason)]
    saves = [one.archive.saves for one in told if one.archive]
    return max(told, key=lambda one: _rank(one.archive, saves), default=None)


def _rank(archive: wire.Archive | None, others: Sequence[Sequence[wire.Archived]]) -> tuple[bool, bool, int, float]:
    """How much what this one tells counts: without a reason, then with the newest save, which no other one has behind
    a newer one.
    """
    newest = archive.saves[0] if archive and archive.saves else None
    if archive is None or newest is None:
        return False, False, -1, 0.0
    is_last = all(newest not in saves[1:] for saves in others)
    step = -1 if newest.step is None else newest.step
    return not archive.reason, is_last, step, parse_time(newest.time) or 0.0
