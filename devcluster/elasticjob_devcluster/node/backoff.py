"""How long to wait before the next try: the kubelet's doubling back-off, which forgets after a good run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """The pause before try number `failures` + 1; the first restart comes at once."""
        if failures <= 1:
            return 0.0
        return float(min(self.longest, self.first * 2.0 ** min(failures - 2, 60)))

    def pull_delay(self, failures: int) -> float:
        """The pause after a failed pull; there is one after the first failure already."""
        return self.delay(failures + 1)

    def failures_after(self, failures: int, ran_seconds: float) -> int:
        """The count of failures after another end: a run of twice the longest pause clears it."""
        return 1 if ran_seconds >= 2 * self.longest else failures + 1
