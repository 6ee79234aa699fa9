"""Who holds copies, and what is restored. Pure: the same choice on every pod that knows the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticjob.peers.records import Record, Report


@dataclass(frozen=True)
class Peer:
    """The agent of one pod of a world."""

    rank: int
    address: str
    port: int
    node: str = ""


@dataclass(frozen=True)
class Holding:
    """A record that a pod knows, and which of its files that pod has whole: one bit each, in the order of paths."""

    name: str
    order: tuple[int, int]
    files: int
    have: int

    def dump(self) -> list[Any]:
        return [self.name, *self.order, self.files, f"{self.have:x}"]


def parse_holding(said: Any) -> Holding:
    """What another agent has dumped. Raises ValueError or TypeError."""
    name, generation, number, files, have = said
    return Holding(str(name), (int(generation), int(number)), int(files), int(have, 16))


def order_holders(me: int, peers: Sequence[Peer]) -> list[Peer]:
    """The other pods in the order in which they should hold my copies: first one of each other node.

    Each rank begins with its next one, so that copies spread evenly.
    """
    others = [peers[(me + i) % len(peers)] for i in range(1, len(peers))]
    nodes = {peers[me].node}
    first: list[Peer] = []
    for peer in others:
        if peer.node not in nodes:
            nodes.add(peer.node)
            first.append(peer)
    chosen = {peer.rank for peer in first}
    rest = [peer for peer in others if peer.rank not in chosen]
    return first + sorted(rest, key=lambda peer: peer.node == peers[me].node)


def choose_record(holdings: Mapping[int, Sequence[Holding]], failed: frozenset[str] = frozenset()) -> Holding | None:
    """The newest record of which each file is whole in some pod; None if there is none.

    `holdings` by rank; `failed`: records that turned out not to be whole, because a copy is damaged.
    """
    together: dict[str, Holding] = {}
    for held in (one for rank in holdings for one in holdings[rank] if one.name not in failed):
        before = together.get(held.name)
        have = held.have | (before.have if before is not None else 0)
        together[held.name] = Holding(held.name, held.order, held.files, have)
    whole = [one for one in together.values() if one.files and one.have == (1 << one.files) - 1]
    return max(whole, key=lambda one: (one.order, one.name), default=None)


def choose_saved(
    saved: Sequence[Record], chosen: Holding | None, failed: frozenset[str] = frozenset()
) -> Record | None:
    """The first record that the last tier has, if it is newer than what the pods have whole. `saved`: newest first."""
    newest = next((one for one in saved if one.name not in failed), None)
    return newest if newest is not None and (chosen is None or newest.order > chosen.order) else None


def add_fresh(
    holdings: Mapping[int, Sequence[Holding]], before: Record | None, fresh: Record, reports: Mapping[int, Report]
) -> dict[int, list[Holding]]:
    """The holdings with a record that was just made of these reports, and follows `before`."""
    old = {} if before is None else {path: index for index, path in enumerate(sorted(before.files))}
    new = {path: index for index, path in enumerate(sorted(fresh.files))}
    kept = [(old[path], index) for path, index in new.items() if before and before.files.get(path) == fresh.files[path]]
    still: dict[int, int] = {}  # most pods have the same files, of the many that a large job may have
    found = {}
    for rank, held in holdings.items():
        mine = next((one.have for one in held if before is not None and one.name == before.name), 0)
        if mine not in still:
            still[mine] = sum(1 << index for was, index in kept if mine >> was & 1)
        have = still[mine]
        for path, file in reports[rank].files.items():
            if fresh.files.get(path) == file:
                have |= 1 << new[path]
        found[rank] = [*held, Holding(fresh.name, fresh.order, len(fresh.files), have)]
    return found


def are_all_there(worlds: Collection[tuple[int, int]]) -> bool:
    """Whether all pods of the last world are in the next one. `worlds`: generation and size of the last of each pod."""
    last = max(worlds, default=(0, 0))
    return sum(world == last for world in worlds) >= last[1]


def find_masks(name: str, holdings: Mapping[int, Sequence[Holding]]) -> list[tuple[int, int]]:
    """The ranks that have files of this record, in order, with those files."""
    return [(rank, held.have) for rank in sorted(holdings) for held in holdings[rank] if held.name == name]


def find_holders(index: int, masks: Sequence[tuple[int, int]], me: int) -> list[int]:
    """The ranks that have file `index` of a record. Each rank begins elsewhere, so that the load is spread."""
    ranks = [rank for rank, have in masks if rank != me and have >> index & 1]
    start = me % len(ranks) if ranks else 0
    return ranks[start:] + ranks[:start]
