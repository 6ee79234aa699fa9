"""Which nodes a pod prefers or avoids, beside what its template says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticjob_operator.api.podtemplate import PREFERRED, REQUIRED
from elasticjob_operator.apply.manifests.common import Object
from elasticjob_operator.pool.capacity import Pool

CHEAP_WEIGHT = 50  # of 100, for a node that costs nothing
AVOID_WEIGHT = 100  # of 100
WISHES_WEIGHT = 25  # of all other preferences together, beside that


def prefer_cheap(body: Object, pool: Pool | None) -> None:
    """Prefer nodes by what their devices cost. A node that failed repeatedly is avoided first."""
    if pool is None:
        return
    dearest = max((rate.per_hour for rate in pool.rates), default=0.0)
    for rate in pool.rates:
        weight = round(CHEAP_WEIGHT * (1 - rate.per_hour / dearest)) if dearest else 0
        if weight and rate.selector:
            labels = [{"key": key, "operator": "In", "values": [value]} for key, value in rate.selector.items()]
            _add_preference(body, {"weight": weight, "preference": {"matchExpressions": labels}})


def avoid(body: Object, nodes: tuple[str, ...], *, is_required: bool) -> None:
    """Prefer other nodes to those that failed repeatedly, more than whatever else is preferred. They are excluded only
    if the job says so: there may be no others.
    """
    if not nodes:
        return
    others = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(nodes)}
    if not is_required:
        wishes = _shrink(_rules_of(body).get(PREFERRED) or ())
        term = {"weight": AVOID_WEIGHT, "preference": {"matchExpressions": [others]}}
        _set_rule(body, PREFERRED, [*wishes, term])
        return
    # A node must match one of the terms, so each of them has to exclude the faulty ones.
    terms = (_rules_of(body).get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    narrowed = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), others]} for term in terms]
    _set_rule(body, REQUIRED, {"nodeSelectorTerms": narrowed})


def _shrink(wishes: Sequence[Object]) -> list[Object]:
    """The preferences with smaller weights in about the same proportions: the scheduler adds them up, so that a few of
    them would be worth more than to avoid a node. The API server has its say on a weight that is none.
    """
    most = max(sum(_weigh(wish) for wish in wishes), WISHES_WEIGHT)
    return [
        {**wish, "weight": max(1, weight * WISHES_WEIGHT // most)} if (weight := _weigh(wish)) else wish
        for wish in wishes
    ]


def _weigh(wish: Object) -> int:
    weight = wish.get("weight")
    return weight if isinstance(weight, int) and 0 < weight <= 100 else 0


def _add_preference(body: Object, term: Object) -> None:
    _set_rule(body, PREFERRED, [*(_rules_of(body).get(PREFERRED) or ()), term])


def _rules_of(body: Object) -> Object:
    return (body.get("affinity") or {}).get("nodeAffinity") or {}


def _set_rule(body: Object, name: str, rule: Any) -> None:
    """Pods share what the template says: it is replaced, not changed."""
    body["affinity"] = {**(body.get("affinity") or {}), "nodeAffinity": {**_rules_of(body), name: rule}}
