"""Where nodes are: zones, network blocks and racks, as their labels say. Pure.

A place is a tuple from the widest part of the network to the node itself. What a node's labels do not say is empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

Place = tuple[str, ...]
_T = TypeVar("_T")

# Label → what shares a value of it, from the widest to the narrowest.
LABELS: Final = {
    "topology.kubernetes.io/zone": "a zone of the cloud or the data center",
    "cloud.google.com/gce-topology-block": "GKE: a block of racks",
    "topology.k8s.aws/network-node-layer-1": "AWS: the widest layer of the network",
    "network.topology.nvidia.com/core": "Topograph: a core switch",
    "cloud.google.com/gce-topology-subblock": "GKE: a rack",
    "topology.k8s.aws/network-node-layer-2": "AWS: the middle layer of the network",
    "network.topology.nvidia.com/spine": "Topograph: a spine switch",
    "topology.k8s.aws/network-node-layer-3": "AWS: the narrowest layer of the network",
    "network.topology.nvidia.com/leaf": "Topograph: a leaf switch, as of a rack",
    "network.topology.nvidia.com/accelerator": "Topograph: a domain of accelerators, as of NVLink",
    "cloud.google.com/gce-topology-host": "GKE: a physical host",
}


def find_place(name: str, labels: Mapping[str, str]) -> Place:
    """The place of a node."""
    return (*(labels.get(label, "") for label in LABELS), name)


def sort_by_place(items: Iterable[_T], place: Callable[[_T], Place]) -> list[_T]:
    """The items, those of one place together, and otherwise in their order: the first one stays the first."""
    ordered = list(items)
    first: dict[Place, int] = {}
    for number, item in enumerate(ordered):
        for part in find_parts(place(item)):
            first.setdefault(part, number)
    return sorted(ordered, key=lambda item: [first[part] for part in find_parts(place(item))])


def sort_to_leave(items: Sequence[_T], place: Callable[[_T], Place], last: Callable[[_T], bool]) -> list[_T]:
    """The items in the order in which they leave, so that whole places become free.

    The smallest zone goes first, in it the smallest block, and so on down to the node; of equal ones, that of the
    latest item. The place of the item that is to be the `last` one goes last.
    """
    members: dict[Place, list[int]] = defaultdict(list)
    keeps: set[Place] = set()
    for number, item in enumerate(items):
        for part in find_parts(place(item)):
            members[part].append(number)
            if last(item):
                keeps.add(part)

    def turn(number: int) -> list[tuple[bool, int, int]]:
        item = items[number]
        parts = [(part in keeps, len(members[part]), -max(members[part])) for part in find_parts(place(item))]
        return [*parts, (last(item), 0, -number)]

    return [items[number] for number in sorted(range(len(items)), key=turn)]


def find_parts(place: Place) -> list[Place]:
    """The place and all that it is known to be in, the widest first."""
    return [place[: depth + 1] for depth, name in enumerate(place) if name]
