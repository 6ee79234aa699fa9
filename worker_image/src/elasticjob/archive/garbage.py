"""What is kept in the archive of a job, and what may be deleted. Pure.

Deleting is the only thing that can do harm, so it takes two looks. The agent that leads writes down first what it will
delete; it deletes that after its next save, if no agent of a newer world has come to lead until then. One that comes
says so first, and then reads what others were about to delete: it never builds on that. So either the old one sees the
new one and deletes nothing, or the new one sees what the old one deletes and sends it again under a name of its own.

`elasticjob archive prune` does both in one call: it writes down, looks again, and deletes what may go by both looks. So
of two at once, one knows what the other is about to delete, and counts no save that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from elasticjob.archive import layout
from elasticjob.archive.layout import Save


@dataclass(frozen=True)
class Doomed:
    """Names of manifests and objects that are to be deleted."""

    saves: frozenset[str] = frozenset()
    objects: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.saves or self.objects)

    def __or__(self, other: Doomed) -> Doomed:
        return Doomed(self.saves | other.saves, self.objects | other.objects)

    def __and__(self, other: Doomed) -> Doomed:
        return Doomed(self.saves & other.saves, self.objects & other.objects)

    def dump(self) -> bytes:
        return json.dumps({"saves": sorted(self.saves), "objects": sorted(self.objects)}).encode()


def parse_doomed(data: bytes) -> Doomed:
    """Raises ValueError, TypeError or RecursionError.

    Names that are not of this archive are left out: nothing else is ever deleted.
    """
    said = layout.read_json(data)
    if not isinstance(said, dict):
        raise TypeError("no object")
    saves = frozenset(str(one) for one in said.get("saves", ()) if layout.order_of(str(one)) is not None)
    objects = frozenset(str(one) for one in said.get("objects", ()) if layout.parse_name(str(one)) is not None)
    return Doomed(saves, objects)


def is_whole(save: Save, sizes: Mapping[str, int]) -> bool:
    """Whether all objects of a save are there, by the sizes of those that are."""
    return all(sizes.get(one.name) == one.size for one in save.objects)


@dataclass(frozen=True)
class Stock:
    """What is known to be in the archive of a job."""

    saves: Mapping[str, Save] = field(default_factory=dict)  # by the name of the manifest; also those of memory
    listed: frozenset[str] = frozenset()  # of these: those that the store has just shown
    unread: frozenset[str] = frozenset()  # manifests that cannot be read now: what they name is unknown
    sizes: Mapping[str, int] = field(default_factory=dict)  # of the objects, by name

    def find_kept(self, keep: int) -> frozenset[str]:
        """The manifests of the newest saves that are whole, `keep` of them, and of all that are newer than the oldest.

        One that is not whole is in nobody's way: it counts as none, and goes with those that are older. A record that
        was saved twice, as the agent did not learn that its manifest was there, needs only one of the two.
        """
        ordered = sorted(self.saves, key=lambda name: (self.saves[name].order, name), reverse=True)
        kept, whole = list[str](), set[layout.Order]()
        for name in ordered:
            save = self.saves[name]
            if save.order in whole:
                continue
            if len(whole) >= keep:
                break
            kept.append(name)
            if name in self.listed and is_whole(save, self.sizes):
                whole.add(save.order)
        return frozenset(kept)

    def find_doomed(self, keep: int, generation: int, told: Doomed, young: Collection[str] = ()) -> Doomed:
        """What this generation, which has completed a save, may delete.

        `told`: what others were about to delete. `young`: objects that this generation counts on, whoever sent them.
        Objects that no manifest names are from a world that ended before its save was complete.
        """
        if self.unread - told.saves:
            return Doomed()  # what such a manifest names may be all that is good
        kept = self.find_kept(keep)
        if not kept:
            return Doomed()
        named = {one.name for name in kept for one in self.saves[name].objects}.union(young)
        expired = (self.saves.keys() - kept) | (told.saves - kept)
        lost = {name for name in self.sizes if _is_older(name, generation)}
        theirs = {one.name for name in expired if name in self.saves for one in self.saves[name].objects}
        return Doomed(frozenset(expired), frozenset((lost | theirs | told.objects) - named))


def find_prunable(stock: Stock, keep: int, leads: Collection[int], told: Doomed) -> Doomed:
    """What may go although no agent asks for it: of what the store shows, all but the `keep` newest whole saves.

    `leads`: the generations that have come to lead. What the newest one has sent stays: its save may not be complete.
    What others were about to delete may go at any moment, so it counts as no save, also where it cannot be read.
    """
    saves = {name: save for name, save in stock.saves.items() if name not in told.saves}
    sizes = {name: size for name, size in stock.sizes.items() if name not in told.objects}
    left = replace(stock, saves=saves, sizes=sizes, listed=stock.listed - told.saves)
    if not any(name in left.listed and is_whole(save, sizes) for name, save in saves.items()):
        return Doomed()
    found = left.find_doomed(keep, max(leads, default=0), told)
    return Doomed(found.saves & (stock.listed | stock.unread), found.objects & stock.sizes.keys())


def _is_older(name: str, generation: int) -> bool:
    found = layout.parse_name(name)
    return found is not None and found[0][0] < generation
