"""Which rank keeps the copy of another rank's part of a model: one of a pod on another node."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from elasticjob import env
from elasticjob.collectives import messages


@dataclass(frozen=True)
class Buddies:
    """To whom a rank sends the copy of its part, and whose part it keeps."""

    keeper: int
    source: int


def find_keepers(nodes: Sequence[int], per_pod: int) -> tuple[int, ...]:
    """For each rank, the rank that keeps the copy of its part: itself if there is no other pod. Pure.

    `nodes` has a number for the node of each rank. The copy is in a pod on another node, as far as no node has more
    than half of the pods. Every rank keeps exactly one copy, of the rank with the same place in another pod.
    """
    size = len(nodes)
    if size <= per_pod or size % per_pod:
        return tuple(range(size))
    places = nodes[::per_pod]
    pods = sorted(range(len(places)), key=lambda pod: places.index(places[pod]))  # those of one node together
    most = max(Counter(places).values())
    shift = most if most < len(pods) else 1
    keepers = dict(zip(pods, pods[shift:] + pods[:shift], strict=True))
    return tuple(keepers[rank // per_pod] * per_pod + rank % per_pod for rank in range(size))


def number_node(environ: Mapping[str, str], pod: int) -> int:
    """A number that all pods of a node share. A pod of which no node is known has its own; `pod` counts them."""
    node = environ.get(env.NODE_NAME, "")
    return zlib.crc32(node.encode()) if node else -1 - pod


def number_own_node(rank: int) -> int:
    """The number of this rank's node."""
    return number_node(os.environ, rank // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def choose(per_pod: int, group: Any) -> Buddies | None:
    """This rank's buddies; None if there is no other pod. All ranks of the group, which is on the CPU, call it."""
    rank = dist.get_rank()
    mine = number_node(os.environ, rank // per_pod)
    keepers = find_keepers([node for (node,) in messages.all_gather_integers([mine], group)], per_pod)
    return None if keepers[rank] == rank else Buddies(keepers[rank], keepers.index(rank))
