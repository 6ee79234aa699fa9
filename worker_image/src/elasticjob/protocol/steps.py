"""What the processes of a pod report about their steps. No I/O here.

It recognises a script that loads no checkpoint: its new process reports the first step again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from elasticjob.protocol import wire
from elasticjob.protocol.fields import MAX_COUNT

# Tiers of checkpoints: those that a script writes, those that other pods hold, and those that outlive all pods.
FILE, MEMORY, COPIES, ARCHIVE = "File", "Memory", "Copies", "Archive"
_ENOUGH: Final = 10  # steps; a process that made fewer may not have saved yet


class Steps:
    """The steps that the processes of one local rank reported, in their order."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._highest = 0  # of the processes before this one
        self._latest = 0
        self._counts_on = True  # the step never decreased in a living process, as one that is counted by epoch does

    def report(self, pid: int, step: int | None) -> str | None:
        """Note a report. Returns what to log if this process began at the first step after others were further."""
        if step is None:
            return None
        if pid == self._pid:
            self._counts_on = self._counts_on and step >= self._latest
            self._latest = step
            return None
        self._highest = max(self._highest, self._latest)
        self._pid, self._latest = pid, step
        if not self._counts_on or step > 1 or self._highest < _ENOUGH:
            return None
        return (
            f"The script began at step {step} again, after step {self._highest}: it loads no checkpoint, so every "
            "change of the world repeats all steps. Save a checkpoint regularly, and load the newest one at the start: "
            "docs/elastic-scripts.md and docs/frameworks.md show how."
        )


class OwnTimes:
    """What the ranks of this pod need for a step without waiting for other ranks. Create a new one for each world."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by local rank

    def report(self, local_rank: int, message: Mapping[str, Any]) -> None:
        """Note a worker's report, if it says so much."""
        own = _number(message.get("ownSeconds"))
        if own:
            self._seconds[local_rank] = own

    def find_slowest(self, first_rank: int) -> tuple[int, float] | None:
        """(rank, seconds) of the slowest one. `first_rank`: the rank of local rank 0."""
        slowest = max(self._seconds, key=self._seconds.__getitem__, default=None)
        return None if slowest is None else (first_rank + slowest, self._seconds[slowest])


class Saves:
    """When the last finished checkpoints were taken, by tier, whichever process of this pod has said so."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = {}
        self._copied = 0

    def report(self, message: Mapping[str, Any], now: float) -> None:
        """Note a worker's report, if it says so much."""
        ages = message.get("checkpointAges")
        for tier, age in ages.items() if isinstance(ages, dict) else ():
            if tier in (FILE, MEMORY) and _number(age) is not None:
                self._taken[tier] = now - age

    def note_copies(self, found: wire.Checkpoint | None, now: float) -> None:
        """Note what is known of the copies on other pods. How old those are that a pod begins with is unknown."""
        if found is not None and found.number != self._copied:
            if not found.restoring and found.copies:
                self._taken[COPIES] = now
            self._copied = found.number

    def note_archived(self, now: float) -> None:
        """This pod's agent has just completed a save in the archive."""
        self._taken[ARCHIVE] = now

    def find_ages(self, now: float) -> dict[str, float]:
        return {tier: round(now - taken, 1) for tier, taken in self._taken.items()}


class Numbers:
    """The metrics of the ranks of a pod that are no number, and those that they wrote to their logs."""

    def __init__(self) -> None:
        self._wrong: dict[int, frozenset[str]] = {}  # by local rank, as reported
        self._reported: set[str] = set()  # by the script, at local rank 0
        self._written: dict[str, dict[int, float]] = {}  # by metric and local rank

    def report(self, local_rank: int, told: wire.Progress) -> None:
        self._wrong[local_rank] = frozenset(told.not_finite)
        if local_rank == 0:
            self._reported = {*told.metrics, *told.not_finite}

    def note(self, metric: str, local_rank: int, value: float) -> None:
        """A number that a rank wrote to its log."""
        if metric in self._written or len(self._written) < wire.MAX_METRICS:
            self._written.setdefault(metric, {})[local_rank] = value

    def complete(self, told: wire.Progress, first_rank: int) -> wire.Progress:
        """The report of local rank 0 with what is known of the others. What the script reports comes first."""
        metrics, wrong = dict(told.metrics), list(told.not_finite)
        for name, values in self._written.items():
            value = values.get(0)
            if value is None or name in self._reported:
                continue
            if math.isfinite(value):
                metrics[name] = value
                wrong = [one for one in wrong if one != name]
            else:
                metrics.pop(name, None)
                wrong = [*wrong, *(() if name in wrong else (name,))]
        at: dict[str, int] = {}
        for rank in sorted({*self._wrong, *(rank for values in self._written.values() for rank in values)} - {0}):
            written = (name for name, values in self._written.items() if math.isnan(values.get(rank, 0.0)))
            for name in (*self._wrong.get(rank, ()), *written):
                at.setdefault(name, first_rank + rank)
        at = {name: rank for name, rank in at.items() if name not in wrong}
        return replace(told, metrics=metrics, not_finite=wrong, not_finite_at=at)


def read_progress(
    message: Mapping[str, Any],
    generation: int,
    slowest: tuple[int, float] | None,
    ages: Mapping[str, float] = MappingProxyType({}),
) -> wire.Progress:
    """A worker's report for the hub. What is malformed is left out. `ages`: of checkpoints, see `Saves`."""
    return wire.Progress(
        generation=generation,
        rank=_count(message.get("rank")) or 0,
        step=_count(message.get("step")),
        total_steps=_count(message.get("total")),
        step_seconds=_number(message.get("stepSeconds")),
        checkpoint_seconds=_number(message.get("checkpointSeconds")),
        own_seconds=None if slowest is None else slowest[1],
        slowest_rank=None if slowest is None else slowest[0],
        batch_size=_count(message.get("batchSize")) or None,
        batch_seconds=_number(message.get("batchSeconds")),
        noise_scale=_number(message.get("noiseScale")),
        state_bytes=_count(message.get("stateBytes")) or None,
        state_seconds=_number(message.get("stateSeconds")),
        samples_per_second=_number(message.get("samplesPerSecond")),
        tokens_per_second=_number(message.get("tokensPerSecond")),
        mfu=_number(message.get("mfu")),
        checkpoint_ages=dict(ages),
        metrics=_read_metrics(message.get("metrics")),
        not_finite=_read_names(message.get("notFinite")),
    )


def _read_metrics(metrics: object) -> dict[str, float]:
    named = {str(name): value for name, value in metrics.items() if name} if isinstance(metrics, dict) else {}
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if abs(value) <= sys.float_info.max}


def _read_names(names: object) -> list[str]:
    return [str(name) for name in names if name] if isinstance(names, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 2**31 else None
