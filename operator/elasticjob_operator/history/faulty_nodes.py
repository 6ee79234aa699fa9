"""Faulty nodes, remembered across jobs: a score from the faults in the statuses of all jobs. Pure.

The statuses are the memory: an operator that starts anew finds them, and nothing else has to be written. A job that is
deleted takes its part with it.

What a job holds against a node is what its pods have said, and a pod can say anything. It counts for the jobs of its
own namespace; for others only if two namespaces say it, and then as a suspicion, which must not leave them without a
node. Where more nodes are discredited than a list has places, namespaces take turns, each with the one that is worst by
its own word: however many two of them forge, they take no more places from others than these have themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.times import format_time, parse_time

HALF_LIFE_SECONDS: Final = 6 * 3600.0
MOST_OF_A_JOB: Final = 2  # faults of one node that one job can hold against it
WITNESSES: Final = 2  # namespaces that have to agree before the others avoid a node
_LEAST_WITNESS: Final = 0.5  # what a namespace has to hold against it
PROOF: Final = 2  # what a single fault counts that leaves no doubt about the node
_LEAST_SCORE: Final = 0.1
MOST_NODES: Final = 50
_FAULTY: Final = 1.0
MOST_OF_A_STATUS: Final = 20


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What all jobs together know of one node."""

    node: str
    score: float  # faults, each of which counts half after HALF_LIFE_SECONDS
    faults: int
    last: float  # seconds since the epoch
    jobs: tuple[str, ...]
    by_namespace: Mapping[str, float]  # the score, by who says so

    @property
    def is_faulty(self) -> bool:
        """Whether somebody's new pods should avoid it: two recent faults, or more that are older."""
        return self.score > _FAULTY

    @property
    def is_agreed(self) -> bool:
        """Whether those of all namespaces should."""
        return self.is_faulty and sum(score >= _LEAST_WITNESS for score in self.by_namespace.values()) >= WITNESSES


@dataclass(frozen=True, slots=True)
class Suspects:
    """The nodes to avoid: for the jobs of one namespace each, and for all."""

    by_namespace: Mapping[str, tuple[str, ...]]
    agreed: tuple[str, ...]


def note(faults: Sequence[api.NodeFault], node: str, now: float, count: int = 1) -> list[api.NodeFault]:
    """The faults in a job's status with `count` more of this node, without those that no longer matter."""
    kept = [
        fault for fault in faults if fault.node != node and _weigh(fault.count, fault.last_time, now) >= _LEAST_SCORE
    ]
    before = sum(round(_weigh(fault.count, fault.last_time, now)) for fault in faults if fault.node == node)
    return [*kept, api.NodeFault(node=node, count=before + count, last_time=format_time(now))][-MOST_OF_A_STATUS:]


def _weigh(count: int, last_time: str, now: float) -> float:
    return count * _fade(now - (parse_time(last_time) or 0.0))


def _fade(age: float) -> float:
    """What a fault of this age (seconds) still counts."""
    return float(0.5 ** (max(0.0, age) / HALF_LIFE_SECONDS))


def remember(jobs: Iterable[tuple[str, Sequence[api.NodeFault]]], now: float) -> tuple[NodeRecord, ...]:
    """The nodes with faults, the worst first. `jobs`: `namespace/name`, and the faults in their statuses."""
    return tuple(_choose(_find_records(jobs, now)))


def find_suspects(
    jobs: Iterable[tuple[str, Sequence[api.NodeFault]]], now: float, counts: Callable[[str, float], bool]
) -> Suspects:
    """Who should avoid which nodes. Those that do not exist, or that others have seen, displace none.

    `counts`: whether what a node of this name had at this time still matters, because it is there and was then.
    """
    records = [record for record in _find_records(jobs, now, counts) if record.is_faulty]
    held: dict[str, list[tuple[float, str]]] = {}
    for record in records:
        for namespace, score in record.by_namespace.items():
            if score > _FAULTY:
                held.setdefault(namespace, []).append((-score, record.node))
    worst = {namespace: sorted(nodes)[:MOST_NODES] for namespace, nodes in held.items()}
    return Suspects(
        {namespace: tuple(sorted(node for _, node in nodes)) for namespace, nodes in worst.items()},
        tuple(sorted(record.node for record in _choose([record for record in records if record.is_agreed]))),
    )


def _choose(records: Sequence[NodeRecord]) -> list[NodeRecord]:
    """As many as a list has places, in the same order: namespaces take turns, each with its worst."""
    if len(records) <= MOST_NODES:
        return list(records)
    told: dict[str, list[tuple[float, str]]] = {}
    for record in records:
        for namespace, score in record.by_namespace.items():
            told.setdefault(namespace, []).append((-score, record.node))
    rounds = itertools.zip_longest(*(sorted(nodes)[:MOST_NODES] for _, nodes in sorted(told.items())))
    turns = dict.fromkeys(one[1] for turn in rounds for one in turn if one is not None)
    chosen = frozenset(itertools.islice(turns, MOST_NODES))
    return [record for record in records if record.node in chosen]


def _find_records(
    jobs: Iterable[tuple[str, Sequence[api.NodeFault]]],
    now: float,
    counts: Callable[[str, float], bool] = lambda node, at: True,
) -> list[NodeRecord]:
    found: dict[str, list[tuple[str, int, float]]] = {}
    for job, faults in jobs:
        for fault in faults:
            at = parse_time(fault.last_time) or 0.0
            if fault.count > 0 and counts(fault.node, at):
                found.setdefault(fault.node, []).append((job, fault.count, at))
    records = [_record(node, told, now) for node, told in found.items()]
    kept = [record for record in records if record.score >= _LEAST_SCORE]
    return sorted(kept, key=lambda record: (-record.score, record.node))


def _record(node: str, told: Sequence[tuple[str, int, float]], now: float) -> NodeRecord:
    by_namespace: dict[str, float] = {}
    for job, count, at in told:
        namespace = job.partition("/")[0]
        by_namespace[namespace] = by_namespace.get(namespace, 0.0) + min(count, MOST_OF_A_JOB) * _fade(now - at)
    return NodeRecord(
        node=node,
        score=sum(by_namespace.values()),
        faults=sum(count for _, count, _ in told),
        last=max(at for _, _, at in told),
        jobs=tuple(sorted(job for job, _, _ in told)),
        by_namespace=by_namespace,
    )


def choose_marks(nodes: Mapping[str, bool], faulty: Collection[str]) -> dict[str, bool]:
    """The nodes to change: whether each gets the mark, or loses it. `nodes`: all of them, and whether they have it."""
    return {name: name in faulty for name, has_it in nodes.items() if has_it != (name in faulty)}


def with_taint(taints: Sequence[Mapping[str, Any]], wanted: bool) -> list[Mapping[str, Any]]:
    """The taints of a node with the one that says that it is faulty, or without it."""
    others = [taint for taint in taints if taint.get("key") != names.TAINT_FAULTY]
    return [*others, {"key": names.TAINT_FAULTY, "effect": "PreferNoSchedule"}] if wanted else others


def build_condition(wanted: bool, now: float) -> Mapping[str, Any]:
    """What a node says of itself to controllers that repair nodes. It names no tenant: whoever reads nodes reads it."""
    reason, message = (
        ("JobsFailed", f"jobs of at least {WITNESSES} namespaces have failed because of this node in the last hours")
        if wanted
        else ("NoRecentFailures", "")
    )
    time = format_time(now)
    return {
        "type": names.CONDITION_FAULTY,
        "status": "True" if wanted else "False",
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": time,
        "lastTransitionTime": time,
    }


def names_of(records: Iterable[NodeRecord]) -> tuple[str, ...]:
    """The nodes that new pods should avoid, in alphabetical order."""
    return tuple(sorted(record.node for record in records if record.is_faulty))
