"""How places are shared among groups that do not know each other: namespaces, or the addresses that sockets come from.

A group may hold as many places as are free, times its `greed`. So one group alone gets nearly all, several get the same
each, and there is always a place left for a group that has none: whoever takes many makes room for those who take few.
Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from elasticjob_operator import ratelimit


def has_room(own: int, taken: int, capacity: int, greed: float) -> bool:
    """Whether a group that holds `own` of the `taken` places may have one more.

    In the long run one group alone gets `greed / (1 + greed)` of the capacity, n of them get
    `greed / (1 + n * greed)` each.
    """
    free = capacity - taken
    return free > 0 and own < greed * free


class Room:
    """A bounded number of places and who holds them."""

    def __init__(self, capacity: int, greed: float = 1.0) -> None:
        self.capacity = capacity
        self._greed = greed
        self._held: Counter[str] = Counter()
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    def has_room(self, group: str) -> bool:
        return has_room(self._held[group], self._taken, self.capacity, self._greed)

    def enter(self, group: str) -> bool:
        """Takes a place; false where the group has to wait for one."""
        if not self.has_room(group):
            self._forget_if_none(group)
            return False
        self._held[group] += 1
        self._taken += 1
        return True

    def leave(self, group: str) -> None:
        """Gives a place back that was taken."""
        self._held[group] -= 1
        self._taken -= 1
        self._forget_if_none(group)

    def _forget_if_none(self, group: str) -> None:
        if self._held[group] <= 0:
            del self._held[group]


class Allowances:
    """A token bucket for each of many keys. Those that were used longest ago are forgotten, which fills them."""

    def __init__(self, rate: float, burst: float, capacity: int = 4096) -> None:
        self._rate = rate
        self._burst = burst
        self._capacity = capacity
        self._buckets: OrderedDict[str, ratelimit.Bucket] = OrderedDict()

    def is_spent(self, key: str, now: float) -> bool:
        """Whether the key has nothing left; takes nothing."""
        bucket = self._buckets.get(key)
        return bucket is not None and not bucket.has(1.0, self._rate, self._burst, now)

    def take(self, key: str, now: float) -> bool:
        bucket = self._buckets.setdefault(key, ratelimit.Bucket(self._burst, now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._capacity:
            self._buckets.popitem(last=False)
        return bucket.take(self._rate, self._burst, now)
