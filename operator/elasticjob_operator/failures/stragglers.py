"""Stragglers: members that need longer for a step than the others, which wait for them. Pure.

The own time of a rank is what it needs for a step without waiting for other ranks. Agents report the median of the last
minute, of the slowest of their ranks, so that a checkpoint, an evaluation or a short disturbance accuses nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.model.revise import revise
from elasticjob_operator.sizing import growth
from elasticjob_operator.times import format_time, parse_time

WINDOW_SECONDS: Final = 60  # over which the agents take the median
FACTOR: Final = 1.5  # slower than the median of the others: a straggler ...
STAYS_FACTOR: Final = 1.25  # ... until it is below this
RETRY_SECONDS: Final = 1800.0  # between two replacements in a job: it may be the program that is slow on a rank
MOST: Final = 8
_CHANGE: Final = 0.2  # smaller changes of the numbers are not written


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the slowest rank of a member is by itself."""

    member: api.Member
    rank: int
    own_seconds: float


def read_paces(world: api.RendezvousStatus, agents: Mapping[str, Agent]) -> tuple[Pace, ...]:
    """What the members of this world have reported in it, as far as they have."""
    found = []
    for member in world.members:
        agent = agents.get(member.uid)
        told = agent.progress if agent is not None else None
        if told is not None and told.generation == world.generation and told.own_seconds is not None:
            rank = told.slowest_rank if told.slowest_rank is not None else told.rank
            found.append(Pace(member, rank, told.own_seconds))
    return tuple(found)


def median_of_others(paces: Sequence[Pace]) -> list[float]:
    """For each member, the median of the own times of the others. There are at least two."""
    order = sorted(range(len(paces)), key=lambda i: paces[i].own_seconds)
    place = {i: at for at, i in enumerate(order)}
    values = [paces[i].own_seconds for i in order]
    rest = len(values) - 1

    def find(at: int) -> float:
        def value(index: int) -> float:
            return values[index + (index >= at)]

        return value(rest // 2) if rest % 2 else (value(rest // 2 - 1) + value(rest // 2)) / 2

    return [find(place[i]) for i in range(len(paces))]


def update(
    before: Sequence[api.StragglerStatus],
    world: api.RendezvousStatus,
    agents: Mapping[str, Agent],
    present: Collection[str],
    now: float,
) -> list[api.StragglerStatus]:
    """The stragglers of this world, the slowest first. `present`: UIDs of the pods that exist.

    A member that has told nothing in this world yet keeps its record, and so does a pod that was replaced, until it is
    gone. Nobody is judged before half of the members have reported.
    """
    known = {one.uid: one for one in before}
    members = {member.uid for member in world.members}
    paces = read_paces(world, agents)
    if len(paces) < max(2, len(members) / 2):
        paces = ()
    told = {pace.member.uid for pace in paces}
    found = [one for one in before if one.uid in present and (_is_out(one, members) or one.uid in members - told)]
    for pace, others in zip(paces, median_of_others(paces) if paces else (), strict=True):
        old = known.get(pace.member.uid)
        if pace.own_seconds > others * (FACTOR if old is None else STAYS_FACTOR):
            found.append(_record(old, pace, others, now))
    return sorted(found, key=lambda one: -one.slowdown)[:MOST]


def _is_out(one: api.StragglerStatus, members: Collection[str]) -> bool:
    return one.replace_time is not None and one.uid not in members


def _record(old: api.StragglerStatus | None, pace: Pace, others: float, now: float) -> api.StragglerStatus:
    if old is None:
        return api.StragglerStatus(
            rank=pace.rank,
            pod=pace.member.pod,
            uid=pace.member.uid,
            node=pace.member.node or None,
            own_seconds=pace.own_seconds,
            others_seconds=others,
            since=format_time(now),
        )
    if pace.rank == old.rank and abs(pace.own_seconds / max(others, 1e-9) - old.slowdown) < _CHANGE * old.slowdown:
        return old
    return revise(old, rank=pace.rank, own_seconds=pace.own_seconds, others_seconds=others)


def choose_replacement(spec: api.Spec, status: api.Status, now: float) -> list[api.StragglerStatus]:
    """The stragglers, with the time on the one whose replacement begins now."""
    found = status.stragglers
    if spec.health.stragglers is not api.Stragglers.REPLACE:
        return found
    tried = [parse_time(one.replace_time) for one in found]
    swapped = [parse_time(w.time) for w in status.timeline if w.cause == names.Cause.STRAGGLER]
    if any(at is not None and now - at < RETRY_SECONDS for at in (*tried, *swapped)):
        return found
    members = {member.uid for member in status.rendezvous.members}
    worst = next((one for one in found if one.uid in members and pays(one, status)), None)
    return [revise(one, replace_time=format_time(now)) if one is worst else one for one in found]


def pays(one: api.StragglerStatus, status: api.Status) -> bool:
    """Whether the rest of the job gains more by a member like the others than the change costs, as far as is known."""
    remaining = status.progress.estimated_remaining_seconds if status.progress else None
    cost = growth.cost_of_change(status)
    return remaining is None or cost is None or remaining * (one.slowdown - 1) > cost * one.slowdown


@dataclass(frozen=True, slots=True)
class Replaced:
    """The pods (UIDs) whose place another pod takes or has taken, and when that changes by itself."""

    members: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    until: float | None = None  # seconds since the epoch


def find_replaced(spec: api.Spec, status: api.Status, now: float) -> Replaced:
    """Who is being replaced. A search that finds no room ends before capacity is withdrawn: the job keeps its size."""
    members = {member.uid for member in status.rendezvous.members}
    patience = spec.elastic_policy.scaling_timeout_seconds / 2
    begun = {one.uid: at for one in status.stragglers if (at := parse_time(one.replace_time)) is not None}
    sought = frozenset(uid for uid, at in begun.items() if uid in members and at <= now < at + patience)
    changes = [at + seconds for at in begun.values() for seconds in (patience, RETRY_SECONDS)]
    return Replaced(sought, frozenset(begun.keys() - members), min((at for at in changes if now < at), default=None))


def nodes_of(stragglers: Iterable[api.StragglerStatus]) -> tuple[str, ...]:
    """The nodes that their replacements should avoid."""
    return tuple(one.node for one in stragglers if one.replace_time is not None and one.node)
