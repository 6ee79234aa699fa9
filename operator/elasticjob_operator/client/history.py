"""The history of a job: its worlds, progress and failures, combined from samples and events.

Pure. A `Sample` is the status at one time; a recording is a file of samples, one JSON object per line. Events cover the
time before the first sample, as far back as the API server keeps them (an hour by default).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.client.model import Happening, Job, parse_time
from elasticjob_operator.history import timeline
from elasticjob_operator.history.records import Kind
from elasticjob_operator.history.timeline import Moment

_WORLD_EVENT: Final = re.compile(
    r"generation (?P<generation>\d+) (?:from (?P<old>\d+) to|with) (?P<size>\d+) pods?(?:: (?P<why>.*))?"
)
_NOTABLE: Final = ("MemberLost", "WorkerFailed", "Failed", "Completed", "Suspended", "Resumed")


@dataclass(frozen=True)
class Sample:
    """The status at `time`, in seconds since 1970."""

    time: float
    phase: str
    generation: int = 0
    world_size: int = 0
    processes: int = 0
    training: bool = False
    formed: float | None = None
    cause: str = ""
    step: int | None = None
    total_steps: int | None = None
    progress_time: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    training_seconds: float = 0.0
    lost_seconds: float = 0.0
    recovery_seconds: float | None = None
    restarts: int = 0
    measured: str = api.Measured.FORMATION.value  # the point from which a world counts as training


@dataclass(frozen=True)
class World:
    """One generation: when it was formed, its number of pods, the cause, and the cost of the change in seconds."""

    generation: int
    time: float | None
    size: int
    cause: str
    seconds: float | None = None


@dataclass(frozen=True)
class Point:
    time: float
    value: float


@dataclass(frozen=True)
class History:
    start: float | None
    end: float | None
    worlds: tuple[World, ...]
    sizes: tuple[Point, ...]  # a step function: the size from this time on; 0 while nothing trains
    throughput: tuple[Point, ...]  # steps per second
    metrics: dict[str, tuple[Point, ...]]  # over time
    notable: tuple[Happening, ...]


def take_sample(job: Job, now: float) -> Sample:
    status = job.status
    world, goodput, progress = status.rendezvous, status.goodput, status.progress
    trained, lost = goodput_seconds(job, now)
    return Sample(
        time=now,
        phase=job.phase,
        generation=world.generation,
        world_size=world.world_size,
        processes=world.processes,
        training=goodput.training,
        formed=parse_time(world.formed_time),
        cause=names.describe_cause(world.reason),
        step=progress.step if progress else None,
        total_steps=progress.total_steps if progress else None,
        progress_time=parse_time(progress.last_update_time) if progress else None,
        metrics={m.name: m.value for m in progress.metrics} if progress else {},
        training_seconds=round(trained, 3),
        lost_seconds=round(lost, 3),
        measured=goodput.measured.value,
        recovery_seconds=goodput.last_recovery_seconds,
        restarts=status.restarts.total,
    )


def goodput_seconds(job: Job, now: float) -> tuple[float, float]:
    """(training, lost) seconds until now."""
    return timeline.read(job.status).seconds_until(now)


def format_sample(sample: Sample) -> str:
    """One line of a recording."""
    return json.dumps(asdict(sample), separators=(",", ":"))


def read_recording(text: str) -> list[Sample]:
    """The samples of a recording; a truncated last line is ignored. Raises ValueError, which names the line."""
    known = {f.name for f in fields(Sample)}
    samples: list[Sample] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values: dict[str, Any] = json.loads(line)
            samples.append(Sample(**{k: v for k, v in values.items() if k in known}))
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise ValueError(f"line {number} is not a sample of a recording: {error}") from None
    return samples


def is_news(before: Sample | None, after: Sample) -> bool:
    """Whether a sample differs from the one before in more than the elapsed time."""
    if before is None:
        return True
    clock = {"time", "training_seconds", "lost_seconds"}
    return any(getattr(before, f.name) != getattr(after, f.name) for f in fields(Sample) if f.name not in clock)


def build_history(samples: Sequence[Sample], events: Iterable[Happening], start: float | None = None) -> History:
    happenings = sorted(events, key=lambda h: h.time or 0.0)
    ordered = sorted(samples, key=lambda s: s.time)
    worlds = _merge_worlds(_worlds_of_events(happenings), _worlds_of_samples(ordered))
    times = [w.time for w in worlds if w.time] + [s.time for s in ordered] + [h.time for h in happenings if h.time]
    return History(
        start=min([*times, *([start] if start else [])], default=None),
        end=max(times, default=None),
        worlds=worlds,
        sizes=_sizes(worlds, ordered, happenings),
        throughput=_throughput(ordered),
        metrics=_metrics(ordered),
        notable=tuple(h for h in happenings if h.reason in _NOTABLE),
    )


def _worlds_of_events(events: Iterable[Happening]) -> dict[int, World]:
    found: dict[int, World] = {}
    for event in events:
        match = _WORLD_EVENT.search(event.message) if event.reason in ("WorldFormed", "WorldChanged") else None
        if match:
            generation = int(match["generation"])
            found[generation] = World(generation, event.time, int(match["size"]), match["why"] or "")
    return found


def _worlds_of_samples(samples: Sequence[Sample]) -> dict[int, World]:
    """`seconds` is the recovery time that the status reports when this generation begins to train."""
    found: dict[int, World] = {}
    before = Moment()
    for sample in samples:
        after = _moment_of(sample)
        if before.generation != after.generation:
            before = Moment()  # the samples in between are missing
        for record in timeline.compare(before, after, sample.time):
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
        members=sample.world_size,
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
    ends = ("Completed", "Failed", "Suspended")
    points += [Point(h.time, 0) for h in events if h.reason in ends and h.time is not None]
    points.sort(key=lambda p: p.time)
    kept: list[Point] = []
    for point in points:
        if not kept or kept[-1].value != point.value:
            kept.append(point)
    return tuple(kept)


def _progress(samples: Sequence[Sample]) -> list[tuple[float, int]]:
    """(time of the report, step), each report once."""
    found: dict[float, int] = {}
    for sample in samples:
        if sample.step is not None:
            found[sample.progress_time or sample.time] = sample.step
    return sorted(found.items())


def _throughput(samples: Sequence[Sample]) -> tuple[Point, ...]:
    """Steps per second between two reports; a step back (a restart from a checkpoint) counts as none."""
    return tuple(
        Point(later, max(0.0, (high - low) / (later - earlier)))
        for (earlier, low), (later, high) in pairwise(_progress(samples))
        if later > earlier
    )


def _metrics(samples: Sequence[Sample]) -> dict[str, tuple[Point, ...]]:
    found: dict[str, dict[float, float]] = {}
    for sample in samples:
        for name, value in sample.metrics.items():
            found.setdefault(name, {})[sample.progress_time or sample.time] = value
    return {
        name: tuple(Point(t, v) for t, v in sorted(values.items()))
        for name, values in sorted(found.items(), key=lambda item: (item[0] != "loss", item[0]))
    }
