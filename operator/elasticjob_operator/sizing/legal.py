"""Legal sizes: minReplicas plus multiples of a step, whole copies of the model, or a list of sizes; not those at which
the script fails. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
            return max((v for v in self.values if self._is_step(v) and v <= limit and v not in failed), default=0)
        size = self._step_to(limit)
        while size in failed:
            size = self._step_to(size - 1)
        return size

    def list_all(self) -> Sequence[int]:
        """All of them, ascending; those at which the script fails, too."""
        if self.values:
            return sorted({v for v in self.values if self._is_step(v) and v <= self.wanted})
        return range(self.min, self.wanted + 1, self.step or 1)

    def at_least(self, size: int) -> int:
        """The smallest one from `size` on, whatever is wanted; without any, `size` itself."""
        if self.values:
            return min((v for v in self.values if self._is_step(v) and v >= size), default=size)
        step = self.step or 1
        return self.min + -(-max(0, size - self.min) // step) * step

    def _is_step(self, size: int) -> bool:
        return size >= self.min and (size - self.min) % (self.step or 1) == 0

    def _step_to(self, limit: int) -> int:
        if limit < self.min:
            return 0
        return limit - (limit - self.min) % self.step if self.step else limit


def sizes_of(spec: api.Spec, wanted: int, failed: Iterable[int] = ()) -> Sizes:
    """The legal sizes of a job that wants at most `wanted` pods in its world."""
    elastic, whole = spec.elastic_policy, spec.layout.step
    step = elastic.replica_increment_step if elastic.mesh is None else whole
    least = -(-spec.min_replicas // whole) * whole
    return Sizes(least, wanted, step, tuple(elastic.replica_discrete_values or ()), tuple(failed))


def describe_rule(spec: api.Spec) -> str:
    """Which field forbids sizes."""
    elastic, step = spec.elastic_policy, spec.layout.step
    if elastic.replica_discrete_values:
        return "elasticPolicy.replicaDiscreteValues" + (" and elasticPolicy.mesh" if step > 1 else "")
    if elastic.mesh is not None:
        return f"elasticPolicy.mesh, {step} pods are needed for whole copies of the model"
    return f"elasticPolicy.replicaIncrementStep {elastic.replica_increment_step or 1}"


def describe_none(spec: api.Spec) -> str:
    """Why no size is legal."""
    values, step = spec.elastic_policy.replica_discrete_values, spec.layout.step
    bounds = f"from {spec.min_replicas} (minReplicas, or else replicas) to {spec.wanted} (replicas): change one of them"
    if step == 1:
        return f"spec.elasticPolicy.replicaDiscreteValues has no size {bounds}"
    found = "spec.elasticPolicy.replicaDiscreteValues has none" if values else "there is none"
    return f"whole copies of spec.elasticPolicy.mesh need a multiple of {step} pods, and {found} {bounds}"
