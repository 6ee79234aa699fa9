"""Sums whose rounding does not depend on the size of the world: the summands are the leaves of one fixed binary tree.

Floating-point addition is not associative, so a sum over ranks that add their own summands first depends on how many
ranks there are. Here node `i` of level `l` covers the leaves from `i * 2**l`, and its value is the sum of its two
children, wherever they were computed. A rank that has neighbouring leaves adds the largest complete subtrees among
them, and only these partial sums have to be exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from elasticjob.collectives.members import Group, size_and_rank
from elasticjob.torchcompat.groups import find_all_gather

T = TypeVar("T")
Position = tuple[int, int]  # the level of a node, and its index in the level

BUCKET = 32 << 20  # bytes of a flat buffer; limits the memory that an exchange needs


class TreeSum(Generic[T]):
    """Adds neighbouring nodes of the tree as soon as both are there. Nodes are pushed in the order of their leaves."""

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        """`leaves` is the number of leaves of the whole tree; `add(left, right)` may reuse `left`."""
        self.nodes: list[tuple[Position, T]] = []
        self._leaves = leaves
        self._add = add

    def push(self, value: T, position: Position) -> None:
        """Append the node at this position; `(0, i)` is leaf `i`."""
        level, index = position
        while True:
            if index % 2 and self.nodes and self.nodes[-1][0] == (level, index - 1):
                _, left = self.nodes.pop()
                value = self._add(left, value)
            elif index % 2 or (index + 1) << level < self._leaves or index == 0:
                break  # the sibling is on another rank, or still to come
            level, index = level + 1, index // 2  # the parent; a last node without a sibling is its own parent
        self.nodes.append(((level, index), value))

    def pop_left(self, position: Position) -> T | None:
        """Remove and return the left sibling of a node that is to be pushed, if it is the newest node here.

        Whoever takes it adds it to the right one, and pushes the parent.
        """
        level, index = position
        if index % 2 and self.nodes and self.nodes[-1][0] == (level, index - 1):
            return self.nodes.pop()[1]
        return None

    def total(self) -> T:
        """The sum of all leaves, once all are pushed."""
        ((_, value),) = self.nodes
        return value


def find_nodes(leaves: int, start: int, stop: int) -> list[Position]:
    """The nodes that remain if one rank adds what it can of its leaves, from `start` to before `stop`. Pure."""
    tree: TreeSum[None] = TreeSum(leaves, lambda *_: None)
    for leaf in range(start, stop):
        tree.push(None, (0, leaf))
    return [position for position, _ in tree.nodes]


def add_tensors(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Add in place."""
    return left.add_(right)


def add_present(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    """Add in place; a missing tensor counts as zeros. None if both are missing."""
    if left is not None and right is not None:
        return left.add_(right)
    there = left if left is not None else right
    return None if there is None else there.add_(0.0)


def sum_flat(
    mine: Sequence[torch.Tensor], spans: Sequence[tuple[int, int]], leaves: int, group: Group = None
) -> torch.Tensor:
    """The sum over all ranks, in the order of the tree, on every rank. All ranks call it.

    `mine` are this rank's nodes as flat tensors of one length and type, in the order of `find_nodes`; a rank without
    leaves gives any tensor of that length. `spans` are the leaves of every rank, as (start, stop). Each rank adds one
    part of the tensors and sends it to all: together the ranks send as much as a ring all-reduce if each has one node.
    """
    size, rank = size_and_rank(group)
    like, length = mine[0], mine[0].numel()
    if length % size:
        padded = [torch.nn.functional.pad(node, (0, size - length % size)) for node in mine]
        return sum_flat(padded, spans, leaves, group)[:length]
    chunk = length // size
    counts = [len(find_nodes(leaves, *span)) for span in spans]
    # Part by part: each goes to one rank. With one node, as in a world that divides the leaves, nothing is copied.
    parts = [node.view(size, 1, chunk) for node in mine[: counts[rank]]]
    sent = parts[0] if len(parts) == 1 else torch.cat([like.new_empty((size, 0, chunk)), *parts], dim=1)
    received = like.new_empty((sum(counts), chunk))
    dist.all_to_all_single(
        received.view(-1),
        sent.view(-1),
        output_split_sizes=[count * chunk for count in counts],
        input_split_sizes=[counts[rank] * chunk] * size,
        group=group,
    )
    total = add_received(received, spans, leaves).add_(0.0)  # no negative zeros: they depend on what was missing
    whole_sum = like.new_empty(size * chunk)
    find_all_gather()(whole_sum, total, group=group)
    return whole_sum


def add_received(received: torch.Tensor, spans: Sequence[tuple[int, int]], leaves: int) -> torch.Tensor:
    """The sum of the nodes of all ranks; row by row in rank order. Changes `received`."""
    tree: TreeSum[torch.Tensor] = TreeSum(leaves, add_tensors)
    rows = iter(received)
    for span in spans:
        for position in find_nodes(leaves, *span):
            tree.push(next(rows), position)
    return tree.total()


def pack(tensors: Sequence[torch.Tensor | None], shapes: Sequence[torch.Tensor], multiple: int = 1) -> torch.Tensor:
    """One flat tensor; a missing one becomes zeros of the shape of its namesake in `shapes`.

    Zeros are appended until the length is a multiple of `multiple`.
    """
    parts = [
        like.new_zeros(like.numel()) if one is None else one.reshape(-1)
        for one, like in zip(tensors, shapes, strict=True)
    ]
    rest = -sum(part.numel() for part in parts) % multiple
    return torch.cat([*parts, parts[0].new_zeros(rest)])


def unpack(flat: torch.Tensor, shapes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of the parts of a flat tensor, which may be longer."""
    lengths = [like.numel() for like in shapes]
    parts = torch.split(flat[: sum(lengths)], lengths)
    return [part.view(like.shape) for part, like in zip(parts, shapes, strict=True)]


def make_buckets(tensors: Sequence[torch.Tensor], limit: int = BUCKET) -> list[list[int]]:
    """The indices of the tensors, in groups of one type and at most `limit` bytes. Pure; equal on all ranks."""
    buckets: list[list[int]] = []
    room: dict[Any, tuple[list[int], int]] = {}
    for index, tensor in enumerate(tensors):
        size, key = tensor.numel() * tensor.element_size(), (tensor.dtype, tensor.device.type)
        bucket, left = room.get(key, ([], -1))
        if left < size:
            bucket, left = [], limit
            buckets.append(bucket)
        bucket.append(index)
        room[key] = (bucket, left - size)
    return buckets


def is_alone(group: Group = None) -> bool:
    """Whether there is nobody to exchange with."""
    return not dist.is_initialized() or dist.get_world_size(group) == 1
