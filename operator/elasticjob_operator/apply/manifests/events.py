"""Builds the Kubernetes event for a job. Pure."""

from __future__ import annotations

from elasticjob_operator.api import names
from elasticjob_operator.apply.manifests.common import Object
from elasticjob_operator.model.observe import Job


def build_event(
    job: Job,
    reason: str,
    message: str,
    *,
    warning: bool,
    times: tuple[str, str],
    name: str,
    reporter: str,
    count: int = 1,
) -> Object:
    """A core/v1 Event on the job; `times` are those of the first and the last of `count`."""
    first, last = (time[:19] + "Z" for time in times)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        },
        "reason": reason,
        "message": message[:1024],
        "type": "Warning" if warning else "Normal",
        "firstTimestamp": first,
        "lastTimestamp": last,
        "count": count,
        "source": {"component": "elasticjob-operator"},
        "reportingComponent": "elasticjob-operator",
        "reportingInstance": reporter,
    }
