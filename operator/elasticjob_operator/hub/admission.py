"""Shares a bounded number of slots among groups: namespaces, or client addresses.

A group may hold as many slots as are free, times its `greed`. So one group alone gets nearly all slots, several groups
get equal shares, and there is always a slot for a group that has none: groups that hold many leave room for those that
hold few. Pure: time is an argument.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, OrderedDict
from collections.abc import Mapping

from elasticjob_operator import ratelimit


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
        if self._share is not None and self._held[group] + wanted > self._share:
            return False
        return has_room(self._held[group], self._taken, self.capacity, self._greed, wanted)

    def enter(self, group: str, wanted: int = 1) -> bool:
        """Take a slot, or so many; False if the group must wait for them."""
        if not self.has_room(group, wanted):
            self._forget_if_none(group)
            return False
        self._held[group] += wanted
        self._taken += wanted
        return True

    def leave(self, group: str, count: int = 1) -> None:
        """Release a slot, or so many."""
        self._held[group] -= count
        self._taken -= count
        self._forget_if_none(group)

    def _forget_if_none(self, group: str) -> None:
        if self._held[group] <= 0:
            del self._held[group]


class Crowd:
    """The sizes of the groups that share something of which each member takes a part.

    Of each other group, at most as many members count as the own one has. So a small group is served as if all others
    were as small, and the members of equal groups are served equally, whatever the largest one has.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._of = sizes
        self._sizes = sorted(sizes.values())
        self._sums = [0, *itertools.accumulate(self._sizes)]  # of so many of the smallest

    def count(self, group: str, own: int) -> int:
        """With how many members, itself included, one of this group shares, which has so many now."""
        smaller = bisect.bisect_left(self._sizes, own)
        counted = self._sums[smaller] + own * (len(self._sizes) - smaller)
        return own + counted - min(own, self._of.get(group, 0))


class Allowances:
    """A token bucket per key. The least recently used keys are evicted, which refills their buckets."""

    def __init__(self, rate: float, burst: float, capacity: int = 4096) -> None:
        self._rate = rate
        self._burst = burst
        self._capacity = capacity
        self._buckets: OrderedDict[str, ratelimit.Bucket] = OrderedDict()

    def is_spent(self, key: str, now: float) -> bool:
        """Whether the key's bucket is empty; takes no token."""
        bucket = self._buckets.get(key)
        return bucket is not None and not bucket.has(1.0, self._rate, self._burst, now)

    def take(self, key: str, now: float) -> bool:
        bucket = self._buckets.setdefault(key, ratelimit.Bucket(self._burst, now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._capacity:
            self._buckets.popitem(last=False)
        return bucket.take(self._rate, self._burst, now)
