"""Legal sizes: minReplicas plus multiples of a step, or a list of sizes; not those at which the script fails. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticjob_operator import api


@dataclass(frozen=True, slots=True)
class Sizes:
    """The legal sizes of a world, in pods."""

    min: int
    wanted: int
    step: int | None = None
    values: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()  # at which the script cannot start

    def legal(self, available: int) -> int:
        """The largest legal size of at most `available` pods; 0 if there is none."""
        failed, limit = frozenset(self.failed), min(available, self.wanted)
        if self.values:
            return max((v for v in self.values if self.min <= v <= limit and v not in failed), default=0)
        size = self._step_to(limit)
        while size in failed:
            size = self._step_to(size - 1)
        return size

    def _step_to(self, limit: int) -> int:
        if limit < self.min:
            return 0
        return limit - (limit - self.min) % self.step if self.step else limit


def sizes_of(spec: api.Spec, wanted: int, failed: Iterable[int] = ()) -> Sizes:
    """The legal sizes of a job that wants at most `wanted` pods in its world."""
    elastic = spec.elastic_policy
    values = tuple(elastic.replica_discrete_values or ())
    return Sizes(spec.min_replicas, wanted, elastic.replica_increment_step, values, tuple(failed))
