"""A job that its queue has sent to another cluster, and whose spec is changed here. Pure.

Nobody forwards the change: MultiKueue makes the job there once, and from then on reads its status only.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.quota import Quota


@dataclass(frozen=True, slots=True)
class Sent:
    """Where the job runs, and the spec that it was last seen with."""

    cluster: str
    generation: int


def note(before: Sent | None, job: Job, quota: Quota | None) -> tuple[Sent | None, str]:
    """What is known of it now, and what to tell if its spec has changed since. A suspension is no such change."""
    if quota is None or not quota.cluster or job.spec is None:
        return None, ""
    now = Sent(quota.cluster, job.generation)
    is_changed = before is not None and before.cluster == now.cluster and before.generation != now.generation
    if not is_changed or job.spec.run_policy.suspend:
        return now, ""
    return now, (
        f"the job runs in cluster {quota.cluster} with the spec that it was sent with: Kueue forwards no change, of "
        "spec.replicas or of anything else. Scale or change the job of this name there, or suspend and resume this "
        "one, which sends it anew"
    )
