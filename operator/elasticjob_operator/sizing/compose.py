"""The one answer to "how big may this job be": all size sources, in their order. Pure.

A later source sees what the earlier ones have made of the size, and has the last word. First come those that ask for a
size, then what limits it; legal sizes come last, since every other limit has to end in one. The pods are that many and
the spares, as far as there is room. A world that ends takes no part in any of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from elasticjob_operator.sizing import bounds, finishing, legal, room, wish
from elasticjob_operator.sizing.values import Size, Source, View

Named = tuple[str, Source]

OF_WORLD: Final[tuple[Named, ...]] = (
    ("replicas", wish.ask),
    ("elasticPolicy", bounds.ask),
    ("legalSizes", legal.ask),
)
OF_PODS: Final[tuple[Named, ...]] = (
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
    """The size, what limits it and when it may change by itself."""
    wanted = wish.ask(view, 0).apply(0)
    world = _fold(of_world, view, wanted)
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
