"""Size source: the bounds that `elasticPolicy` sets. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """Clamp the size to minReplicas and maxReplicas."""
    low, high = view.spec.min_replicas, view.spec.max_replicas
    return Answer(target=max(low, min(size, high)), reason=f"elasticPolicy allows {low} to {high} pods")
