"""A pool: which nodes belong to it, which jobs share it, and how many devices it has for them. Pure.

A device is one unit of the pool's resource: a GPU, a thousandth of a CPU, a pod. A node belongs to the first pool whose
labels it has, and a job to the first whose resource its pods request, so that no device is counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from elasticjob_operator import numerals, quantity
from elasticjob_operator.model.observe import Devices, Node, Pod, PoolShare, Stranger

Raw = Mapping[str, Any]
Held = dict[str, dict[str, int]]  # devices that the pods of others hold, by pool and node


@dataclass(frozen=True, slots=True)
class Rate:
    """What a device of nodes with certain labels costs."""

    per_hour: float  # for a whole CPU, where the pool's resource is `cpu`
    selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, as the administrator describes it."""

    name: str
    resource: str
    selector: Mapping[str, str] = field(default_factory=dict)  # labels of its nodes
    rates: tuple[Rate, ...] = ()  # the first whose labels a node has counts

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels belongs to it."""
        return _has(labels, self.selector)

    def find_rate(self, labels: Mapping[str, str]) -> float:
        """What a device of a node with these labels costs an hour; 0 if no rate is known."""
        found = next((rate.per_hour for rate in self.rates if _has(labels, rate.selector)), 0.0)
        return found / _units_of(self.resource)

    def accepts(self, template: Raw) -> bool:
        """Whether the pods of this template request its resource and may run on its nodes."""
        spec = template.get("spec") or {}
        wanted = spec.get("nodeSelector") or {}
        return count_devices(spec, self.resource) > 0 and all(
            wanted.get(key, value) == value for key, value in self.selector.items()
        )


def _has(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def parse_pool(text: str) -> Pool:
    """Parse `NAME=RESOURCE[,label=value...]`. Raises ValueError with an example."""
    first, *labels = text.split(",")
    name, equals, resource = first.partition("=")
    if not (name and equals and resource) or not all("=" in label for label in labels):
        raise ValueError(f"{text!r}: must be NAME=RESOURCE, then labels of its nodes: gpu=nvidia.com/gpu,pool=training")
    return Pool(name, resource, dict(label.split("=", 1) for label in labels))


def parse_rate(text: str) -> tuple[str, Rate]:
    """Parse `POOL=PRICE[,label=value...]` into the name of the pool and the rate. Raises ValueError with an example."""
    first, *labels = text.split(",")
    name, _, price = first.partition("=")
    per_hour = numerals.read_real(price)
    if not name or per_hour is None or per_hour < 0 or not all("=" in label for label in labels):
        example = "gpu=0.9,karpenter.sh/capacity-type=spot"
        raise ValueError(f"{text!r}: must be POOL=PRICE for a device and hour, then labels of the nodes: {example}")
    return name, Rate(per_hour, dict(label.split("=", 1) for label in labels))


def add_rates(pools: Sequence[Pool], rates: Sequence[tuple[str, Rate]]) -> tuple[Pool, ...]:
    """The pools with their rates. Raises ValueError if there is no pool of that name."""
    known = [pool.name for pool in pools]
    for name, _ in rates:
        if name not in known:
            raise ValueError(f"{name!r}: no pool has this name; the pools are: {', '.join(known)}")
    return tuple(replace(pool, rates=tuple(rate for name, rate in rates if name == pool.name)) for pool in pools)


def find_pool(pools: Sequence[Pool], template: Raw) -> Pool | None:
    """The pool of a job; None if it belongs to none."""
    return next((pool for pool in pools if pool.accepts(template)), None)


def find_share(pools: Sequence[Pool], raw: Raw) -> PoolShare:
    """What a core/v1 Node gives to the first pool that it belongs to."""
    labels = raw["metadata"].get("labels") or {}
    pool = next((pool for pool in pools if pool.matches(labels)), None)
    if pool is None:
        return PoolShare()
    allocatable = (raw.get("status") or {}).get("allocatable") or {}
    devices = count_units(pool.resource, allocatable.get(pool.resource))
    return PoolShare(pool.name, devices, pool.find_rate(labels))


def count_devices(pod_spec: Raw, resource: str) -> int:
    """The devices that one pod holds, as the scheduler counts them; 0 if an amount cannot be read."""
    if resource == "pods":
        return 1
    try:
        return _count(resource, quantity.add_pod_requests(pod_spec, resource).get(resource, Decimal(0)))
    except ValueError:
        return 0


def find_devices(pools: Sequence[Pool], pod_spec: Raw) -> Devices:
    """What a pod with this spec holds of the resources of pools, whichever node it is on.

    Nothing is left out, however many containers and resources it has: too little would be given out once more, and
    with too much a pod that holds nothing would keep a node from all others.
    """
    resources = dict.fromkeys(pool.resource for pool in pools if pool.resource != "pods")
    return tuple((name, devices) for name in resources if (devices := count_devices(pod_spec, name)))


def count_held(pod: Pod | Stranger, resource: str) -> int:
    """The devices that a pod holds, whatever the template of its job says by now."""
    return 1 if resource == "pods" else dict(pod.devices).get(resource, 0)


def count_units(resource: str, amount: object) -> int:
    """A Kubernetes quantity in whole units, in thousandths for `cpu`; 0 if it is not a quantity."""
    try:
        number = quantity.parse(0 if amount is None else amount)
    except ValueError:
        return 0
    return _count(resource, number)


def _count(resource: str, amount: Decimal) -> int:
    return math.floor(amount * _units_of(resource))


def _units_of(resource: str) -> int:
    """Devices in a quantity of 1."""
    return 1000 if resource == "cpu" else 1


def add_held(held: Held, pools: Sequence[Pool], pod_spec: Raw) -> None:
    """Add the devices of one pod that has a node to those that are held."""
    for pool in pools:
        devices = count_devices(pod_spec, pool.resource)
        if devices:
            nodes = held.setdefault(pool.name, {})
            node = str(pod_spec.get("nodeName") or "")
            nodes[node] = nodes.get(node, 0) + devices


def count_capacity(pool: Pool, nodes: Iterable[Node], held: Mapping[str, int]) -> int:
    """The devices for the jobs that share the pool. `held`: devices that the pods of others hold, by node.

    A node that is not ready, cordoned or about to be removed has none, although pods on it may continue to train.
    """
    return sum(
        max(0, node.share.devices - held.get(node.name, 0))
        for node in nodes
        if node.share.pool == pool.name and node.ready and not node.cordoned and not node.leaving
    )


def find_largest(pool: Pool, nodes: Iterable[Node]) -> int:
    """The devices of the node that has the most: no pod can hold more."""
    return max((node.share.devices for node in nodes if node.share.pool == pool.name), default=0)
