"""Whether all workers of a pod wait: evidence for the operator that the world makes no step.

A main thread that is blocked in a collective sleeps and is not scheduled once, whatever the script is. That is read
from `/proc`, so an unmodified script is understood too. A step may also contain such a rest (a long read, a device that
computes), so a rest counts only if it is much longer than those that are usual in this world. No clock, no I/O:
`work.glance` looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticjob.channel.work import Glance

LEAST_SECONDS = 0.5  # the shortest rest that counts
FACTOR = 2.0  # ... and how much longer than the usual ones it must be
LOOK_EVERY = 0.1
MIN_LOOKS = 5  # that found work in this world: a process whose main thread never works cannot be judged
_TICKS_PER_SECOND = 4  # of processor time (10 ms each), for all threads: those of gloo wake up while they wait


@dataclass(frozen=True)
class Stillness:
    """What was seen of the workers in this world. Create a new one for each world."""

    last: Glance | None = None
    at: float = 0.0  # time of the last look
    since: float = 0.0  # of the first look of the present rest
    ticks: int = 0  # processor time at the start of the present rest
    worked: int = 0  # looks that found work
    rests: tuple[float, float] = (0.0, 0.0)  # seconds of the two longest completed rests

    def look(self, now: float, glance: Glance) -> Stillness:
        """The state after this look. `now` is in seconds of a monotonic clock."""
        before = self.last
        seen = replace(self, last=glance, at=now)
        if before is None:
            return replace(seen, since=now, ticks=glance.ticks)
        most = 1 + _TICKS_PER_SECOND * (now - self.since)
        rests = glance.asleep and before.asleep and glance.switches == before.switches
        if rests and glance.ticks - self.ticks <= most:
            return seen
        longest = sorted((*self.rests, self.at - self.since))
        return replace(seen, since=now, ticks=glance.ticks, worked=self.worked + 1, rests=(longest[-1], longest[-2]))

    @property
    def is_waiting(self) -> bool:
        """Whether the workers have rested for much longer than usual.

        The longest rest of a world does not count as usual: its ranks wait once for each other, at the start.
        """
        rested = self.at - self.since
        return self.worked >= MIN_LOOKS and rested >= max(LEAST_SECONDS, FACTOR * self.rests[1])
