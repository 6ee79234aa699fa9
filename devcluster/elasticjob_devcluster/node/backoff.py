"""The delay before the next attempt: the kubelet's doubling back-off, which is reset after a long run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """Seconds before attempt number `failures` + 1; the first restart is immediate."""
        if failures <= 1:
            return 0.0
        return float(min(self.longest, self.first * 2.0 ** min(failures - 2, 60)))

    def pull_delay(self, failures: int) -> float:
        """Seconds after a failed pull; there is a delay even after the first failure."""
        return self.delay(failures + 1)

    def failures_after(self, failures: int, ran_seconds: float) -> int:
        """The failure count after another exit: a run of twice the longest delay resets it."""
        return 1 if ran_seconds >= 2 * self.longest else failures + 1
