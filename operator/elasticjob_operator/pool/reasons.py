"""Why a job has its size, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator.pool.capacity import Pool
from elasticjob_operator.pool.values import Grant, Limit, Objective, Request


def describe(grant: Grant, request: Request, objective: Objective = Objective.GOODPUT) -> str:
    """Without numbers that change from second to second: an undisturbed job causes no writes."""
    late = "; it will miss runPolicy.activeDeadlineSeconds" if grant.is_late else ""
    return _describe(grant, request, objective) + late


def _describe(grant: Grant, request: Request, objective: Objective) -> str:
    match grant.limit:
        case Limit.ROOM:
            need = request.sizes[0] * request.curve.devices
            return f"waits for {need} free {_devices(need)}, which its smallest size needs"
        case Limit.CHANGE:
            return f"stays at {_pods(grant.size)}: going to {grant.ideal} would gain less than the change costs"
        case Limit.DEADLINE:
            return f"{_pods(grant.size)}, enough for runPolicy.activeDeadlineSeconds: more would cost more"
        case Limit.OTHERS if objective is Objective.EQUAL:
            return f"{_pods(grant.size)}, its share of the pool"
        case Limit.OTHERS if grant.next_gain <= 0.005:
            return f"{_pods(grant.size)}: more would not make it faster"
        case Limit.OTHERS:
            return f"{_pods(grant.size)}: other jobs gain more from the devices of the pool"
        case _:
            return f"{_pods(grant.size)}, the most that it may have"


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"


def _devices(count: int) -> str:
    return "device" if count == 1 else "devices"


def describe_no_pool(pools: Sequence[Pool]) -> str:
    """Why a job shares no pool."""
    known = ", ".join(f"{pool.name} ({pool.resource})" for pool in pools) or "none"
    return f"no pool has the resource that its pods request; the operator's pools are: {known}"
