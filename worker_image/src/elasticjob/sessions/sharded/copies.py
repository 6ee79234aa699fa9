"""Copies of a sharded model's shards in the memory of other pods, so that the loss of a pod loses no shard.

After a step each rank copies its shards to host memory, and a thread sends them to the same rank of another pod while
training goes on. All ranks begin at the same steps, and none begins the next copy before the last one is complete on
all of them: until then each keeps the one before, so that there is always a step of which every shard exists twice.
What a world began with is copied first, and what the ranks had kept of it stays until that copy is complete.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import deliveries, messages, skeletons
from elasticjob.context import buddies
from elasticjob.context.buddies import Buddies
from elasticjob.sessions.sharded.parts import Parcel, prepare
from elasticjob.torchcompat import threads, waits

logger = logging.getLogger("elasticjob")

_PIECE_BYTES = 64 << 20


class Exchange(threads.Thread):
    """One copy on its way: this rank's shards to one rank, those of another rank to this one."""

    def __init__(self, step: int, mine: Parcel, old: torch.Tensor | None, ranks: Buddies, group: Any) -> None:
        """`old`: memory to receive into."""
        super().__init__(name=f"elasticjob-copy-{step}")
        self.step, self.mine, self.received = step, mine, Parcel("", torch.empty(0, dtype=torch.uint8))
        self.source = ranks.source
        self.is_complete = False
        self._old, self._buddy, self._group = old, ranks.keeper, group
        self.start()

    def run(self) -> None:
        try:
            with waits.in_group(self._group):
                self._exchange()
        except RuntimeError as error:  # the world is breaking: the script learns that from its own collectives
            logger.debug("Step %d: no copy of the shards: %s", self.step, error)

    def _exchange(self) -> None:
        self.mine.wait()
        plain, data = messages.to_tensor(self.mine.text), self.mine.data
        sizes = torch.tensor([plain.numel(), data.numel(), skeletons.signed_digest(data)])
        text_size, size, digest = self._swap(sizes, torch.zeros(3, dtype=torch.int64)).tolist()
        text = self._swap(plain, torch.empty(text_size, dtype=torch.uint8))
        received = self._swap(data, prepare(size, self._old))
        if skeletons.signed_digest(received) != digest:
            logger.warning("Step %d: rank %d's shards arrived damaged and are not used.", self.step, self.source)
            return
        self.received = Parcel(messages.to_text(text), received)
        self.is_complete = True

    def _swap(self, mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """Send one tensor and receive the other, in pieces that both have room for."""
        for start in range(0, max(mine.numel(), theirs.numel()), _PIECE_BYTES):
            sent, arriving = (one[start : start + _PIECE_BYTES] for one in (mine, theirs))
            under_way = [deliveries.send(sent, self._buddy, self._group)] if sent.numel() else []
            under_way += [deliveries.receive(arriving, self.source, self._group)] if arriving.numel() else []
            for one in under_way:
                one.wait()
        return theirs


class ShardCopies:
    """The copies of one session: `every` so many steps. All ranks call each method at the same steps, but `take`."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._rank = 0
        self._buddies: Buddies | None = None  # None: no copies
        self._group: Any = None
        self._flags: Any = None
        self._present: Exchange | None = None
        self._last: Exchange | None = None  # the last one that is complete on all ranks
        self._spare: Exchange | None = None  # its memory is used again
        self._asked: tuple[Any, torch.Tensor] | None = None  # how the present one is on all ranks

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps whose shards are in memory."""
        return tuple(one.step for one in (self._last, self._present) if one is not None)

    @property
    def is_complete(self) -> bool:
        """Whether there is a step of which every shard of this world exists twice."""
        return self._last is not None

    def connect(self, is_wanted: bool) -> None:
        """Create the process groups of a world. `is_wanted`: each rank has shards that no other rank has."""
        self.leave()
        if not is_wanted or dist.get_world_size() == 1:
            return
        per_pod = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._group = dist.new_group(backend="gloo")  # gradients do not wait behind a copy
        self._rank, self._buddies = dist.get_rank(), buddies.choose(per_pod, self._group)

    def enter(self, flags: Any) -> bool:
        """Train in this world. `flags` is the group for small messages. Whether there will be copies."""
        self._flags = flags
        return self._buddies is not None

    def after_step(self, step: int, read: Callable[[], Any]) -> None:
        """This step is applied: begin a copy of the state that `read` returns, or ask whether the last one is there."""
        if self._buddies is None or self._flags is None:
            return
        if self._asked is not None:
            self._hear()
        if self._present is not None:
            self._ask(self._present)
        elif self._last is None or step % self._every == 0:
            self._begin(step, read)

    def flush(self, step: int, read: Callable[[], Any]) -> None:
        """Wait until the copy of this step is complete on all ranks, unless it arrives damaged."""
        for _ in range(2):  # the present one, and that of this step
            if self._buddies is None or self._flags is None or step in (one.step for one in (self._last,) if one):
                return
            if self._present is None:
                self._begin(step, read)
            while self._present is not None:
                if self._asked is None:
                    self._present.join()
                    self._ask(self._present)
                self._hear()

    def finish(self) -> None:
        """The world ends in order: let what is on its way arrive."""
        if self._present is not None:
            self._present.join()

    def leave(self) -> None:
        """Forget the groups of a world and all copies."""
        self._buddies = self._group = self._flags = self._present = self._last = self._spare = self._asked = None

    def take(self) -> dict[int, dict[int, Any]]:
        """The world is lost: the parts of the model that are here, by step and by index of the shard."""
        held: dict[int, dict[int, Any]] = {}
        for one in (self._last, self._present):
            if one is not None:
                held[one.step] = {self._rank: one.mine.unpack()}
                if one.is_complete:
                    held[one.step][one.source] = one.received.unpack()
        self.leave()
        return held

    def _begin(self, step: int, read: Callable[[], Any]) -> None:
        assert self._buddies is not None
        spare, self._spare = self._spare, None
        mine, theirs = (None, None) if spare is None else (spare.mine.data, spare.received.data)
        try:
            parcel = Parcel.pack(read(), mine)
        except ValueError as error:  # the same one on all ranks
            logger.warning("%s: this model has no copies of its shards.", error)
            self._buddies = None
            return
        self._present = Exchange(step, parcel, theirs, self._buddies, self._group)

    def _ask(self, present: Exchange) -> None:
        is_over = not present.is_alive()
        answer = torch.tensor([float(not is_over), float(is_over and not present.is_complete)])
        self._asked = (dist.all_reduce(answer, group=self._flags, async_op=True), answer)

    def _hear(self) -> None:
        assert self._asked is not None
        (work, answer), self._asked = self._asked, None
        work.wait()
        pending, failed = answer.tolist()
        if pending:  # some rank still sends from this memory, also if another one has failed
            return
        if failed:
            self._spare, self._present = self._present, None
        else:
            self._spare, self._last, self._present = self._last, self._present, None
