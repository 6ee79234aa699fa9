"""Samples of a job: its status at one time. A recording is a file of samples, one JSON object per line. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

import pydantic

from elasticjob_operator import api, numerals
from elasticjob_operator.api import names
from elasticjob_operator.client.model import Job
from elasticjob_operator.history import moments
from elasticjob_operator.history.goodput import list_losses
from elasticjob_operator.times import parse_time

MOST_MEMBERS: Final = 64  # a picture of more ranks cannot be read


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
    members: list[list[str]] = field(default_factory=list)  # [pod, node] by rank, at the first sight of a world
    members_of: int = 0  # the generation whose members were written, here or before; 0 while there is no world
    measured: str = api.Measured.FORMATION.value  # the point from which a world counts as training
    lost: dict[str, float] = field(default_factory=dict)  # lost seconds that are accounted for, by category
    not_finite: list[str] = field(default_factory=list)  # metrics that were NaN or infinite


_READER: Final = pydantic.TypeAdapter(Sample)
_TIMES: Final = ("time", "formed", "progress_time")
_LATEST: Final = 253_402_300_799.0


def take_sample(job: Job, now: float, before: Sample | None = None) -> Sample:
    """The status now. `before`: the sample before it, of which the members are not repeated in the same world."""
    status = job.status
    world, goodput, progress = status.rendezvous, status.goodput, status.progress
    trained, lost = goodput_seconds(job, now)
    return Sample(
        time=now,
        phase=job.phase,
        generation=world.generation,
        world_size=world.world_size,
        processes=world.processes,
        members_of=world.generation if world.world_size else 0,
        training=goodput.training,
        formed=parse_time(world.formed_time),
        cause=names.describe_cause(world.reason),
        members=_members(job, before),
        step=progress.step if progress else None,
        total_steps=progress.total_steps if progress else None,
        progress_time=parse_time(progress.last_update_time) if progress else None,
        metrics={m.name: m.value for m in progress.metrics} if progress else {},
        not_finite=list(progress.not_finite) if progress else [],
        training_seconds=round(trained, 3),
        lost_seconds=round(lost, 3),
        lost={category: seconds for category, seconds in list_losses(status) if seconds},
        measured=goodput.measured.value,
        recovery_seconds=goodput.last_recovery_seconds,
        restarts=status.restarts.total,
    )


def _members(job: Job, before: Sample | None) -> list[list[str]]:
    world = job.status.rendezvous
    if not world.world_size or (before is not None and before.members_of == world.generation):
        return []
    return [[member.pod, member.node] for member in job.members[:MOST_MEMBERS]]


def goodput_seconds(job: Job, now: float) -> tuple[float, float]:
    """(training, lost) seconds until now."""
    return moments.read(job.status).seconds_until(now)


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
            samples.append(_check({k: v for k, v in values.items() if k in known}))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise ValueError(f"line {number} is not a sample of a recording: {error}") from None
    return samples


def _check(values: dict[str, Any]) -> Sample:
    """A sample of a file of somebody else, with which a page can be made. Raises ValueError."""
    try:
        sample = _READER.validate_python(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for name in _TIMES:
        time = getattr(sample, name)
        if time is not None and not 0 <= time <= _LATEST:  # nor NaN
            raise ValueError(f"{name}: is no time between 1970 and 9999")
    for one in fields(sample):
        number = getattr(sample, one.name)
        if isinstance(number, int) and abs(number) > numerals.MOST:
            raise ValueError(f"{one.name}: is more than {numerals.MOST}")
    return sample


def is_news(before: Sample | None, after: Sample) -> bool:
    """Whether a sample differs from the one before in more than the elapsed time."""
    if before is None:
        return True
    clock = {"time", "training_seconds", "lost_seconds", "members", "members_of"}
    return any(getattr(before, f.name) != getattr(after, f.name) for f in fields(Sample) if f.name not in clock)


def weigh(sample: Sample) -> int:
    """How much memory a sample takes, in small samples."""
    return 1 + len(sample.members) // 8 + (len(sample.metrics) + len(sample.lost)) // 8


def thin(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """Drop samples until the rest weighs at most `limit`: every second one between changes of the world, then the
    oldest. The last one stays, if need be without its members.
    """
    kept = list(samples)
    while sum(map(weigh, kept)) > limit:
        fewer = [
            sample
            for i, sample in enumerate(kept)
            if i % 2 == 0 or i == len(kept) - 1 or _is_turn(kept[i - 1], sample) or _is_turn(sample, kept[i + 1])
        ]
        if len(fewer) == len(kept):
            return _keep_latest(kept, limit)
        kept = fewer
    return kept


def _keep_latest(samples: Sequence[Sample], limit: int) -> list[Sample]:
    weights = itertools.accumulate(map(weigh, reversed(samples)))
    count = sum(1 for weight in weights if weight <= limit)
    return list(samples[-count:]) if count else [replace(samples[-1], members=[])]


def _is_turn(before: Sample, after: Sample) -> bool:
    return bool(after.members) or (before.generation, before.training, before.phase, before.world_size) != (
        (after.generation, after.training, after.phase, after.world_size)
    )
