"""The size that the user, or an autoscaler by way of the scale subresource, asks for. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """`spec.replicas`, or elasticPolicy.maxReplicas where it is left out."""
    wanted = view.spec.wanted
    field = "replicas" if view.spec.replicas else "elasticPolicy.maxReplicas"
    return Answer(target=wanted, reason=f"spec.{field} asks for {wanted} pods")
