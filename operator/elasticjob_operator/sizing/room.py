"""Cluster capacity. Extra pods that cannot be scheduled are withdrawn, and retried later. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.backoff import find_pause
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.model.revise import revise
from elasticjob_operator.times import format_time, parse_time

PROBE_BACKOFF_SECONDS = 60.0
MAX_PROBE_SECONDS = 600.0
MOST_SAID = 1024  # characters


def describe_withdrawn(room: api.CapacityStatus) -> str:
    return f"{room.withdrawn} pods were not scheduled within scalingTimeoutSeconds and will be retried later"


def retry(capacity: api.CapacityStatus, now: float) -> api.CapacityStatus:
    """The capacity status, with the withdrawn extra pods requested again once their retry is due."""
    due = parse_time(capacity.retry_time)
    if capacity.withdrawn and due is not None and now >= due:
        return revise(capacity, withdrawn=0, said=None)
    return capacity


def withdraw(
    capacity: api.CapacityStatus, pods: Sequence[Pod], *, spare_room: int, withheld: int = 0, timeout: float, now: float
) -> tuple[api.CapacityStatus, frozenset[str]]:
    """Withdraw at most `spare_room` extra pods that have been unschedulable for `timeout` seconds.

    Where these do not fit, those that the queue has not admitted yet (`withheld`) would not either. All of them are
    retried with back-off, so that no pods stay pending for ever and no autoscaler oscillates.
    """
    overdue = [p for p in pods if p.unschedulable is not None and p.live and now - p.created >= timeout]
    overdue.sort(key=lambda p: -p.index)
    chosen = overdue[: max(0, spare_room)]
    if not chosen:
        return capacity, frozenset()
    attempts = capacity.attempts + 1
    delay = find_pause(attempts, first=PROBE_BACKOFF_SECONDS, most=MAX_PROBE_SECONDS)
    withdrawn = capacity.withdrawn + withheld + len(chosen)
    changed = revise(
        capacity,
        withdrawn=withdrawn,
        attempts=attempts,
        retry_time=format_time(now + delay),
        said=chosen[0].unschedulable_message[:MOST_SAID] or None,
    )
    return changed, frozenset(p.uid for p in chosen)


def next_overdue(pods: Sequence[Pod], timeout: float) -> float | None:
    return min((p.created + timeout for p in pods if p.unschedulable is not None and p.live), default=None)
