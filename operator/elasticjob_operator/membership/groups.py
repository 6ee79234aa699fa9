"""Replica groups: the pods that together hold whole copies of the model, and who has which place in them. Pure.

The place of a pod in its group says what its ranks do: which stage of a pipeline, which part of a layer, which shards.
Those that go on keep it, whatever their new ranks. A loss costs its group, and not the others: who takes a place that
has become free comes from outside the world, or from a group that is given up. Without a mesh each pod is a group.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from elasticjob_operator.api import Layout
from elasticjob_operator.model import topology
from elasticjob_operator.model.topology import Place

_T = TypeVar("_T")


def split(pods: Sequence[_T], layout: Layout) -> list[list[_T]]:
    """The groups of a world, whose pods are in the order of their ranks; none if they are not whole groups."""
    count, rest = divmod(len(pods), layout.pods)
    if rest:
        return []
    runs = [pods[at : at + layout.inner] for at in range(0, len(pods), layout.inner)]
    return [[pod for run in runs[number::count] for pod in run] for number in range(count)]


def merge(groups: Sequence[Sequence[_T]], layout: Layout) -> list[_T]:
    """The pods of a world of these groups, in the order of their ranks."""
    starts = range(0, layout.pods, layout.inner)
    return [pod for start in starts for group in groups for pod in group[start : start + layout.inner]]


def choose(
    world: Sequence[str],
    survivors: Sequence[str],
    coming: Sequence[str],
    size: int,
    layout: Layout,
    *,
    places: Mapping[str, Place] | None = None,
    parts: Mapping[str, Collection[int]] | None = None,
    replaced: Collection[str] = (),
) -> list[str]:
    """The members of the next world, of `size` pods, in the order of their ranks.

    `parts`: of the training state that survivors have in memory, where not each of them has the whole of it.
    `replaced`: survivors that are to leave. `places`: of nodes.
    """
    known = parts or {}
    mine = {uid: frozenset(known.get(uid, ()) if any(known.values()) else (0,)) for uid in survivors}
    out = _find_out(world, survivors, coming, size, layout, mine, replaced)
    return seat(world, [uid for uid in (*survivors, *coming) if uid not in out], layout, places or {})


def _find_out(
    world: Sequence[str],
    survivors: Sequence[str],
    coming: Sequence[str],
    size: int,
    layout: Layout,
    parts: Mapping[str, frozenset[int]],
    replaced: Collection[str],
) -> set[str]:
    """Who stays out of the next world, if there are too many.

    Those to be replaced do first, then joiners, then survivors: those of copies that lack some, and always the last
    ones; but not a survivor that alone has a part of the state in memory, as long as another one can stay out instead.
    """
    surplus = len(survivors) + len(coming) - size
    if surplus <= 0:
        return set()
    holders = Counter(itertools.chain.from_iterable(parts.values()))
    slow = [uid for uid in reversed(survivors) if uid in replaced]
    best = sort_to_keep(world, frozenset(survivors).difference(slow), size // layout.pods, layout)
    order = [*slow, *reversed(coming), *reversed(best)]
    out: set[str] = set()
    for is_forced, uid in itertools.product((False, True), order):
        mine = parts.get(uid, frozenset())
        if len(out) < surplus and uid not in out and (is_forced or all(holders[part] > 1 for part in mine)):
            out.add(uid)
            holders.subtract(mine)
    return out


def sort_to_keep(world: Sequence[str], staying: Collection[str], count: int, layout: Layout) -> list[str]:
    """Those of a world that can stay, who is needed most first, for a next world of so many groups.

    First come whole groups, then those that lack least. Of the others, those come first that have a place which is free
    in one of these.
    """
    groups = split(world, layout)
    if not groups:
        return [uid for uid in world if uid in staying]
    lacking = [sum(uid not in staying for uid in group) for group in groups]
    kept = frozenset(sorted(range(len(groups)), key=lambda number: lacking[number])[:count])
    free = {place for number in kept for place, uid in enumerate(groups[number]) if uid not in staying}
    worth = {
        uid: (number not in kept, number not in kept and place not in free, lacking[number], number, place)
        for number, group in enumerate(groups)
        for place, uid in enumerate(group)
        if uid in staying
    }
    return sorted(worth, key=lambda uid: worth[uid])


def seat(world: Sequence[str], chosen: Sequence[str], layout: Layout, places: Mapping[str, Place]) -> list[str]:
    """The members of the next world in the order of their ranks. `world`: those of the last one; `places`: of nodes.

    Groups keep their order, and members their places in them. Who takes a free place had the same one in a group that
    is given up, or is the nearest. Rank 0 is a survivor if there is one: a group whose first place has one comes first.
    """
    if len(chosen) % layout.pods:
        return list(chosen)
    going_on = frozenset(chosen)
    if layout.pods == 1:
        survivors = dict.fromkeys(uid for uid in world if uid in going_on)
        return [*survivors, *(uid for uid in chosen if uid not in survivors)]
    old: list[list[str | None]] = split([uid if uid in going_on else None for uid in world], layout)
    best = sorted(range(len(old)), key=lambda number: old[number].count(None))[: len(chosen) // layout.pods]
    kept = [old[number] for number in sorted(best) if old[number].count(None) < layout.pods]
    seated = {uid for group in kept for uid in group}
    rest = [uid for uid in chosen if uid not in seated]
    own = {uid: place for group in old for place, uid in enumerate(group) if uid is not None}
    filled = list(_fill(kept, _Rest(rest, own, places)))
    seated = {uid for group in filled for uid in group}
    rest = [uid for uid in rest if uid not in seated]
    new = [rest[at : at + layout.pods] for at in range(0, len(rest), layout.pods)]
    return merge(_lead([*filled, *new], frozenset(world)), layout)


class _Rest:
    """Those who are in no group yet, in their order."""

    def __init__(self, rest: Sequence[str], own: Mapping[str, int], places: Mapping[str, Place]) -> None:
        """`own`: the places that they had in groups; `places`: those of their nodes."""
        self._places = places
        self._found: dict[int | Place, deque[str]] = defaultdict(deque)
        self._taken: set[str] = set()
        for uid in rest:
            for key in ((), *topology.find_parts(places.get(uid, ())), *((own[uid],) if uid in own else ())):
                self._found[key].append(uid)

    def take_same(self, place: int) -> str | None:
        """One that had this place in its group."""
        return self._take(place)

    def take_nearest(self, others: Sequence[str]) -> str:
        """One whose node is as near as possible to that of one of the others."""
        near = {part for uid in others for part in topology.find_parts(self._places.get(uid, ()))}
        taken = map(self._take, (*sorted(near, key=lambda part: (-len(part), part)), ()))
        return next(uid for uid in taken if uid is not None)

    def _take(self, key: int | Place) -> str | None:
        while self._found[key]:
            uid = self._found[key].popleft()
            if uid not in self._taken:
                self._taken.add(uid)
                return uid
        return None


def _fill(groups: Sequence[Sequence[str | None]], rest: _Rest) -> Iterator[list[str]]:
    """The groups, with some of the rest in their free places."""
    same = [[rest.take_same(place) if uid is None else uid for place, uid in enumerate(group)] for group in groups]
    for group in same:
        others = [uid for uid in group if uid is not None]
        yield [rest.take_nearest(others) if uid is None else uid for uid in group]


def _lead(groups: Sequence[list[str]], survivors: Collection[str]) -> list[list[str]]:
    """The groups, with a survivor in the first place of the first one, if there is any."""
    first = next((group for group in groups if group[0] in survivors), None)
    if first is not None:
        return [first, *(group for group in groups if group is not first)]
    at = next((at for group in groups[:1] for at, uid in enumerate(group) if uid in survivors), None)
    if at is not None:
        groups[0][0], groups[0][at] = groups[0][at], groups[0][0]
    return list(groups)
