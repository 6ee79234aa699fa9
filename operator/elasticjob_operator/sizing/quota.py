"""The quota that a queue has admitted. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """No more pods than are admitted; a job without a queue has no such limit."""
    if view.quota is None:
        return Answer()
    return Answer(at_most=view.quota, reason=f"its queue has admitted {view.quota} pods")
