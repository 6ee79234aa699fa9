"""Compares two statuses of a job, and returns the records for events, metrics and reports. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.history import goodput
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.times import parse_time

_ENDS = (("Suspended", Kind.SUSPENDED), ("Complete", Kind.COMPLETED), ("Failed", Kind.GAVE_UP))


@dataclass(frozen=True, slots=True)
class Straggler:
    """A slow member, without the numbers that change."""

    rank: int
    pod: str
    node: str
    slowdown: float  # how many times as slow as the others


@dataclass(frozen=True, slots=True)
class Told:
    """The last report of a script."""

    at: float | None = None
    step: int | None = None
    total_steps: int | None = None
    step_seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    saved: tuple[tuple[str, float], ...] = ()  # (tier, when) of the last checkpoints
    metrics: tuple[tuple[str, float], ...] = ()  # the script's own; NaN also for infinite ones


@dataclass(frozen=True, slots=True)
class Moment:
    """The part of a status that matters for the history; small, so that it can be kept for every job."""

    phase: str = api.Phase.PENDING.value
    generation: int = 0
    size: int = 0  # pods of the world; 0 while there is none
    members: int = 0  # pods of the last world
    cause: str = ""
    formed: float | None = None
    training: bool = False
    training_seconds: float = 0.0
    lost_seconds: float = 0.0
    since: float | None = None  # since when it has been training or not; None while time does not count
    recovery_seconds: float | None = None  # the last one
    lost: tuple[tuple[str, float], ...] = ()  # (category, seconds)
    faults: int = 0
    mean_recovery_seconds: float | None = None
    mean_seconds_between_faults: float | None = None
    charged: int = 0  # charged failures, in total
    free: int = 0  # free failures, of infrastructure
    budget: int = 0  # failures that count against maxRestarts now
    failure: tuple[str, str, int | None] = ("", "", None)  # reason, message and rank of the last one
    stragglers: tuple[Straggler, ...] = ()
    incidents: tuple[tuple[str, int, str], ...] = ()  # (rule, how many, what the last one was)
    links: tuple[tuple[str, float, float], ...] = ()  # (node, seconds of a round trip, bytes per second)
    conditions: tuple[tuple[str, str, str], ...] = ()  # (type, reason, message) of those that are true
    told: Told | None = None  # what the script has reported
    archive_seconds: int | None = None  # between two saves in its archive, as the job asks for; None: it has none

    def seconds_until(self, now: float) -> tuple[float, float]:
        """(trained, lost) in seconds up to now; the status itself is updated only at changes."""
        return goodput.add_stretch(self.training, self.training_seconds, self.lost_seconds, self.since, now)

    def find(self, type: str) -> tuple[str, str] | None:
        """(reason, message) of a condition that is true."""
        return next(((reason, message) for name, reason, message in self.conditions if name == type), None)


def read(status: api.Status) -> Moment:
    world, booked, last = status.rendezvous, status.goodput, status.last_failure
    return Moment(
        phase=str(status.phase or api.Phase.PENDING),
        generation=world.generation,
        size=world.world_size,
        members=len(world.members),
        cause=world.reason or "",
        formed=parse_time(world.formed_time),
        training=booked.training,
        training_seconds=booked.training_seconds,
        lost_seconds=booked.lost_seconds,
        since=goodput.open_since(status),
        recovery_seconds=booked.last_recovery_seconds,
        lost=goodput.list_losses(status),
        faults=booked.faults,
        mean_recovery_seconds=booked.mean_recovery_seconds,
        mean_seconds_between_faults=booked.mean_seconds_between_faults,
        charged=status.restarts.total,
        free=status.restarts.infrastructure,
        budget=status.restarts.user,
        failure=(last.reason or "", last.message or "", last.rank) if last else ("", "", None),
        stragglers=tuple(Straggler(s.rank, s.pod, s.node or "", s.slowdown) for s in status.stragglers),
        incidents=tuple((i.rule, i.count, i.message) for i in status.incidents if i.count),
        links=tuple((p.node, p.round_trip_seconds or 0.0, float(p.bytes_per_second or 0)) for p in status.preflight),
        conditions=tuple((c.type, c.reason, c.message) for c in status.conditions if c.status == "True"),
        told=None if status.progress is None else _read_progress(status.progress),
    )


def _read_progress(progress: api.ProgressStatus) -> Told:
    saved = {one.tier: at for one in progress.checkpoints if (at := parse_time(one.time)) is not None}
    return Told(
        at=parse_time(progress.last_update_time),
        step=progress.step,
        total_steps=progress.total_steps,
        step_seconds=progress.step_seconds,
        samples_per_second=progress.samples_per_second,
        tokens_per_second=progress.tokens_per_second,
        mfu=progress.mfu,
        saved=tuple(saved.items()),
        metrics=(
            *((one.name, one.value) for one in progress.metrics),
            *((name, math.nan) for name in progress.not_finite),
        ),
    )


def compare(before: Moment, after: Moment, now: float) -> tuple[Record, ...]:
    """The records between two moments, in the order in which they are reported."""
    found: list[Record] = []
    grown = after.generation - before.generation
    if grown > 0:
        ranks, at = tuple(range(after.members)), after.formed or now
        found.append(
            Record(Kind.FORMED, at, after.generation, after.cause, ranks, after.size, before.members, count=grown)
        )
    if after.training and not before.training:
        seconds = after.recovery_seconds if after.generation > 1 else None
        found.append(Record(Kind.TRAINS, now, after.generation, after.cause, size=after.size, seconds=seconds))
    if before.training and not after.training:
        found.append(Record(Kind.BROKE, now, after.generation, after.cause))
    if after.charged > before.charged:
        reason, message, rank = after.failure
        told = f"restart {after.budget} charged: {message}" if message else ""
        ranks = () if rank is None else (rank,)
        count = after.charged - before.charged
        found.append(Record(Kind.FAILED, now, after.generation, reason, ranks, count=count, message=told))
    if after.free > before.free:
        reason, message, rank = after.failure
        ranks = () if rank is None else (rank,)
        count = after.free - before.free
        found.append(Record(Kind.FORGIVEN, now, after.generation, reason, ranks, count=count, message=message))
    known = {one.pod for one in before.stragglers}
    found += [
        Record(
            Kind.STRAGGLES,
            now,
            after.generation,
            ranks=(one.rank,),
            who=f"{one.pod} on {one.node}" if one.node else one.pod,
            message=f"rank {one.rank} is {one.slowdown:.1f} times as slow as the others",
        )
        for one in after.stragglers
        if one.pod not in known
    ]
    counted = {rule: count for rule, count, _ in before.incidents}
    found += [
        Record(Kind.SICK, now, after.generation, "RuleFired", message=f"{rule}: {message}")
        for rule, count, message in after.incidents
        if count > counted.get(rule, 0)
    ]
    return (*found, *_compare_conditions(before, after, now))


def _compare_conditions(before: Moment, after: Moment, now: float) -> Sequence[Record]:
    found: list[Record] = []
    for type, kind in _ENDS:
        fresh = after.find(type)
        if fresh and not before.find(type):
            found.append(Record(kind, now, after.generation, fresh[0], message=fresh[1]))
    if before.find("Suspended") and not after.find("Suspended"):
        found.append(Record(Kind.RESUMED, now, after.generation))
    stuck = after.find("NoProgress")
    if stuck and not before.find("NoProgress"):
        found.append(Record(Kind.STUCK, now, after.generation, stuck[0], message=stuck[1]))
    degraded, was = after.find("Degraded"), before.find("Degraded")
    if degraded and degraded[0] not in ("BelowWanted", was[0] if was else ""):
        found.append(Record(Kind.DEGRADED, now, after.generation, degraded[0], message=degraded[1]))
    return found
