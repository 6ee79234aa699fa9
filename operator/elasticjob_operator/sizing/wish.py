"""Size source: the size that the user, or an autoscaler through the scale subresource, requests. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """`spec.replicas`, by default elasticPolicy.maxReplicas."""
    wanted = view.spec.wanted
    field = "replicas" if view.spec.replicas else "elasticPolicy.maxReplicas"
    return Answer(target=wanted, reason=f"spec.{field} asks for {wanted} pods")
