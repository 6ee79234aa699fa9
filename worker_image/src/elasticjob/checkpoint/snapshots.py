"""Which snapshot in memory a world restores. Pure.

A snapshot is the state of one step, in the shared memory of the pods. With plain data parallelism each rank has the
whole state, and one snapshot restores all. A sharded model has one part for each rank, and needs all of them, from one
step of one world: a step that was repeated after a restart is another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

WHOLE = -1


@dataclass(frozen=True)
class Held:
    """A complete snapshot, or part of one, in the memory of a pod."""

    world: str  # unique for each start of the script
    step: int
    part: int  # the rank that it belongs to; WHOLE if every rank can use it
    parts: int  # ranks of its world


@dataclass(frozen=True)
class Choice:
    """A snapshot that this world can restore."""

    world: str
    step: int
    is_whole: bool
    sources: tuple[int, ...]  # for each rank: the rank that reads its part

    def part_of(self, rank: int) -> int:
        return WHOLE if self.is_whole else rank


def find_choices(inventories: Sequence[Collection[Held]]) -> list[Choice]:
    """All snapshots that are complete in the memory of these ranks' pods, the newest first."""
    holders: dict[tuple[int, str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, inventory in enumerate(inventories):
        for held in inventory:
            holders[held.step, held.world, held.parts][held.part].append(rank)
    choices = []
    for (step, world, parts), found in sorted(holders.items(), reverse=True):
        size = len(inventories)
        is_whole = WHOLE in found
        if not is_whole and (parts != size or any(rank not in found for rank in range(size))):
            continue
        owners = [found[WHOLE if is_whole else rank] for rank in range(size)]
        sources = tuple(rank if rank in own else own[rank % len(own)] for rank, own in enumerate(owners))
        choices.append(Choice(world, step, is_whole, sources))
    return choices
