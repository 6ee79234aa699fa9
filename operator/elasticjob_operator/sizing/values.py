"""What a size source sees, what it answers, and the size that comes of all answers: frozen values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elasticjob_operator import api


@dataclass(frozen=True, slots=True)
class View:
    """What the sources look at."""

    spec: api.Spec
    room: api.CapacityStatus = field(default_factory=api.CapacityStatus)
    members: int = 0  # pods of the present world
    ended: int = 0  # of those, the ones that have ended well
    is_ending: bool = False  # whether any member has ended well, now or in an earlier generation of the last world


@dataclass(frozen=True, slots=True)
class Answer:
    """What one source says of a number of pods: set it (`target`), limit it (`at_most`), or neither."""

    target: int | None = None
    at_most: int | None = None
    reason: str = ""  # for people
    until: float | None = None  # when the source may answer otherwise, by itself

    def apply(self, size: int) -> int:
        size = size if self.target is None else self.target
        return size if self.at_most is None else min(size, self.at_most)


Source = Callable[[View, int], Answer]  # of what is seen and of the size so far


@dataclass(frozen=True, slots=True)
class Size:
    """How big the job is to be now."""

    wanted: int  # pods that are asked for to train
    world: int  # pods of the largest world that may be formed
    pods: int  # pods there should be, spares included
    limited_by: str = ""  # the name of the last source that made it smaller or bigger than wanted; "" where none did
    reason: str = ""  # what that source says
    until: float | None = None  # when the size may change by itself
