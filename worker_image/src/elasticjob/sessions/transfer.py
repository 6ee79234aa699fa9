"""Gives one rank's state to all ranks of a world: each rank gets the chunks that it lacks.

State that a rank already has, for example frozen or pretrained weights that every script loads, is recognised by its
digest and not sent. All ranks that have a chunk share the work of sending, and so do those that have got it: what one
rank sends is about what one rank lacks, however many there are. A joiner receives into its own tensors, without a
second copy of the model; nobody else receives into memory that is in use. What has arrived is compared with the
source's digests before any rank goes on.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.channel import progress
from elasticjob.collectives import deliveries, messages, plaindata, skeletons
from elasticjob.context import buddies
from elasticjob.errors import WorldLostError
from elasticjob.torchcompat import failures

logger = logging.getLogger("elasticjob")

_CPU = torch.device("cpu")
_PIECE_BYTES = 64 << 20  # of a broadcast
_WITHIN_A_NODE = 0.1  # what a byte costs there, if one to another node costs 1


@dataclass
class Section:
    """A named part of a rank's state: its plain data, decoded and encoded, its tensors, and a digest of each chunk."""

    skeleton: Any
    text: str
    tensors: list[torch.Tensor]
    digests: list[int]

    @property
    def chunks(self) -> list[list[skeletons.Slot]]:
        return skeletons.pack(list(skeletons.find_slots(self.skeleton)))


Inventory = dict[str, Section]


def take_inventory(value: dict[str, Any]) -> Inventory:
    """Split each named part of a state into chunks, and compute the digests for the comparison.

    Raises ConfigurationError if the state holds an object that is not plain data and so cannot be sent.
    """
    inventory = {}
    for name, part in value.items():
        tensors: list[torch.Tensor] = []
        skeleton = skeletons.split(part, tensors)
        section = Section(skeleton, plaindata.encode(skeleton, name), tensors, [])
        section.digests = [skeletons.digest(_wrap(chunk, tensors)) for chunk in section.chunks]
        inventory[name] = section
    return inventory


def digest_inventory(inventory: Inventory) -> int:
    """One digest of the whole inventory, including the plain data."""
    plain = [zlib.crc32(section.text.encode()) for section in inventory.values()]
    return skeletons.combine(plain + [one for section in inventory.values() for one in section.digests])


def confirm(is_right: bool, size: int, group: Any) -> None:
    """Go on only if every rank has what the source has. All ranks call it. Raises WorldLostError.

    `size`: the bytes that have come to this rank. On a device nothing raises if a member is lost: after an abort
    anything can be in the memory. A digest waits for the device, and tells.
    """
    rows = messages.all_gather_integers([not is_right, size], group)
    wrong = [rank for rank, (is_wrong, _) in enumerate(rows) if is_wrong]
    if wrong:
        raise WorldLostError(f"the state has not arrived as it was sent, at rank {', '.join(map(str, wrong))}")
    progress.transfer.most_bytes += max(came for _, came in rows)


@dataclass
class Exchange:
    """One exchange of state in a world: the source and the groups to use."""

    rank: int
    source: int
    flags: Any  # the process group for CPU tensors
    device: torch.device  # for tensors without a device of their own
    keep: bool  # do not overwrite this rank's state before all of the new one has arrived
    is_aside: bool = False  # the device has no room for both: what arrives is in host memory
    _moved: set[int] = field(default_factory=set)  # the ids of those tensors that are on a device at the source

    def run(self, mine: Inventory) -> dict[str, Any] | None:
        """The source's state, on every rank but the source (None there). Sends only what some rank lacks.

        Raises WorldLostError on all ranks if one has not got it as it was sent.
        """
        told = [(name, section.text, section.digests) for name, section in mine.items()]
        told = messages.broadcast_json(told, self.source, self.flags)
        theirs = {name: Section(plaindata.decode(text), text, [], digests) for name, text, digests in told}
        parcels: list[_Parcel] = []
        lacks: list[int] = []
        digests: list[int] = []
        received = {}
        prepared = self._prepare_all(mine, theirs)
        for name, section in theirs.items():
            tensors = prepared[name]
            parcels += [_Parcel(chunk, tensors) for chunk in section.chunks]
            lacks += find_lacks(mine.get(name), section)
            digests += section.digests
            received[name] = (section.skeleton, tensors)
        if parcels:
            table = messages.all_gather_integers([buddies.number_own_node(self.rank), *lacks], self.flags)
            nodes, rows = [row[0] for row in table], [row[1:] for row in table]
            self._send(parcels, rows, nodes)
            arrived = [*itertools.compress(zip(parcels, digests, strict=True), rows[self.rank])]
            is_right = all(skeletons.digest(parcel.wrap()) == digest for parcel, digest in arrived)
            confirm(is_right, sum(parcel.size for parcel, _ in arrived), self.flags)
        if self.rank == self.source:
            return None
        return {name: skeletons.join(skeleton, tensors) for name, (skeleton, tensors) in received.items()}

    def _prepare_all(self, mine: Inventory, theirs: Inventory) -> dict[str, list[torch.Tensor]]:
        def prepare() -> dict[str, list[torch.Tensor]]:
            return {name: self._prepare(mine.get(name), section) for name, section in theirs.items()}

        try:
            return prepare()
        except RuntimeError as error:
            if not self.keep or not failures.is_out_of_memory(error):
                raise
        self.is_aside = True
        text = "Rank %d: %s has no room for the state of rank %d beside its own, and receives it in host memory."
        logger.warning(text, self.rank, self.device, self.source)
        return prepare()

    def _prepare(self, mine: Section | None, section: Section) -> list[torch.Tensor]:
        """The receive buffers of a section; tensors with a matching layout are reused."""
        if mine is not None and _has_slots(mine, section) and (self.rank == self.source or not self.keep):
            return list(mine.tensors)
        lacked = find_lacks(mine, section)
        tensors: list[torch.Tensor] = []
        for chunk, is_lacked in zip(section.chunks, lacked, strict=True):
            for slot in chunk:
                if mine is not None and not is_lacked:
                    tensors.append(mine.tensors[slot.index])
                else:
                    tensors.append(_make_room(slot, _CPU if self.is_aside else self._place(slot)))
                    if self.is_aside and slot.device != "cpu":
                        self._moved.add(id(tensors[-1]))
        return tensors

    def bring(self, value: Any) -> Any:
        """A part of what was received, on the device where the source has it there."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device) if id(value) in self._moved else value
        if isinstance(value, dict):
            return {key: self.bring(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)([self.bring(one) for one in value])
        return value

    def _place(self, slot: skeletons.Slot) -> torch.device:
        return _CPU if slot.device == "cpu" else self.device

    def _send(self, parcels: Sequence[_Parcel], lacks: Sequence[Sequence[int]], nodes: Sequence[int]) -> None:
        """Send all parcels that some rank lacks. `lacks` is by rank, and 0 or 1 for each parcel; `nodes` is by rank."""
        on_cpu = [parcel.chunk[0].device == "cpu" for parcel in parcels]
        sizes = [parcel.size if cpu else 0 for parcel, cpu in zip(parcels, on_cpu, strict=True)]
        self._relay(parcels, plan_routes(sizes, lacks, nodes))
        for index, parcel in enumerate(parcels):
            if not on_cpu[index] and parcel.size and any(row[index] for row in lacks):
                self._broadcast(parcel, is_lacked=bool(lacks[self.rank][index]))

    def _broadcast(self, parcel: _Parcel, is_lacked: bool) -> None:
        """NCCL's broadcast is a ring: every rank sends each byte once at most. All ranks of the world call it.

        One that lacks nothing lets the bytes pass through memory of their own: after an abort anything is in there.
        """
        flat = parcel.wrap() if is_lacked or self.rank == self.source else None
        if flat is not None and (self.rank == self.source or not self.is_aside):
            for piece in torch.split(flat, _PIECE_BYTES):
                dist.broadcast(piece, src=self.source)
        else:
            device = self._place(parcel.chunk[0])
            passing = torch.empty(min(parcel.size, _PIECE_BYTES), dtype=torch.uint8, device=device)
            for start in range(0, parcel.size, _PIECE_BYTES):
                piece = passing[: parcel.size - start]
                dist.broadcast(piece, src=self.source)
                if flat is not None:
                    flat[start : start + piece.numel()].copy_(piece)
        if is_lacked and flat is not None:
            parcel.unwrap(flat)

    def _relay(self, parcels: Sequence[_Parcel], routes: Sequence[Route | None]) -> None:
        """Send and receive along these routes. Everything is under way at once; the indices tell messages apart."""
        coming: dict[int, tuple[torch.Tensor, deliveries.Delivery]] = {}
        sent: list[deliveries.Delivery] = []  # whose memory is needed until all have arrived
        for index, route in enumerate(routes):
            if route is None:
                continue
            if self.rank == route.first or self.rank in route.others:
                flat = parcels[index].wrap()
                source = route.holder if self.rank == route.first else route.first
                coming[index] = (flat, deliveries.receive(flat, source, self.flags, tag=index))
            elif self.rank == route.holder:
                sent.append(deliveries.send(parcels[index].wrap(), route.first, self.flags, tag=index))
        for index, (flat, delivery) in coming.items():
            delivery.wait()
            route = routes[index]
            if route is not None and self.rank == route.first:
                sent += [deliveries.send(flat, rank, self.flags, tag=index) for rank in route.others]
            parcels[index].unwrap(flat)
        if any(routes):
            # Everything has arrived then. gloo does not end the wait for a send to a rank that is lost meanwhile.
            dist.barrier(group=self.flags)


@dataclass(frozen=True)
class _Parcel:
    """A chunk, and the tensors that it is of."""

    chunk: list[skeletons.Slot]
    tensors: list[torch.Tensor]

    @property
    def size(self) -> int:
        return sum(slot.size for slot in self.chunk)

    def wrap(self) -> torch.Tensor:
        return _wrap(self.chunk, self.tensors)

    def unwrap(self, flat: torch.Tensor) -> None:
        _unwrap(flat, self.chunk, self.tensors)


@dataclass(frozen=True)
class Route:
    """The way of one chunk: from a rank that has it to one that lacks it, and from there to the others."""

    holder: int
    first: int
    others: tuple[int, ...]


def plan_routes(sizes: Sequence[int], lacks: Sequence[Sequence[int]], nodes: Sequence[int]) -> list[Route | None]:
    """A route for each chunk that some rank lacks, such that no rank sends much more than another. Pure.

    `sizes` are in bytes; 0 needs no route. `lacks` is by rank, and 0 or 1 for each chunk. At least one rank has each
    chunk. `nodes` has a number for the node of each rank: a holder on the same node is preferred, until it has to send
    ten times as much as others. The largest chunks are planned first.
    """

    def cost(source: int, target: int) -> float:
        return sizes[index] * (_WITHIN_A_NODE if nodes[source] == nodes[target] else 1.0)

    load = [0.0] * len(lacks)
    routes: list[Route | None] = [None] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        lackers = [rank for rank, row in enumerate(lacks) if row[index]]
        if not lackers or not sizes[index]:
            continue
        first = min(lackers, key=lambda rank: (load[rank], rank))
        others = tuple(rank for rank in lackers if rank != first)
        holders = [rank for rank, row in enumerate(lacks) if not row[index]]
        holder = min(holders, key=lambda rank: (load[rank] + cost(rank, first), rank))
        load[holder] += cost(holder, first)
        load[first] += sum(cost(first, other) for other in others)
        routes[index] = Route(holder, first, others)
    return routes


def find_lacks(mine: Section | None, theirs: Section) -> list[bool]:
    """For each chunk of `theirs`, whether this rank needs it. Pure."""
    if mine is None or not _has_slots(mine, theirs):
        return [True] * len(theirs.digests)
    return [ours != other for ours, other in zip(mine.digests, theirs.digests, strict=True)]


def _has_slots(mine: Section, theirs: Section) -> bool:
    return list(skeletons.find_slots(mine.skeleton)) == list(skeletons.find_slots(theirs.skeleton))


def _make_room(slot: skeletons.Slot, device: torch.device) -> torch.Tensor:
    return torch.empty(slot.shape, dtype=slot.dtype, device=device)


def _wrap(chunk: list[skeletons.Slot], tensors: list[torch.Tensor]) -> torch.Tensor:
    """The bytes of a chunk: a contiguous tensor's own memory, otherwise a copy."""
    if len(chunk) == 1:
        return skeletons.as_bytes(tensors[chunk[0].index])
    return torch.cat([skeletons.as_bytes(tensors[slot.index]) for slot in chunk])


def _unwrap(flat: torch.Tensor, chunk: list[skeletons.Slot], tensors: list[torch.Tensor]) -> None:
    """Write a chunk's bytes to its tensors, unless they are already there."""
    start = 0
    for slot in chunk:
        tensor = tensors[slot.index]
        piece = flat[start : start + slot.size]
        start += slot.size
        if slot.size and piece.data_ptr() != tensor.data_ptr():
            if piece.storage_offset() % slot.dtype.itemsize:
                piece = piece.clone()
            tensor.copy_(piece.view(slot.dtype).view(slot.shape))
