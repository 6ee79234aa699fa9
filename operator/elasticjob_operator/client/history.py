"""The history of a job: its worlds, progress and failures, combined from samples and events.

Pure. Events cover the time before the first sample, as far back as the API server keeps them (an hour by default).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from elasticjob_operator import api, numerals
from elasticjob_operator.api import names
from elasticjob_operator.client.model import Happening
from elasticjob_operator.client.samples import (
    Sample,
    format_sample,
    goodput_seconds,
    is_news,
    read_recording,
    take_sample,
    thin,
)
from elasticjob_operator.history import moments
from elasticjob_operator.history.moments import Moment
from elasticjob_operator.history.records import Kind
from elasticjob_operator.times import parse_time

__all__ = [
    "History",
    "Point",
    "Sample",
    "Stay",
    "World",
    "build_history",
    "format_sample",
    "goodput_seconds",
    "is_news",
    "list_reports",
    "read_recording",
    "read_sizes",
    "take_sample",
    "thin",
]

_WORLD_EVENT: Final = re.compile(
    r"generation (?P<generation>[0-9]{1,16}) (?:from (?P<old>[0-9]{1,16}) to|with) (?P<size>[0-9]{1,16}) pods?"
    r"(?:: (?P<why>.*))?"
)
_WORLDS: Final = ("WorldFormed", "WorldChanged")
_ENDS: Final = ("Completed", "Failed", "Suspended")
SIZE_REASONS: Final = frozenset({*_WORLDS, *_ENDS})  # of the events from which `read_sizes` reads
_NOTABLE: Final = frozenset(
    {"MemberLost", "WorkerFailed", "Straggler", "CorruptState", "Failed", "Completed", "Suspended", "Resumed"}
)


@dataclass(frozen=True)
class World:
    """One generation: when it was formed, its number of pods, the cause, and the cost of the change in seconds."""

    generation: int
    time: float | None
    size: int
    cause: str
    seconds: float | None = None
    who: str = ""  # the rank or the pods that caused it


@dataclass(frozen=True)
class Point:
    time: float
    value: float


@dataclass(frozen=True)
class Report:
    """What the script said, as the status remembers it."""

    time: float
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stay:
    """A pod's time in the world at one rank (of the pod, among pods)."""

    rank: int
    pod: str
    node: str
    start: float
    end: float
    generations: tuple[int, int]  # the first and the last of them


@dataclass(frozen=True)
class History:
    start: float | None
    end: float | None
    worlds: tuple[World, ...]
    sizes: tuple[Point, ...]  # a step function: the size from this time on; 0 while nothing trains
    throughput: tuple[Point, ...]  # steps per second
    metrics: dict[str, tuple[Point, ...]]  # over time
    notable: tuple[Happening, ...]
    stays: tuple[Stay, ...] = ()  # by rank and time, of the worlds that samples saw
    lost: Mapping[str, float] = field(default_factory=dict)  # seconds by category; they add up to all lost time


def list_worlds(status: api.Status) -> tuple[World, ...]:
    """The worlds of the job's own timeline: the last fifty."""
    return tuple(
        World(w.generation, parse_time(w.time), w.size, names.describe_cause(w.cause), w.lost_seconds, w.who or "")
        for w in status.timeline
    )


def list_reports(status: api.Status) -> tuple[Report, ...]:
    """The reports that the job's status remembers."""
    past = status.progress.history if status.progress is not None else None
    return tuple(
        Report(time, one.step, one.metrics)
        for one in (past.reports if past is not None else ())
        if (time := parse_time(one.time)) is not None
    )


def build_history(
    samples: Sequence[Sample],
    events: Iterable[Happening],
    start: float | None = None,
    timeline: Iterable[World] = (),
    reports: Sequence[Report] = (),
) -> History:
    """Where the timeline of the status has a world, it has the last word about it. `reports`: those of its memory."""
    happenings = sorted(events, key=lambda h: h.time or 0.0)
    ordered = sorted(samples, key=lambda s: s.time)
    found = {w.generation: w for w in _merge_worlds(_worlds_of_events(happenings), _worlds_of_samples(ordered))}
    worlds = tuple(world for _, world in sorted((found | {w.generation: w for w in timeline}).items()))
    times = [w.time for w in worlds if w.time] + [s.time for s in ordered] + [h.time for h in happenings if h.time]
    times += [report.time for report in reports]
    end = max(times, default=None)
    return History(
        start=min([*times, *([start] if start else [])], default=None),
        end=end,
        worlds=worlds,
        sizes=_sizes(worlds, ordered, happenings),
        throughput=_throughput(ordered, reports),
        metrics=_metrics(ordered, reports),
        notable=tuple(h for h in happenings if h.reason in _NOTABLE),
        stays=_stays(ordered, end or 0.0),
        lost=_lost(ordered),
    )


def read_sizes(events: Iterable[dict[str, Any]]) -> dict[str, tuple[Point, ...]]:
    """The world sizes of jobs over time, by UID, from the raw events of jobs."""
    by_job: dict[str, list[Happening]] = {}
    for raw in events:
        by_job.setdefault(str((raw.get("involvedObject") or {}).get("uid")), []).append(Happening.parse(raw))
    return {uid: build_history([], found).sizes for uid, found in by_job.items()}


def _worlds_of_events(events: Iterable[Happening]) -> dict[int, World]:
    found: dict[int, World] = {}
    for event in events:
        match = _WORLD_EVENT.search(event.message) if event.reason in _WORLDS else None
        if match:
            generation, size = (numerals.read_count(match[name]) or 0 for name in ("generation", "size"))
            found[generation] = World(generation, event.time, size, match["why"] or "")
    return found


def _worlds_of_samples(samples: Sequence[Sample]) -> dict[int, World]:
    """`seconds` is the recovery time that the status reports when this generation begins to train."""
    found: dict[int, World] = {}
    before = Moment()
    for sample in samples:
        after = _moment_of(sample)
        if before.generation != after.generation:
            before = Moment()  # the samples in between are missing
        for record in moments.compare(before, after, sample.time):
            world = found.get(record.generation)
            if record.kind is Kind.FORMED and world is None:
                found[record.generation] = World(record.generation, record.time, record.size, record.cause)
            elif record.kind is Kind.TRAINS and world is not None and world.seconds is None:
                found[record.generation] = replace(world, seconds=record.seconds)
        before = after
    return found


def _moment_of(sample: Sample) -> Moment:
    return Moment(
        phase=sample.phase,
        generation=sample.generation,
        size=sample.world_size,
        members=0,  # a record lists them all, and nothing here needs the list
        cause=sample.cause,
        formed=sample.formed,
        training=sample.training,
        recovery_seconds=sample.recovery_seconds,
    )


def _merge_worlds(events: dict[int, World], samples: dict[int, World]) -> tuple[World, ...]:
    merged = []
    for generation in sorted(events.keys() | samples.keys()):
        event, sample = events.get(generation), samples.get(generation)
        first = sample or event
        assert first is not None
        cause = (event.cause if event else "") or first.cause
        time = min((w.time for w in (event, sample) if w and w.time is not None), default=None)
        size = first.size or (event.size if event else 0)  # a finished job has no world
        merged.append(World(generation, time, size, cause, sample.seconds if sample else None))
    return tuple(merged)


def _sizes(worlds: Sequence[World], samples: Sequence[Sample], events: Sequence[Happening]) -> tuple[Point, ...]:
    # A world counts from when it starts to train; if the samples missed that, from when it was formed.
    ended = ("Complete", "Failed", "Suspended")
    starting = {s.generation for s in samples if not s.training and s.phase not in ended}
    points = [Point(w.time, w.size) for w in worlds if w.time is not None and w.generation not in starting]
    points += [Point(s.time, s.world_size if s.training else 0) for s in samples if s.generation or s.world_size]
    points += [Point(h.time, 0) for h in events if h.reason in _ENDS and h.time is not None]
    points.sort(key=lambda p: p.time)
    kept: list[Point] = []
    for point in points:
        if not kept or kept[-1].value != point.value:
            kept.append(point)
    return tuple(kept)


def _progress(samples: Sequence[Sample], reports: Sequence[Report]) -> list[tuple[float, int]]:
    """(time of the report, step), each report once."""
    found = {report.time: report.step for report in reports}
    for sample in samples:
        if sample.step is not None:
            found[sample.progress_time or sample.time] = sample.step
    return sorted(found.items())


def _throughput(samples: Sequence[Sample], reports: Sequence[Report]) -> tuple[Point, ...]:
    """Steps per second between two reports; a step back (a restart from a checkpoint) counts as none."""
    return tuple(
        Point(later, max(0.0, (high - low) / (later - earlier)))
        for (earlier, low), (later, high) in pairwise(_progress(samples, reports))
        if later > earlier
    )


def _metrics(samples: Sequence[Sample], reports: Sequence[Report]) -> dict[str, tuple[Point, ...]]:
    found: dict[str, dict[float, float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            found.setdefault(name, {})[report.time] = value
    for sample in samples:
        for name, value in (sample.metrics | dict.fromkeys(sample.not_finite, math.nan)).items():
            found.setdefault(name, {})[sample.progress_time or sample.time] = value
    return {
        name: tuple(Point(t, v) for t, v in sorted(values.items()))
        for name, values in sorted(found.items(), key=lambda item: (item[0] != "loss", item[0]))
    }


def _stays(samples: Sequence[Sample], end: float) -> tuple[Stay, ...]:
    """Who was in the world at which rank, from when to when. A world holds from one sample to the next."""
    members: list[list[str]] = []
    known = 0
    found: list[Stay] = []
    latest: dict[int, Stay] = {}  # by rank; their ends are not set yet
    before: tuple[int, list[list[str]]] = (0, [])
    until = 0.0
    for i, sample in enumerate(samples):
        if sample.members:
            members, known = sample.members, sample.members_of
        present = members if sample.world_size and sample.generation == known else []
        formed = sample.formed or sample.time
        begin = max(formed, samples[i - 1].time) if i else formed
        ended, until = until, samples[i + 1].time if i + 1 < len(samples) else max(end, sample.time)
        if (sample.generation, present) == before:
            continue  # most samples: only time goes by
        before = (sample.generation, present)
        for rank, (pod, node) in enumerate(present):
            stay = latest.get(rank)
            if stay is not None and (stay.pod, stay.node) == (pod, node):
                latest[rank] = replace(stay, generations=(stay.generations[0], sample.generation))
                continue
            if stay is not None:
                found.append(replace(stay, end=min(ended, begin)))
            latest[rank] = Stay(rank, pod, node, begin, begin, (sample.generation, sample.generation))
        found += [replace(latest.pop(rank), end=ended) for rank in [*latest] if rank >= len(present)]
    found += [replace(stay, end=until) for stay in latest.values()]
    return tuple(sorted(found, key=lambda stay: (stay.rank, stay.start)))


OPEN: Final = "open"  # not booked in the status yet, because no world trains since


def _lost(samples: Sequence[Sample]) -> dict[str, float]:
    """Lost seconds by category (`goodput.Loss`), as the status books them, and the rest as `OPEN`."""
    if not samples:
        return {}
    last = samples[-1]
    unbooked = round(last.lost_seconds - sum(last.lost.values()), 3)
    return last.lost | ({OPEN: unbooked} if unbooked > 0 else {})
