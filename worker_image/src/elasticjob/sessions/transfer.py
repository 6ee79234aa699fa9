"""Sends one rank's state to all ranks of a world, but only the chunks that some rank lacks.

State that a rank already has, for example frozen or pretrained weights that every script loads, is recognised by its
digest and not sent. A joiner receives into its own tensors, without a second copy of the model.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import messages, plaindata, skeletons


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


@dataclass
class Exchange:
    """One exchange of state in a world: the source and the groups to use."""

    rank: int
    source: int
    flags: Any  # the process group for CPU tensors
    device: torch.device  # for tensors without a device of their own
    keep: bool  # do not overwrite this rank's state before all of the new one has arrived

    def run(self, mine: Inventory) -> dict[str, Any] | None:
        """The source's state, on every rank but the source (None there). Sends only what some rank lacks."""
        rows = [(name, section.text, section.digests) for name, section in mine.items()]
        rows = messages.broadcast_json(rows, self.source, self.flags)
        theirs = {name: Section(plaindata.decode(text), text, [], digests) for name, text, digests in rows}
        lacks = [want for name, section in theirs.items() for want in find_lacks(mine.get(name), section)]
        wanted = torch.tensor(lacks, dtype=torch.uint8)
        if lacks:
            dist.all_reduce(wanted, op=dist.ReduceOp.MAX, group=self.flags)
        flags = iter(zip(wanted.tolist(), lacks, strict=True))
        received = {}
        for name, section in theirs.items():
            tensors = self._prepare(mine.get(name), section)
            for chunk in section.chunks:
                is_sent, is_lacked = next(flags)
                if is_sent:
                    self._send(chunk, tensors, is_lacked)
            received[name] = skeletons.join(section.skeleton, tensors)
        return None if self.rank == self.source else received

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
                    tensors.append(torch.empty(slot.shape, dtype=slot.dtype, device=self._place(slot)))
        return tensors

    def _place(self, slot: skeletons.Slot) -> torch.device:
        return torch.device("cpu") if slot.device == "cpu" else self.device

    def _send(self, chunk: list[skeletons.Slot], tensors: list[torch.Tensor], is_lacked: bool) -> None:
        flat = _wrap(chunk, tensors)
        dist.broadcast(flat, src=self.source, group=self.flags if flat.device.type == "cpu" else None)
        if is_lacked and self.rank != self.source:
            _unwrap(flat, chunk, tensors)


def find_lacks(mine: Section | None, theirs: Section) -> list[bool]:
    """For each chunk of `theirs`, whether this rank needs it. Pure."""
    if mine is None or not _has_slots(mine, theirs):
        return [True] * len(theirs.digests)
    return [ours != other for ours, other in zip(mine.digests, theirs.digests, strict=True)]


def _has_slots(mine: Section, theirs: Section) -> bool:
    return list(skeletons.find_slots(mine.skeleton)) == list(skeletons.find_slots(theirs.skeleton))


def _wrap(chunk: list[skeletons.Slot], tensors: list[torch.Tensor]) -> torch.Tensor:
    """The bytes of a chunk: a contiguous tensor's own memory, otherwise a copy."""
    if len(chunk) == 1:
        return _bytes(tensors[chunk[0].index])
    return torch.cat([_bytes(tensors[slot.index]) for slot in chunk])


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


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
