"""How often clients may try: a bucket of tokens each; and how many share a thing. What they hold at a time: `shares`.

Pure: time is an argument.
"""

from __future__ import annotations

import bisect
import itertools
from collections import OrderedDict
from collections.abc import Mapping

from elasticjob_operator import ratelimit


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
        return not self.has(key, 1, now)

    def has(self, key: str, count: int, now: float) -> bool:
        """Whether so many tokens are left of the key's bucket; takes none."""
        bucket = self._buckets.get(key)
        return count <= self._burst if bucket is None else bucket.has(count, self._rate, self._burst, now)

    def take(self, key: str, now: float) -> bool:
        bucket = self._buckets.setdefault(key, ratelimit.Bucket(self._burst, now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._capacity:
            self._buckets.popitem(last=False)
        return bucket.take(self._rate, self._burst, now)
