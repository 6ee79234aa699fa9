"""Room for pods: which extras are withdrawn, when they are tried again and when growing pays. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator import api
from elasticjob_operator.observe import Pod, format_time, parse_time

PROBE_BACKOFF_SECONDS = 60.0
MAX_PROBE_SECONDS = 600.0


def retry(capacity: api.CapacityStatus, now: float) -> api.CapacityStatus:
    """The same, with the withdrawn extras wanted again when their time has come."""
    due = parse_time(capacity.retry_time)
    if capacity.withdrawn and due is not None and now >= due:
        return capacity.model_copy(update={"withdrawn": 0})
    return capacity


def withdraw(
    capacity: api.CapacityStatus, pods: Sequence[Pod], *, spare_room: int, timeout: float, now: float
) -> tuple[api.CapacityStatus, frozenset[str]]:
    """Extras that nobody could schedule for `timeout` seconds are withdrawn, at most `spare_room` of them.

    The next try comes with back-off: no pods that pend for ever, no autoscaler that swings.
    """
    overdue = [p for p in pods if p.unschedulable is not None and p.live and now - p.created >= timeout]
    overdue.sort(key=lambda p: -p.index)
    chosen = overdue[: max(0, spare_room)]
    if not chosen:
        return capacity, frozenset()
    attempts = capacity.attempts + 1
    delay = min(MAX_PROBE_SECONDS, PROBE_BACKOFF_SECONDS * 2.0 ** min(attempts - 1, 16))
    changed = api.CapacityStatus(
        withdrawn=capacity.withdrawn + len(chosen), attempts=attempts, retry_time=format_time(now + delay)
    )
    return changed, frozenset(p.uid for p in chosen)


def next_overdue(pods: Sequence[Pod], timeout: float) -> float | None:
    return min((p.created + timeout for p in pods if p.unschedulable is not None and p.live), default=None)


STABLE_SECONDS = 60.0
WAITED_SECONDS = 5.0
MAX_HOLD_SECONDS = 300.0
MAX_COST_SECONDS = 120.0


def held_until(pod: Pod, status: api.Status, stable: float = STABLE_SECONDS) -> float:
    """When a newcomer may disturb a running world.

    Room that came lately may go again: growing pays only if it stays for much longer than the growth costs. One that
    was placed at once (a replacement, a bigger `replicas`) is not held, unless it probes where others found no room.
    """
    if pod.scheduled is None:
        return 0.0
    probing = status.capacity is not None and status.capacity.attempts > 0
    waited = pod.scheduled - pod.created >= WAITED_SECONDS
    if not (probing or waited):
        return 0.0
    cost = cost_of_change(status) or 0.0
    return pod.scheduled + max(stable, min(MAX_HOLD_SECONDS, 20 * cost))


def cost_of_change(status: api.Status) -> float | None:
    """What a change of size costs, as measured the last time; an outage was longer than a change takes."""
    measured = status.goodput.last_recovery_seconds
    return None if measured is None else min(measured, MAX_COST_SECONDS)


def is_worth_growing(status: api.Status, size: int, target: int) -> bool:
    """Whether a bigger world saves more time than the change costs, as far as the rest of the job is known."""
    remaining = status.progress.estimated_remaining_seconds if status.progress else None
    cost = cost_of_change(status)
    if remaining is None or cost is None or target <= size:
        return True
    return remaining * (1 - size / target) > cost
