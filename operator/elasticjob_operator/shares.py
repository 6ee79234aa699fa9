"""Shares a bounded number of slots, or of bytes, among groups: namespaces, or client addresses.

A group may hold as many slots as are free, times its `greed`. So one group alone gets nearly all slots, several groups
get equal shares, and there is always a slot for a group that has none: groups that hold many leave room for those that
hold few. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


def has_room(own: int, taken: int, capacity: int, greed: float, wanted: int = 1) -> bool:
    """Whether a group that holds `own` of the `taken` slots may have more.

    In equilibrium one group alone gets `greed / (1 + greed)` of the capacity, and each of n groups gets `greed / (1 + n
    * greed)`.
    """
    free = capacity - taken
    return free >= wanted and own + wanted - 1 < greed * (free - wanted + 1)


class Room:
    """A bounded number of slots, and the groups that hold them: at most `share` of them each."""

    def __init__(self, capacity: int, greed: float = 1.0, share: int | None = None) -> None:
        self.capacity = capacity
        self._share = share
        self._greed = greed
        self._held: Counter[str] = Counter()
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    @property
    def held(self) -> Mapping[str, int]:
        """The slots of each group that has some."""
        return self._held

    def has_room(self, group: str, wanted: int = 1) -> bool:
        own = self._held[group]
        return self._is_in_its_share(own + wanted) and has_room(own, self._taken, self.capacity, self._greed, wanted)

    def enter(self, group: str, wanted: int = 1) -> bool:
        """Take a slot, or so many; False if the group must wait for them."""
        return self._take(group, wanted, self.has_room(group, wanted))

    def has_room_again(self, group: str, wanted: int) -> bool:
        """Whether a group that had so many slots may have them: as many as it may have alone."""
        own = self._held[group]
        is_there = self._taken + wanted <= self.capacity and self._is_in_its_share(own + wanted)
        return is_there and has_room(own, own, self.capacity, self._greed, wanted)

    def enter_again(self, group: str, wanted: int) -> bool:
        """The same for what was let in before: all of it fits again, in whatever order it comes."""
        return self._take(group, wanted, self.has_room_again(group, wanted))

    def _is_in_its_share(self, count: int) -> bool:
        return self._share is None or count <= self._share

    def _take(self, group: str, wanted: int, may: bool) -> bool:
        if may:
            self._held[group] += wanted
            self._taken += wanted
        self._forget_if_none(group)
        return may

    def leave(self, group: str, count: int = 1) -> None:
        """Release a slot, or so many."""
        self._held[group] -= count
        self._taken -= count
        self._forget_if_none(group)

    def _forget_if_none(self, group: str) -> None:
        if self._held[group] <= 0:
            del self._held[group]


@dataclass(slots=True)
class _Berth:
    is_free: bool = False  # one of those of which only what is large takes room
    taken: int = 0


class Berths:
    """What is kept of objects, by namespace and name: so many bytes of each of the first ones of a namespace are free.

    What is larger, and what is more, shares a room, of which one namespace gets half.
    """

    def __init__(self, free_bytes: int, free_count: int, capacity: int) -> None:
        self._free_bytes, self._free_count = free_bytes, free_count
        self._berths: dict[tuple[str, str], _Berth] = {}
        self._free: Counter[str] = Counter()  # those that are `is_free`, by namespace
        self._room = Room(capacity)  # by namespace: bytes

    def enter(self, key: tuple[str, str]) -> None:
        """The object is there: it is one of the first ones of its namespace, if there are not so many yet."""
        berth = self._berths.setdefault(key, _Berth())
        if not berth.is_free and self._may_be_free(key):
            berth.is_free = True
            self._free[key[0]] += 1

    def is_shared(self, key: tuple[str, str], size: int) -> bool:
        """Whether so many bytes of this object take room."""
        return self._count_shared(size, is_free=self._berths[key].is_free) > 0

    def put(self, key: tuple[str, str], size: int, *, again: bool = False) -> bool:
        """Keep so many bytes of this object; False if there is no room: it has what it had before, new ones nothing.

        `again`: see `Room.enter_again`. What does not grow stays.
        """
        self.enter(key)
        berth = self._berths[key]
        wanted, before = self._count_shared(size, is_free=berth.is_free), berth.taken
        self._room.leave(key[0], before)
        enter = self._room.enter_again if again or wanted <= before else self._room.enter
        is_kept = not wanted or enter(key[0], wanted)
        berth.taken = wanted if is_kept else before
        if not is_kept:
            self._room.enter_again(key[0], before)  # it was there a moment ago
        return is_kept

    def has_room(self, key: tuple[str, str], size: int, *, again: bool = False) -> bool:
        """Whether `put` would be possible; nothing is changed."""
        berth = self._berths.get(key, _Berth())
        wanted = self._count_shared(size, is_free=berth.is_free or self._may_be_free(key))
        has_room = self._room.has_room_again if again else self._room.has_room
        return wanted <= berth.taken or has_room(key[0], wanted - berth.taken)

    def clear(self, key: tuple[str, str]) -> None:
        """Nothing that takes room is kept of this object any more."""
        berth = self._berths[key]
        self._room.leave(key[0], berth.taken)
        berth.taken = 0

    def leave(self, key: tuple[str, str]) -> None:
        """The object is gone."""
        berth = self._berths.pop(key, None)
        if berth is None:
            return
        self._room.leave(key[0], berth.taken)
        self._free[key[0]] -= berth.is_free
        if not self._free[key[0]]:
            del self._free[key[0]]

    def _may_be_free(self, key: tuple[str, str]) -> bool:
        return self._free[key[0]] < self._free_count

    def _count_shared(self, size: int, *, is_free: bool) -> int:
        return max(0, size - self._free_bytes) if is_free else size
