"""A token bucket: how much may happen at once, and in the long run. Pure: time comes in as an argument."""

from __future__ import annotations

from typing import Final

_LATE_SECONDS: Final = 30.0  # a time that is further back is no late one: the clock was set


class Bucket:
    """A token bucket: `burst` at once, `rate` a second in the long run.

    Whoever was kept waiting may say when that began: what has been given since is not given once more.
    """

    __slots__ = ("at", "level")

    def __init__(self, burst: float, now: float) -> None:
        self.level = burst
        self.at = now

    def has(self, cost: float, rate: float, burst: float, now: float) -> bool:
        """Whether so many tokens are there; takes none."""
        self.level = min(burst, self.level + max(0.0, now - self.at) * rate)
        self.at = now if now < self.at - _LATE_SECONDS else max(self.at, now)
        return self.level >= cost

    def take(self, rate: float, burst: float, now: float, cost: float = 1.0) -> bool:
        """Takes so many tokens, or none and returns false where there are fewer."""
        if not self.has(cost, rate, burst, now):
            return False
        self.level -= cost
        return True
