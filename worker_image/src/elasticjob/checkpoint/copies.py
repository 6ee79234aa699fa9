"""Copies of the parts of a sharded model in the memory of another pod: each rank sends its own, and receives one.

They travel over a process group of their own, in the thread that writes the snapshot, while training goes on. All ranks
exchange at the same steps. A copy counts when it has arrived completely and its checksum is right.
"""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from elasticjob.checkpoint.shelf import Shelf, Slot, SnapshotError
from elasticjob.checkpoint.snapshots import Held
from elasticjob.collectives import deliveries, messages, skeletons
from elasticjob.collectives.deliveries import Delivery
from elasticjob.context import buddies

_log = logging.getLogger("elasticjob.checkpoint.copies")
_NOTHING = -1


class Copies:
    """The exchange of one Checkpointer. All ranks create it, and call `exchange` at the same steps."""

    def __init__(self, shelf: Shelf | None, per_pod: int, world: str) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self._shelf, self._world, self._size = shelf, world, size
        self._group = dist.new_group(backend="gloo")
        chosen = buddies.choose(per_pod, self._group)
        self.is_on = chosen is not None
        self._buddy, self._source = (rank, rank) if chosen is None else (chosen.keeper, chosen.source)
        self._is_broken = False
        self._is_told = False

    def exchange(self, held: Held | None, text: str, data: torch.Tensor) -> None:
        """Send this rank's part, and keep the one that arrives. `held` is None if this rank has none to send."""
        if not self.is_on or self._is_broken:
            return
        try:
            self._exchange(held, text, data)
        except RuntimeError as error:  # the world is breaking: the script learns that from its own collectives
            _log.debug("no copy: %s", error)
            self._is_broken = True

    def _exchange(self, held: Held | None, text: str, data: torch.Tensor) -> None:
        plain = messages.to_tensor(text)
        sizes = [_NOTHING] * 4
        if held is not None:
            sizes = [held.step, plain.numel(), data.numel(), skeletons.signed_digest(data)]
        step, text_size, size, digest = self._swap(torch.tensor(sizes), torch.zeros(4, dtype=torch.int64)).tolist()
        slot = None if step == _NOTHING else self._reserve(size)
        # The answer goes the other way: to the rank whose part it is.
        ready = torch.zeros(1, dtype=torch.int64)
        answer = torch.tensor([int(slot is not None)])
        _wait([self._send(answer, self._source), self._receive(ready, self._buddy)])
        under_way, received = [], torch.empty(max(text_size, 0), dtype=torch.uint8)
        if ready.item() and held is not None:
            under_way += [self._send(one, self._buddy, tag) for tag, one in enumerate((plain, data)) if one.numel()]
        if slot is not None:
            arriving = enumerate((received, slot.data))
            under_way += [self._receive(one, self._source, tag) for tag, one in arriving if one.numel()]
        _wait(under_way)
        if slot is None:
            return
        if skeletons.signed_digest(slot.data) != digest:
            _log.warning("Step %d: the copy of rank %d's part arrived damaged and is not used.", step, self._source)
            return
        slot.commit(Held(self._world, step, self._source, self._size), messages.to_text(received))

    def _reserve(self, size: int) -> Slot | None:
        try:
            return None if self._shelf is None else self._shelf.begin(self._source, size)
        except SnapshotError as error:
            if not self._is_told:
                _log.warning("No copy of rank %d's part in this pod: %s.", self._source, error)
            self._is_told = True
            return None

    def _swap(self, mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        _wait([self._send(mine, self._buddy), self._receive(theirs, self._source)])
        return theirs

    def _send(self, tensor: torch.Tensor, rank: int, tag: int = 0) -> Delivery:
        return deliveries.send(tensor, rank, self._group, tag)

    def _receive(self, tensor: torch.Tensor, rank: int, tag: int = 0) -> Delivery:
        return deliveries.receive(tensor, rank, self._group, tag)


def _wait(under_way: list[Delivery]) -> None:
    for one in under_way:
        one.wait()
