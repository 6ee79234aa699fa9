"""Faulty nodes, remembered across jobs: a score from the faults in the statuses of all jobs. Pure.

The statuses are the memory: an operator that starts anew finds them, and nothing else has to be written. A job that is
deleted takes its part with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.times import format_time, parse_time

HALF_LIFE_SECONDS: Final = 6 * 3600.0
MOST_OF_A_JOB: Final = 2  # faults of one node that one job can hold against it, so that no tenant can discredit nodes
PROOF: Final = 2  # what a single fault counts that leaves no doubt about the node
_LEAST_SCORE: Final = 0.1
_MOST_NODES: Final = 50
_MOST_OF_A_STATUS: Final = 20


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What all jobs together know of one node."""

    node: str
    score: float  # faults, each of which counts half after HALF_LIFE_SECONDS
    faults: int
    last: float  # seconds since the epoch
    jobs: tuple[str, ...]

    @property
    def is_faulty(self) -> bool:
        """Whether new pods of all jobs should avoid it: two recent faults, or more that are older."""
        return self.score > 1.0


def note(faults: Sequence[api.NodeFault], node: str, now: float, count: int = 1) -> list[api.NodeFault]:
    """The faults in a job's status with `count` more of this node, without those that no longer matter."""
    kept = [
        fault for fault in faults if fault.node != node and _weigh(fault.count, fault.last_time, now) >= _LEAST_SCORE
    ]
    before = sum(round(_weigh(fault.count, fault.last_time, now)) for fault in faults if fault.node == node)
    return [*kept, api.NodeFault(node=node, count=before + count, last_time=format_time(now))][-_MOST_OF_A_STATUS:]


def _weigh(count: int, last_time: str, now: float) -> float:
    return count * _fade(now - (parse_time(last_time) or 0.0))


def _fade(age: float) -> float:
    """What a fault of this age (seconds) still counts."""
    return float(0.5 ** (max(0.0, age) / HALF_LIFE_SECONDS))


def remember(jobs: Iterable[tuple[str, Sequence[api.NodeFault]]], now: float) -> tuple[NodeRecord, ...]:
    """The nodes with faults, the worst first. `jobs`: names, and the faults in their statuses."""
    found: dict[str, list[tuple[str, int, float]]] = {}
    for job, faults in jobs:
        for fault in faults:
            if fault.count > 0:
                found.setdefault(fault.node, []).append((job, fault.count, parse_time(fault.last_time) or 0.0))
    records = [_record(node, told, now) for node, told in found.items()]
    kept = [record for record in records if record.score >= _LEAST_SCORE]
    return tuple(sorted(kept, key=lambda record: (-record.score, record.node))[:_MOST_NODES])


def _record(node: str, told: Sequence[tuple[str, int, float]], now: float) -> NodeRecord:
    score = sum(min(count, MOST_OF_A_JOB) * _fade(now - at) for _, count, at in told)
    return NodeRecord(
        node=node,
        score=score,
        faults=sum(count for _, count, _ in told),
        last=max(at for _, _, at in told),
        jobs=tuple(sorted(job for job, _, _ in told)),
    )


def choose_taints(nodes: Mapping[str, bool], faulty: Collection[str]) -> dict[str, bool]:
    """The nodes to change: whether each gets the taint, or loses it. `nodes`: all of them, and whether they have it."""
    return {name: name in faulty for name, has_it in nodes.items() if has_it != (name in faulty)}


def with_taint(taints: Sequence[Mapping[str, Any]], wanted: bool) -> list[Mapping[str, Any]]:
    """The taints of a node with the one that says that it is faulty, or without it."""
    others = [taint for taint in taints if taint.get("key") != names.TAINT_FAULTY]
    return [*others, {"key": names.TAINT_FAULTY, "effect": "PreferNoSchedule"}] if wanted else others


def names_of(records: Iterable[NodeRecord]) -> tuple[str, ...]:
    """The nodes that new pods should avoid, in alphabetical order."""
    return tuple(sorted(record.node for record in records if record.is_faulty))
