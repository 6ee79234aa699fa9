"""A queue of Kueue that is named where nobody asks it: the job trains without quota, and nobody knows. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from elasticjob_operator.api import names
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.reading import Notice
from elasticjob_operator.untyped import as_object


def find_unasked(job: Job, *, has_kueue: bool) -> tuple[Notice, ...]:
    """The warning about a queue that is not asked. `has_kueue`: the integration is on."""
    place, queue = next(_find_queues(job), ("", ""))
    is_there = place == "metadata.labels"
    if not queue or (is_there and has_kueue):
        return ()
    remedies = [] if is_there else ["write it into metadata.labels of the job"]
    remedies += [] if has_kueue else ["install the operator with integrations.kueue=true"]
    message = (
        f"{place}[{names.LABEL_QUEUE}] names the queue {queue!r}, and the job does not wait for its quota: "
        f"{', and '.join(remedies)}; or remove it"
    )
    return (Notice("NotQueued", message),)


def _find_queues(job: Job) -> Iterator[tuple[str, str]]:
    """Where a queue is named, and which; the right place comes first."""
    of_pods = as_object(job.spec.template.get("metadata") if job.spec is not None else None)
    places = (
        ("metadata.labels", job.labels),
        ("metadata.annotations", job.annotations),
        ("spec.template.metadata.labels", of_pods.get("labels")),
        ("spec.template.metadata.annotations", of_pods.get("annotations")),
    )
    for place, marks in places:
        queue = as_object(marks).get(names.LABEL_QUEUE)
        if queue and isinstance(queue, str):
            yield place, queue[:63]
