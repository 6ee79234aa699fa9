"""Which micro batches a rank processes. Pure.

A *micro batch* is one forward and backward pass. With *virtual ranks*, a global batch is divided over `V` of them, and
each virtual rank's share into equal parts: the leaves of the tree in which gradients are added. A world of `n` ranks
only decides who computes which leaves: rank `r` has the virtual ranks of part `r` of `V`, in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Micro(NamedTuple):
    """One forward and backward pass of this rank: a part of the epoch's order, and its weight."""

    start: int
    stop: int
    scale: float  # multiply the *mean* loss of the micro batch by it
    ends_step: bool  # the optimizer steps after this one
    batch: int = 0  # samples of the global batch it belongs to
    virtual: int = -1  # the virtual rank; -1: none
    part: int = 0  # of the `parts` of a virtual rank's share
    parts: int = 1
    turn: int = 0  # the number of passes before it in this step
    stream: tuple[int, ...] = ()  # the key of its random numbers

    @property
    def samples(self) -> int:
        """The number of samples that count; excludes the filler of an empty share."""
        return self.stop - self.start

    def sync(self, model: Any) -> contextlib.AbstractContextManager[Any]:
        """DDP's `no_sync()` for every micro batch but the last of a step; a null context for other models, and for a
        static graph, which has to be seen with its reductions.
        """
        if self.ends_step or getattr(model, "static_graph", False):
            return contextlib.nullcontext()
        if hasattr(model, "no_sync"):
            context: contextlib.AbstractContextManager[Any] = model.no_sync()
            return context
        return contextlib.nullcontext()


def split_share(count: int, parts: int, index: int) -> tuple[int, int]:
    """The start and stop of part `index` when `count` items are split as evenly as possible."""
    least, more = divmod(count, parts)
    start = index * least + min(index, more)
    return start, start + least + (index < more)


@dataclass(frozen=True)
class Place:
    """A rank of a world that carries virtual ranks."""

    virtual_ranks: int
    rank: int
    world_size: int

    def carried(self, rank: int) -> tuple[int, int]:
        """The virtual ranks of a rank, as (start, stop)."""
        return split_share(self.virtual_ranks, self.world_size, rank)

    def spans(self, parts: int) -> list[tuple[int, int]]:
        """The leaves of every rank, as (start, stop)."""
        each = [self.carried(rank) for rank in range(self.world_size)]
        return [(start * parts, stop * parts) for start, stop in each]


def plan_epoch(
    place: Place, key: tuple[int, int], length: int, used: int, global_batch: int, micro_batch: int, drop_last: bool
) -> Iterator[Micro]:
    """The micro batches of one rank for the rest of an epoch, equally many on every rank.

    `key` (the seed and the epoch) is what their random numbers depend on, besides their position. Sizes are in samples.
    A pass without a virtual rank, or without a sample, is a filler: it only keeps the ranks' collectives together.
    """
    first, last = place.carried(place.rank)
    turns = -(-place.virtual_ranks // place.world_size)
    while used < length:
        batch = min(global_batch, length - used)
        if batch < global_batch and drop_last:
            return
        largest = -(-batch // place.virtual_ranks)
        parts = -(-largest // micro_batch)
        for turn in range(turns * parts):
            virtual, part = first + turn // parts, turn % parts
            start = stop = 0
            if virtual < last:
                start, stop = find_samples(batch, place.virtual_ranks, virtual, part, parts)
            yield Micro(
                start=used + start,
                stop=used + stop,
                scale=(stop - start) / batch,  # the sum over all leaves is the mean over the global batch
                ends_step=turn == turns * parts - 1,
                batch=batch,
                virtual=virtual if virtual < last else -1,
                part=part,
                parts=parts,
                turn=turn,
                stream=(*key, used, virtual, part),
            )
        used += batch


def find_samples(batch: int, virtual_ranks: int, virtual: int, part: int, parts: int) -> tuple[int, int]:
    """The samples of one leaf within a global batch, as (start, stop)."""
    start, stop = split_share(batch, virtual_ranks, virtual)
    low, high = split_share(stop - start, parts, part)
    return start + low, start + high


def find_leaf_sizes(batch: int, virtual_ranks: int, parts: int) -> list[int]:
    """The samples of each leaf that has any."""
    spans = (
        find_samples(batch, virtual_ranks, leaf // parts, leaf % parts, parts) for leaf in range(virtual_ranks * parts)
    )
    return [stop - start for start, stop in spans if stop > start]
