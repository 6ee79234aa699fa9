"""Where a pool is: its nodes, and how many devices they have for the jobs that share it. Pure.

A device is one unit of the pool's resource: a GPU, a thousandth of a CPU, a pod. A node belongs to the first pool whose
selector it matches, and a job to the first whose resource its pods ask for, so that no device is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

Raw = Mapping[str, Any]

_SUFFIXES: Final = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, slots=True)
class Place:
    """A pool, as the administrator describes it."""

    name: str
    resource: str
    selector: Mapping[str, str] = field(default_factory=dict)  # labels of its nodes

    def has(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.selector.items())

    def suits(self, template: Raw) -> bool:
        """Whether the pods of this template ask for its resource and may be on its nodes."""
        spec = template.get("spec") or {}
        wanted = spec.get("nodeSelector") or {}
        return count_devices(spec, self.resource) > 0 and all(
            wanted.get(key, value) == value for key, value in self.selector.items()
        )


def parse_place(text: str) -> Place:
    """`NAME=RESOURCE[,label=value...]`; ValueError says what is wrong."""
    first, *labels = text.split(",")
    name, equals, resource = first.partition("=")
    if not (name and equals and resource) or not all("=" in label for label in labels):
        raise ValueError(f"{text!r}: must be NAME=RESOURCE, then labels of its nodes: gpu=nvidia.com/gpu,pool=training")
    return Place(name, resource, dict(label.split("=", 1) for label in labels))


def find_place(places: Sequence[Place], template: Raw) -> Place | None:
    """The pool of a job."""
    return next((place for place in places if place.suits(template)), None)


def find_of_node(places: Sequence[Place], raw: Raw) -> tuple[str, int]:
    """(pool, devices) of a core/v1 Node; ("", 0) where it is in none."""
    labels = raw["metadata"].get("labels") or {}
    place = next((place for place in places if place.has(labels)), None)
    if place is None:
        return "", 0
    allocatable = (raw.get("status") or {}).get("allocatable") or {}
    return place.name, count_units(place.resource, allocatable.get(place.resource))


def count_devices(pod_spec: Raw, resource: str) -> int:
    """What one pod holds: the sum of its containers' requests, or limits where there are no requests."""
    if resource == "pods":
        return 1
    found = 0
    for container in pod_spec.get("containers") or ():
        resources = container.get("resources") or {}
        asked = (resources.get("requests") or {}).get(resource, (resources.get("limits") or {}).get(resource))
        found += count_units(resource, asked)
    return found


def count_units(resource: str, quantity: object) -> int:
    """A Kubernetes quantity in whole units, thousandths for `cpu`; 0 for what is none."""
    text = str(quantity if quantity is not None else 0)
    suffix = next((s for s in (*_SUFFIXES, "m") if text.endswith(s)), "")
    try:
        number = Decimal(text.removesuffix(suffix) if suffix else text)
        number *= Decimal("0.001") if suffix == "m" else _SUFFIXES.get(suffix, 1)
        return max(0, int(number * (1000 if resource == "cpu" else 1)))
    except (InvalidOperation, OverflowError, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class Ground:
    """One node of a pool."""

    name: str
    devices: int
    is_usable: bool = True  # ready, and neither cordoned nor about to go


def count_capacity(nodes: Iterable[Ground], held: Mapping[str, int]) -> int:
    """Devices for the jobs that share the pool. `held`, by node: by pods of others. A node that will go has none."""
    return sum(max(0, node.devices - held.get(node.name, 0)) for node in nodes if node.is_usable)
