"""The size that the pool has decided: see `elasticjob_operator.pool`. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """The pool's decision; before the first one, the last written size, or the smallest."""
    if not view.spec.is_pooled or view.is_pinned:
        return Answer()
    if view.pool is not None and view.pool.size:
        return Answer(target=view.pool.size, reason=view.pool.reason)
    kept = view.spec.replicas or max(view.members, view.spec.min_replicas)
    return Answer(target=kept, reason=view.pool.reason if view.pool is not None else "the pool has not decided yet")
