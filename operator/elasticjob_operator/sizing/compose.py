"""How big a job is to be: each size source asks for a number of pods or limits it, and `compose` applies them in order.
Pure.

Each source receives the size that the earlier ones produced, and may override it. Sources that request a size come
first, then those that limit it. Legal sizes come last, because every limit has to end in a legal size. The number of
pods is that size plus the spares, as far as there is capacity. A world that is finishing ignores the sources.

A source is a function and one entry in a list. It does not create, delete or choose pods. A node drain is not a size
source: the pod is replaced one for one, and the size stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.sizing import legal, retreat, room
from elasticjob_operator.sizing.values import Answer, Size, Source, View
from elasticjob_operator.times import parse_time

Named = tuple[str, Source]


def ask_replicas(view: View, size: int) -> Answer:
    """`spec.replicas`, which the user or an autoscaler sets through the scale subresource; elasticPolicy.maxReplicas by
    default, and for a job whose size the pool chooses.
    """
    if view.spec.is_pooled and not view.is_pinned:
        return Answer(target=view.spec.max_replicas, reason="elasticPolicy.maxReplicas is the upper bound")
    wanted = view.spec.wanted
    field = "replicas" if view.spec.replicas else "elasticPolicy.maxReplicas"
    return Answer(target=wanted, reason=f"spec.{field} asks for {wanted} pods")


def ask_pool(view: View, size: int) -> Answer:
    """The decision of the job's pool; before the first one, the last written size, or the smallest."""
    if not view.spec.is_pooled or view.is_pinned:
        return Answer()
    if view.pool is not None and view.pool.size:
        return Answer(target=view.pool.size, reason=view.pool.reason)
    kept = view.spec.replicas or max(view.members, view.spec.min_replicas)
    return Answer(target=kept, reason=view.pool.reason if view.pool is not None else "the pool has not decided yet")


def ask_policy(view: View, size: int) -> Answer:
    """Clamp the size to minReplicas and maxReplicas."""
    low, high = view.spec.min_replicas, view.spec.max_replicas
    return Answer(target=max(low, min(size, high)), reason=f"elasticPolicy allows {low} to {high} pods")


def ask_queue(view: View, size: int) -> Answer:
    """No more pods than the job's queue has admitted; a job without a queue has no such limit."""
    if view.quota is None:
        return Answer()
    return Answer(at_most=view.quota, reason=f"its queue has admitted {view.quota} pods")


def ask_legal_sizes(view: View, size: int) -> Answer:
    """The largest legal size of at most `size`. If none is legal, keep the pods, which then wait."""
    failed = view.room.failed_sizes
    found = legal.sizes_of(view.spec, size, failed).legal(size)
    if found == size:
        return Answer()
    allowed = f"{found} is the largest legal size of at most {size}: with {legal.describe_rule(view.spec)}"
    return Answer(at_most=found or None, reason=retreat.describe(failed) if size in failed else allowed)


def ask_room(view: View, size: int) -> Answer:
    """The size without the extra pods that were withdrawn. Pods up to minReplicas are never withdrawn."""
    capacity = view.room
    if not capacity.withdrawn:
        return Answer()
    return Answer(
        at_most=max(view.spec.min_replicas, size - capacity.withdrawn),
        reason=room.describe_withdrawn(capacity),
        until=parse_time(capacity.retry_time),
    )


def ask_finishing(view: View, size: int) -> Answer:
    """The members of the last world that have not succeeded yet, whatever size is wanted: they are not replaced, and
    no pod joins.
    """
    if not view.is_ending:
        return Answer()
    return Answer(target=view.members - view.ended, reason="some members have succeeded and the others are finishing")


OF_WORLD: Final[tuple[Named, ...]] = (
    ("replicas", ask_replicas),
    ("pool", ask_pool),
    ("elasticPolicy", ask_policy),
    ("queue", ask_queue),
    ("legalSizes", ask_legal_sizes),
)
OF_PODS: Final[tuple[Named, ...]] = (
    ("queue", ask_queue),
    ("room", ask_room),
    ("finishing", ask_finishing),
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
    most = ask_replicas(view, 0).apply(0)
    wanted = ask_pool(view, most).apply(most)
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
