"""Frozen values: the input of a size source, its answer, and the size composed of all answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elasticjob_operator import api


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """What the pool has decided for one job."""

    size: int = 0  # pods; 0: no change, for the `reason`
    reason: str = ""
    pool: str = ""  # the name of the pool
    expected_gain: float = 0.0  # relative gain in speed from the change to this size
    speeds: tuple[api.SizeSpeed, ...] = ()  # the measured ones
    cost: api.CostStatus | None = None
    noise_scale: float | None = None  # of the gradients, in samples


@dataclass(frozen=True, slots=True)
class View:
    """The input of every size source."""

    spec: api.Spec
    room: api.CapacityStatus = field(default_factory=api.CapacityStatus)
    members: int = 0  # pods in the current world
    ended: int = 0  # members that have succeeded
    quota: int | None = None  # pods that the job's queue has admitted; None: the job has no queue
    pool: PoolDecision | None = None
    is_pinned: bool = False  # whether spec.replicas of a pooled job was set by somebody other than the pool
    is_ending: bool = False  # whether any member has succeeded, in this or an earlier generation of the last world


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one source for a number of pods: set it (`target`), limit it (`at_most`), or neither."""

    target: int | None = None
    at_most: int | None = None
    reason: str = ""  # shown to users
    until: float | None = None  # when the answer may change without an event

    def apply(self, size: int) -> int:
        size = size if self.target is None else self.target
        return size if self.at_most is None else min(size, self.at_most)


Source = Callable[[View, int], Answer]  # (view, size so far) -> answer


@dataclass(frozen=True, slots=True)
class Size:
    """The size that the job should have now."""

    wanted: int  # requested pods in the world
    world: int  # pods in the largest world that may be formed
    pods: int  # pods that should exist, spares included
    limited_by: str = ""  # the last source that changed the wanted size; "" if none did
    reason: str = ""  # the reason that this source gives
    until: float | None = None  # when the size may change without an event
