"""Whether a job should grow now: the cost of a change of size, and how long new capacity must last first. Pure."""

from __future__ import annotations

from elasticjob_operator import api
from elasticjob_operator.model.observe import Pod

STABLE_SECONDS = 60.0
WAITED_SECONDS = 5.0
MAX_HOLD_SECONDS = 300.0
MAX_COST_SECONDS = 120.0


def held_until(pod: Pod, status: api.Status, stable: float = STABLE_SECONDS) -> float:
    """The time (seconds since the epoch) from which a joiner may interrupt a running world.

    Capacity that appeared late may disappear again: growing pays off only if it lasts much longer than the growth
    costs. A pod that was scheduled at once (a replacement, a bigger `replicas`) is not held back, unless it is a retry
    after other pods found no capacity.
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
    """The cost of a change of size in seconds, as last measured; None if unknown. Outages are not counted."""
    measured = status.goodput.last_recovery_seconds
    return None if measured is None else min(measured, MAX_COST_SECONDS)


def is_worth_growing(status: api.Status, size: int, target: int) -> bool:
    """Whether a bigger world saves more time than the change costs, if the remaining work is known."""
    remaining = status.progress.estimated_remaining_seconds if status.progress else None
    cost = cost_of_change(status)
    if remaining is None or cost is None or target <= size:
        return True
    return remaining * (1 - size / target) > cost
