"""Gives each rank of a new world its part of a model whose parts, cut for another world, are in the memory of some.

Each rank says what it needs of each tensor, a range of one dimension, and gets it from the ranks that have it: of what
several have, from itself, or else from one on its node. Nothing else is sent, and no rank has the whole model because
of it. All messages of some tensors are under way at once, then those of the next ones. What arrives is compared with
the sender's digests before any rank goes on.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import deliveries, messages, plaindata, skeletons
from elasticjob.context import buddies
from elasticjob.sessions import transfer
from elasticjob.sessions.recovery import RecoveryPlan
from elasticjob.sessions.sharded import parts
from elasticjob.sessions.sharded.parts import Leaf
from elasticjob.torchcompat import waits

_AT_ONCE_BYTES = 256 << 20  # of the whole model, whose messages are under way


@dataclass(frozen=True)
class Need:
    """The range of a tensor that a rank needs, in one dimension; -1: all of it."""

    dim: int = -1
    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class Slice:
    """What a rank needs of one part of a tensor: where it begins in what it needs, and in the part, and how long it is.

    By dimension; those that are missing are whole.
    """

    index: int  # of the part
    at: Mapping[int, int] = field(default_factory=dict)  # in what is needed
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # in the part: start and length


def find_slices(leaf: Leaf, count: int, need: Need) -> Iterator[Slice]:
    """What a rank needs of each of `count` parts of a tensor, without those of which it needs nothing. Pure."""
    wanted = {} if need.dim < 0 else {need.dim: (need.start, need.stop)}
    if any(start >= stop for start, stop in wanted.values()):
        return
    if leaf.dim < 0:
        yield Slice(0, {}, {dim: (start, stop - start) for dim, (start, stop) in wanted.items()})
        return
    length = leaf.shape[leaf.dim]
    along = wanted.pop(leaf.dim, (0, length))
    across = {dim: (start, stop - start) for dim, (start, stop) in wanted.items()}
    each = -(-length // count)
    for index in range(along[0] // each, -(-along[1] // each)) if each else ():
        begin, end = parts.find_span(length, count, index)
        start, stop = max(begin, along[0]), min(end, along[1])
        yield Slice(index, {leaf.dim: start - along[0]}, {**across, leaf.dim: (start - begin, stop - start)})


def choose_source(having: Sequence[int], rank: int, nodes: Sequence[int]) -> int:
    """Which of the ranks that have a part sends it to this one: itself, one on its node, or else any. Pure.

    Those that are equally near share the work. `nodes` has a number for each rank's node.
    """
    if rank in having:
        return rank
    near = [one for one in having if nodes[one] == nodes[rank]] or having
    return near[rank % len(near)]


def group_leaves(sizes: Sequence[int], limit: int = _AT_ONCE_BYTES) -> Iterator[range]:
    """Neighbours that are sent at once: of at most so many bytes together, or a single one. Pure."""
    start = room = 0
    for at, size in enumerate(sizes):
        if at > start and size > room:
            yield range(start, at)
            start = at
        room = (limit if at == start else room) - size
    if sizes:
        yield range(start, len(sizes))


class Resharding:
    """One exchange of parts in a world. All ranks make one, with the same plan, and call its methods."""

    def __init__(self, plan: RecoveryPlan, held: Mapping[int, Any], group: Any) -> None:
        """`held`: the parts that this rank has, by index; `group` is on the CPU."""
        self._group, self._rank = group, dist.get_rank()
        lead = plan.holders[0][0]
        text = plaindata.encode(skeletons.split(held[0], []), "model") if self._rank == lead else ""
        self._skeleton = plaindata.decode(messages.broadcast(text, lead, group))
        self.leaves = parts.find_leaves(self._skeleton)
        self._leaves = list(self.leaves.values())
        found = {index: parts.find_tensors(part) for index, part in held.items()}
        self._tensors = {index: [tensors[path] for path in self.leaves] for index, tensors in found.items()}
        row = [buddies.number_own_node(self._rank), *self._digest(plan.holders)]
        rows = messages.all_gather_integers(row, group)
        self._nodes = [row[0] for row in rows]
        self._holders = trust(plan.holders, [row[1:] for row in rows])

    def _digest(self, holders: Sequence[Sequence[int]]) -> list[int]:
        """A digest of each part that this rank has, if others have it too; equally many numbers on each rank."""
        most = max(Counter(itertools.chain.from_iterable(holders)).values())
        mine = [index for index, having in enumerate(holders) if self._rank in having]
        digests = [self._digest_part(index) if len(holders[index]) > 1 else 0 for index in mine]
        return digests + [0] * (most - len(digests))

    def _digest_part(self, index: int) -> int:
        """Of what the ranks have together: buffers of the model may differ by rank."""
        pairs = zip(self._leaves, self._tensors[index], strict=True)
        return skeletons.combine([skeletons.digest(tensor) for leaf, tensor in pairs if leaf.is_common])

    def fill(self, section: str, make: Callable[[parts.Path], Any]) -> Any:
        """A section of the state, with what `make` returns for its path instead of each tensor."""
        return parts.replace_tensors(self._skeleton[section], make, (section,))

    def count_groups(self) -> int:
        """The number of parameter groups of the optimizer."""
        return len(self._skeleton["optimizer"]["param_groups"])

    def run(self, needs: Sequence[Need]) -> list[torch.Tensor]:
        """What this rank needs of each of the `leaves`, in host memory. Raises WorldLostError if not all is right."""
        # gloo does not end the wait for a send to a rank that is lost in the middle of it; the end of the world does.
        with waits.in_group(self._group):
            return self._run(needs)

    def _run(self, needs: Sequence[Need]) -> list[torch.Tensor]:
        wanted = self._tell(needs)
        served = {rank: self._find_served(rank) for rank in range(len(wanted)) if rank != self._rank}
        received = [_make(leaf, need) for leaf, need in zip(self._leaves, needs, strict=True)]
        wrong = size = 0
        for some in group_leaves([leaf.size for leaf in self._leaves]):
            sent = [one for rank, mine in served.items() if mine for one in self._send(some, rank, wanted[rank], mine)]
            for arrived, digest in self._receive(some, wanted[self._rank], received):
                wrong += skeletons.signed_digest(arrived) != digest
                size += arrived.numel() * arrived.itemsize
            for one in sent:
                one.wait()
        transfer.confirm(wrong == 0, size, self._group)
        return received

    def _tell(self, needs: Sequence[Need]) -> list[list[Need]]:
        """What each rank needs, by rank."""
        flat = list(itertools.chain.from_iterable((one.dim, one.start, one.stop) for one in needs))
        rows = messages.all_gather_integers(flat, self._group)
        return [[Need(*row[at : at + 3]) for at in range(0, len(row), 3)] for row in rows]

    def _find_served(self, rank: int) -> set[int]:
        """The parts that this rank sends to another one, as far as that needs them."""
        return {
            index
            for index in self._tensors
            if self._rank in self._holders[index]
            and choose_source(self._holders[index], rank, self._nodes) == self._rank
        }

    def _send(self, some: range, rank: int, needs: list[Need], served: set[int]) -> Iterator[deliveries.Delivery]:
        digests = []
        for at, slice_ in self._find_slices(some, needs):
            if slice_.index in served:
                piece = self._cut(at, slice_).contiguous()
                digests.append(skeletons.signed_digest(piece))
                yield deliveries.send(
                    skeletons.as_bytes(piece), rank, self._group, tag=self._number(some, at, slice_.index)
                )
        if digests:
            told = torch.tensor(digests, dtype=torch.int64)
            yield deliveries.send(told, rank, self._group, tag=self._number(some, some.stop, 0))

    def _receive(
        self, some: range, needs: list[Need], received: list[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """Fill in these tensors. What has come from other ranks, and the digest that they have told of it."""
        coming: dict[int, list[tuple[torch.Tensor, torch.Tensor, deliveries.Delivery]]] = {}
        for at, slice_ in self._find_slices(some, needs):
            place = _narrow(received[at], {dim: (slice_.at.get(dim, 0), n) for dim, (_, n) in slice_.ranges.items()})
            source = choose_source(self._holders[slice_.index], self._rank, self._nodes)
            if source == self._rank:
                place.copy_(self._cut(at, slice_))
                continue
            flat = place if place.is_contiguous() else torch.empty(place.shape, dtype=place.dtype)
            tag = self._number(some, at, slice_.index)
            delivery = deliveries.receive(skeletons.as_bytes(flat), source, self._group, tag=tag)
            coming.setdefault(source, []).append((flat, place, delivery))
        for source, arriving in coming.items():
            digests = torch.empty(len(arriving), dtype=torch.int64)
            told = deliveries.receive(digests, source, self._group, tag=self._number(some, some.stop, 0))
            for *_, delivery in arriving:
                delivery.wait()
            told.wait()
            for (flat, place, _), digest in zip(arriving, digests.tolist(), strict=True):
                if flat is not place:
                    place.copy_(flat)
                yield flat, digest

    def _find_slices(self, some: range, needs: list[Need]) -> Iterator[tuple[int, Slice]]:
        for at in some:
            for slice_ in find_slices(self._leaves[at], len(self._holders), needs[at]):
                yield at, slice_

    def _number(self, some: range, at: int, index: int) -> int:
        """A number that tells the messages between two ranks apart."""
        return (at - some.start) * len(self._holders) + index

    def _cut(self, at: int, slice_: Slice) -> torch.Tensor:
        return _narrow(self._tensors[slice_.index][at], slice_.ranges)


def trust(holders: Sequence[Sequence[int]], digests: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of the holders of each part those that have what most have: a flipped bit in the memory of one does not spread.

    `digests` has, by rank, those of the parts that it has, in the order of the parts. Pure.
    """
    told = [iter(mine) for mine in digests]
    trusted = []
    for having in holders:
        found = [next(told[rank]) for rank in having]
        common = Counter(found).most_common(1)[0][0]
        trusted.append([rank for rank, one in zip(having, found, strict=True) if one == common])
    return trusted


def _make(leaf: Leaf, need: Need) -> torch.Tensor:
    shape = [need.stop - need.start if dim == need.dim else length for dim, length in enumerate(leaf.shape)]
    return torch.empty(shape, dtype=leaf.dtype)


def _narrow(tensor: torch.Tensor, ranges: Mapping[int, tuple[int, int]]) -> torch.Tensor:
    for dim, (start, length) in ranges.items():
        tensor = tensor.narrow(dim, start, length)
    return tensor
