"""Legal sizes: minReplicas plus multiples of a step, or a list of sizes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob_operator import api


@dataclass(frozen=True, slots=True)
class Sizes:
    """The legal sizes of a world, in pods."""

    min: int
    wanted: int
    step: int | None = None
    values: tuple[int, ...] = ()

    def legal(self, available: int) -> int:
        """The largest legal size of at most `available` pods; 0 if there is none."""
        limit = min(available, self.wanted)
        if self.values:
            return max((v for v in self.values if self.min <= v <= limit), default=0)
        if limit < self.min:
            return 0
        return limit - (limit - self.min) % self.step if self.step else limit


def sizes_of(spec: api.Spec, wanted: int) -> Sizes:
    """The legal sizes of a job that wants at most `wanted` pods in its world."""
    elastic = spec.elastic_policy
    return Sizes(
        spec.min_replicas, wanted, elastic.replica_increment_step, tuple(elastic.replica_discrete_values or ())
    )
