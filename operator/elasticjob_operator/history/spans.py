"""The spans of a job for OpenTelemetry: one of the job, and below it one of each world. Pure.

Their ids follow from the UID of the job and the number of the world. So a span has the same ones whichever replica and
whichever life of the operator tells of it, and workers know the span of their world.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api.names import Cause
from elasticjob_operator.history import moments
from elasticjob_operator.history.records import Kind
from elasticjob_operator.model.observe import Job
from elasticjob_operator.text import cut
from elasticjob_operator.times import parse_time

ROOT_SPAN: Final = f"{1 << 63:016x}"  # no world has this number
MOST_MEMBERS: Final = 32  # that a span names
TRAINS, BROKE = Kind.TRAINS.value, Kind.BROKE.value
_LONGEST: Final = 256  # characters of a text in a span
_CAUSES: Final = frozenset(Cause)

Value = str | int | float | bool | Sequence[str]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened: an event of a span."""

    time: float
    name: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    trace: str  # 32 hexadecimal digits
    id: str  # 16 of them
    parent: str  # "" for the span of the job
    name: str
    start: float
    end: float
    attributes: Mapping[str, Value]
    error: str = ""  # "" if it ended well
    notes: Sequence[Note] = ()
    left_out: int = 0  # notes


def name_trace(uid: str) -> str:
    """The id of a job's trace: its UID, without the dashes."""
    try:
        return uuid.UUID(uid).hex
    except ValueError:  # API servers make no others
        return uuid.uuid5(uuid.NAMESPACE_OID, uid).hex


def name_world(generation: int) -> str:
    """The id of a world's span."""
    return f"{generation:016x}"


def describe_context(uid: str) -> str:
    """The span of the job, as TRACEPARENT has it (W3C Trace Context)."""
    return f"00-{name_trace(uid)}-{ROOT_SPAN}-01"


def list_ended(job: Job, before: api.Status, after: api.Status | None, now: float) -> tuple[Span, ...]:
    """The spans that have ended between two statuses of a job, without notes. `after`: None if it was deleted."""
    if before.finished:
        return ()
    found = []
    is_over, world = after is None or after.finished, before.rendezvous
    if world.members and (is_over or after is None or _has_left(world, after.rendezvous)):
        found.append(_describe_world(job, before, after or before, _find_end(world.generation, after, now)))
    if is_over:
        found.append(_describe_job(job, after or before, _find_end(world.generation, after, now)))
    return tuple(found)


def _has_left(world: api.RendezvousStatus, after: api.RendezvousStatus) -> bool:
    return after.generation > world.generation or not after.members


def _find_end(generation: int, after: api.Status | None, now: float) -> float:
    if after is None:
        return now
    if after.rendezvous.generation > generation:
        return parse_time(after.rendezvous.formed_time) or now
    return (parse_time(after.completion_time) if after.finished else None) or now


def _describe_world(job: Job, before: api.Status, after: api.Status, end: float) -> Span:
    world, failure = before.rendezvous, after.last_failure
    told = next((w for w in reversed(after.timeline) if w.generation == world.generation), None)
    cause = world.reason if world.reason in _CAUSES else ""
    has_failed = failure is not None and failure.generation == world.generation
    attributes: dict[str, Value | None] = {
        "elasticjob.generation": world.generation,
        "elasticjob.cause": world.reason,
        "elasticjob.who": told.who if told else None,
        "elasticjob.pods": len(world.members),
        "elasticjob.processes": sum(m.nproc for m in world.members),
        "elasticjob.members": [f"{m.pod} on {m.node}" if m.node else m.pod for m in world.members[:MOST_MEMBERS]],
        "elasticjob.lost_seconds": told.lost_seconds if told else None,
        "elasticjob.step": after.progress.step if after.progress else None,
    }
    return Span(
        name_trace(job.uid),
        name_world(world.generation),
        ROOT_SPAN,
        f"world ({cause})" if cause else "world",
        parse_time(world.formed_time) or end,
        end,
        _identify(job) | {name: value for name, value in attributes.items() if value is not None},
        error=cut(f"{failure.reason}: {failure.message}", _LONGEST) if failure and has_failed else "",
    )


def _describe_job(job: Job, last: api.Status, end: float) -> Span:
    failed = last.condition("Failed") if last.is_true("Failed") else None
    attributes: dict[str, Value] = {
        "elasticjob.phase": str(last.phase) if last.finished else "Deleted",
        "elasticjob.worlds": last.rendezvous.generation,
        "elasticjob.training_seconds": last.goodput.training_seconds,
        "elasticjob.lost_seconds": last.goodput.lost_seconds,
        "elasticjob.failures": last.restarts.total + last.restarts.infrastructure,
    }
    return Span(
        name_trace(job.uid),
        ROOT_SPAN,
        "",
        "ElasticJob",
        job.created or parse_time(last.start_time) or end,
        end,
        _identify(job) | attributes,
        error=cut(f"{failed.reason}: {failed.message}", _LONGEST) if failed else "",
    )


def _identify(job: Job) -> dict[str, Value]:
    return {"k8s.namespace.name": job.namespace, "elasticjob.job.name": job.name, "elasticjob.job.uid": job.uid}


def note_event(reason: str, message: str, now: float, *, warning: bool) -> Note:
    """What is also an event of Kubernetes: failures, lost members, and what the operator has decided."""
    return Note(now, reason, {"message": cut(message, _LONGEST), "warning": warning})


def list_turns(before: api.Status, after: api.Status, now: float) -> tuple[Note, ...]:
    """What is no event of Kubernetes: the old world no longer trains, the new one begins to."""
    records = moments.compare(moments.read(before), moments.read(after), now)
    return tuple(Note(r.time, str(r.kind), {}) for r in records if r.kind in (TRAINS, BROKE))


def list_saves(before: api.Status, after: api.Status) -> tuple[tuple[str, float], ...]:
    """The tiers in which a checkpoint was finished meanwhile, and when."""
    old = {c.tier: c.time for c in before.progress.checkpoints} if before.progress else {}
    new = after.progress.checkpoints if after.progress else ()
    return tuple((c.tier, at) for c in new if old.get(c.tier) != c.time and (at := parse_time(c.time)) is not None)
