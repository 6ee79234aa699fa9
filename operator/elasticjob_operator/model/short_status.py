"""What is kept of the status of a job that has no pods, where there is no room for all of it. Pure."""

from __future__ import annotations

from typing import Any, Final

from elasticjob_operator import api, text
from elasticjob_operator.model.revise import revise

_MOST_CONDITIONS: Final = 32
_MOST_MESSAGE: Final = 256
_MOST_ITEMS: Final = 20
_MOST_METRICS: Final = 8  # have series
# By these, others decide, and metrics and tables tell of a job; none is long. Incidents, stragglers and checks of nodes
# are many: they have no series until the rest of the status is read.
_KEPT: Final = (
    *("phase", "replicas", "ready_replicas", "selector", "nproc_per_node", "in_force", "origin", "goodput"),
    *("lost_seconds", "capacity", "scaling", "written_replicas", "template_hash", "operator"),
    *("observed_generation", "start_time", "completion_time"),
)


def shorten(status: api.Status) -> api.Status:
    """What is kept of a status without room."""
    kept: dict[str, Any] = {name: getattr(status, name) for name in _KEPT}
    world, restarts, progress, archive = status.rendezvous, status.restarts, status.progress, status.archive
    if progress is not None:
        metrics = sorted(progress.metrics, key=lambda one: one.name != "loss")[:_MOST_METRICS]  # the loss is shown
        few = {"metrics": metrics, "not_finite": progress.not_finite[:_MOST_METRICS]}
        kept["progress"] = progress.model_copy(update={"history": None, **few})
    if archive is not None:
        kept["archive"] = archive.model_copy(update={"saves": archive.saves[:_MOST_ITEMS]})
    if status.template is not None:
        kept["template"] = status.template.model_copy(update={"fields": [], "spec": "{}"})
    return api.Status.model_construct(
        **kept,
        conditions=[_cut(one) for one in status.conditions[:_MOST_CONDITIONS]],
        rendezvous=revise(world, members=world.members[:1], lost=[], succeeded=[]),
        restarts=revise(restarts, counted=[], backoff=None, ordered=None),
        node_faults=status.node_faults[:_MOST_ITEMS],
    )


def _cut(condition: api.Condition) -> api.Condition:
    message = text.cut(condition.message, _MOST_MESSAGE)
    return condition if message == condition.message else condition.model_copy(update={"message": message})
