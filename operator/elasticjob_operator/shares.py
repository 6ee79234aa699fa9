"""Shares a bounded number of slots, or of bytes, among groups: namespaces, or client addresses.

A group may hold as many slots as are free, times its `greed`. So one group alone gets nearly all slots, several groups
get equal shares, and there is always a slot for a group that has none: groups that hold many leave room for those that
hold few. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


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
        self._held[group] += wanted if may else 0
        self._taken += wanted if may else 0
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
