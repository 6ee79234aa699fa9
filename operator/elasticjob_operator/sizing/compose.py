"""Computes the size of a job by applying all size sources in order. Pure.

Each source receives the size that the earlier ones produced, and may override it. Sources that request a size come
first, then those that limit it. Legal sizes come last, because every limit has to end in a legal size. The number of
pods is that size plus the spares, as far as there is capacity. A world that is finishing ignores the sources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.sizing import bounds, finishing, legal, pool, quota, retreat, room, wish
from elasticjob_operator.sizing.values import Size, Source, View

Named = tuple[str, Source]

OF_WORLD: Final[tuple[Named, ...]] = (
    ("replicas", wish.ask),
    ("pool", pool.ask),
    ("elasticPolicy", bounds.ask),
    ("queue", quota.ask),
    ("script", retreat.ask),
    ("legalSizes", legal.ask),
)
OF_PODS: Final[tuple[Named, ...]] = (
    ("queue", quota.ask),
    ("room", room.ask),
    ("finishing", finishing.ask),
)


@dataclass(frozen=True, slots=True)
class _Folded:
    size: int
    limited_by: str = ""
    reason: str = ""
    until: float | None = None


def compose(view: View, of_world: Iterable[Named] = OF_WORLD, of_pods: Iterable[Named] = OF_PODS) -> Size:
    """The size, the source that limits it, and when it may change without an event.

    Pods that were withdrawn for want of room are not asked for. So they are not subtracted from what the queue has
    admitted: a queue limits the size only where it admits less than is asked for.
    """
    if view.quota is None:
        return _compose(view, of_world, of_pods)
    asked = _compose(replace(view, quota=None), of_world, of_pods)
    if asked.pods <= view.quota:
        return asked
    admitted = _compose(replace(view, room=api.CapacityStatus()), of_world, of_pods)
    return replace(admitted, until=min((at for at in (asked.until, admitted.until) if at is not None), default=None))


def _compose(view: View, of_world: Iterable[Named], of_pods: Iterable[Named]) -> Size:
    most = wish.ask(view, 0).apply(0)
    wanted = pool.ask(view, most).apply(most)
    world = _fold(of_world, view, most)
    pods = _fold(of_pods, view, world.size + view.spec.elastic_policy.spares)
    last = pods if pods.limited_by else world
    until = min((at for at in (world.until, pods.until) if at is not None), default=None)
    return Size(wanted, world.size, pods.size, last.limited_by, last.reason, until)


def _fold(sources: Iterable[Named], view: View, size: int) -> _Folded:
    folded = _Folded(size)
    for name, source in sources:
        answer = source(view, folded.size)
        size = answer.apply(folded.size)
        until = min((at for at in (folded.until, answer.until) if at is not None), default=None)
        changed = size != folded.size
        folded = _Folded(size, name, answer.reason, until) if changed else replace(folded, until=until)
    return folded
