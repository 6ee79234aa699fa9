"""Deleted pods that finalizers keep: a job may wait for them for ever, so it says who keeps them. Pure.

Their names are taken, their quota is held, and a suspended job counts as suspended only once they are gone. A finalizer
is somebody else's; the operator never removes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from elasticjob_operator.model import ownership
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.model.reading import Notice

PATIENCE_SECONDS: Final = 15.0  # after the grace period: whoever set a finalizer usually takes it off sooner


def find_held(pods: Iterable[Pod], now: float) -> tuple[tuple[Notice, ...], float | None]:
    """A notice about pods that are kept for too long, if there are any; and when others will be."""
    kept = [(pod.deleting + PATIENCE_SECONDS, pod) for pod in pods if pod.held_by and pod.deleting]
    later = min((at for at, _ in kept if at > now), default=None)
    held = sorted((pod for at, pod in kept if at <= now), key=lambda pod: (pod.index, pod.deleting, pod.uid))
    return ((_describe(held),) if held else ()), later


def _describe(held: list[Pod]) -> Notice:
    pod = held[0]
    also = f" ({len(held)} pods are kept in this way)" if len(held) > 1 else ""
    why = ownership.describe_keepers(pod.held_by, "pod", also)
    return Notice("PodHeld", f"{pod.name} is deleted, but {why} (kubectl edit pod {pod.name})")
