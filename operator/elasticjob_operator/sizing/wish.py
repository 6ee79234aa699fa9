"""Size source: the size that the user, or an autoscaler through the scale subresource, requests. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """`spec.replicas`; elasticPolicy.maxReplicas by default, and for a job whose size the pool chooses."""
    if view.spec.is_pooled and not view.is_pinned:
        return Answer(target=view.spec.max_replicas, reason="elasticPolicy.maxReplicas is the upper bound")
    wanted = view.spec.wanted
    field = "replicas" if view.spec.replicas else "elasticPolicy.maxReplicas"
    return Answer(target=wanted, reason=f"spec.{field} asks for {wanted} pods")
