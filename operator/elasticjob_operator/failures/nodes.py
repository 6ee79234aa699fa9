"""Nodes that are gone or do not respond: which pods on them to delete by force. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from elasticjob_operator.model.observe import Node, Pod

NEW_NODE_SECONDS = 5.0


def overdue_deletions(
    pods: Sequence[Pod], nodes: Mapping[str, Node], answering: Collection[str], *, timeout: float, now: float
) -> tuple[frozenset[str], float | None]:
    """Pods to delete by force, and when the next one is due (seconds since the epoch).

    A deletion is never confirmed on a node that is gone or unresponsive, nor by a pod that ignores its grace period.
    One that is held only by its finalizers is not deleted again.
    A pod whose agent still responds is alive, whatever the state of its node.
    """
    due: set[str] = set()
    later: list[float] = []
    for pod in pods:
        at = None if pod.uid in answering else _force_at(pod, nodes.get(pod.node), timeout)
        if at is None:
            continue
        if now >= at:
            due.add(pod.uid)
        else:
            later.append(at)
    return frozenset(due), min(later, default=None)


def _force_at(pod: Pod, node: Node | None, timeout: float) -> float | None:
    if not pod.node or pod.held_by or (pod.terminal and not pod.lingers):
        return None
    if node is None:  # gone, or so new that its watch event has not arrived
        return (pod.scheduled or pod.created) + (NEW_NODE_SECONDS if pod.started else timeout)
    if node is not None and not node.ready and node.not_ready_since is not None:
        return node.not_ready_since + timeout
    if pod.deleting is not None:
        return pod.deleting + timeout
    return None
