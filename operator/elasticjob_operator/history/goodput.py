"""Goodput: how the time since the first world was spent. Pure.

`watch` returns what has happened since the last update, and `reduce` accounts for it: at each change, the time since
the previous change is added to training or to one category of loss. Time before the first world does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce as fold

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.model.observe import format_time, parse_time
from elasticjob_operator.model.revise import GoodputFields, revise


class Loss(StrEnum):
    """Categories of lost time."""

    START = "start"  # until the first world trained
    RESCALE = "rescale"  # changes that were announced
    RESTART = "restart"  # failures and lost members
    STALL = "stall"  # worlds that ran without completing a step


@dataclass(frozen=True, slots=True)
class Account:
    """The accumulated times. The status stores `goodput`; the other fields divide the same time further."""

    goodput: api.GoodputStatus = field(default_factory=api.GoodputStatus)
    lost: Mapping[Loss, float] = field(default_factory=dict)  # seconds; they add up to goodput.lost_seconds
    recoveries: int = 0  # worlds after the first one that trained
    recovery_seconds: float = 0.0  # of all of them

    @property
    def mean_recovery_seconds(self) -> float | None:
        return self.recovery_seconds / self.recoveries if self.recoveries else None


def watch(
    before: api.GoodputStatus,
    *,
    running: bool,
    formed: int,
    now: float,
    cause: str = "",
    stepped: bool = False,
    stalled: float = 0.0,
) -> tuple[Record, ...]:
    """The records since the last update. They are derived from the account, so that errors in it are corrected.

    `running`: a complete world runs, of generation `formed`, created for `cause`. `stepped`: it has reported a step.
    `stalled`: seconds without a step before a world ended.
    """
    found: list[Record] = []
    measured, step_generation = before.measured, before.step_generation
    if stepped and (measured is not api.Measured.STEPS or step_generation != formed):
        found.append(Record(Kind.STEPPED, now, formed, cause))
        measured, step_generation = api.Measured.STEPS, formed
    is_unproven = measured is api.Measured.STEPS and step_generation != formed
    if running and not is_unproven and not before.training:
        found.append(Record(Kind.TRAINS, now, formed, cause))
    elif before.training and (is_unproven or not running):
        found.append(Record(Kind.BROKE, now, formed, cause, seconds=stalled))
    elif running and parse_time(before.since) is None:
        found.append(Record(Kind.RUNS, now, formed, cause))
    return tuple(found)


def update(before: api.GoodputStatus, records: Iterable[Record]) -> api.GoodputStatus:
    """The goodput to store in the status after these records."""
    return fold(reduce, records, Account(before)).goodput


def reduce(before: Account, record: Record) -> Account:
    """The account after one more record; unrelated records change nothing."""
    goodput = before.goodput
    match record.kind:
        case Kind.STEPPED:
            return _book_step(before, record)
        case Kind.RUNS if parse_time(goodput.since) is None:
            return replace(before, goodput=revise(goodput, since=format_time(record.time)))
        case Kind.TRAINS if not goodput.training:
            return _book_training(before, record)
        case Kind.BROKE if goodput.training:
            return _book_break(before, record)
        case Kind.EMPTIED:
            return replace(before, goodput=revise(goodput, since=None))
        case _:
            return before


def _book_step(before: Account, record: Record) -> Account:
    """At the very first step, time that was counted as training turns out to be lost."""
    goodput = before.goodput
    changes: GoodputFields = {"step_generation": record.generation, "measured": api.Measured.STEPS}
    if goodput.measured is not api.Measured.FORMATION:
        return replace(before, goodput=revise(goodput, **changes))
    open_stretch = _elapsed(goodput, record.time) if goodput.training else 0.0
    changes["training_seconds"] = 0.0
    changes["lost_seconds"] = round(goodput.lost_seconds + goodput.training_seconds + open_stretch, 3)
    if goodput.training:
        changes["since"] = format_time(record.time)
    lost = _add(before.lost, Loss.START, goodput.training_seconds + open_stretch)
    return replace(before, goodput=revise(goodput, **changes), lost=lost)


def _book_training(before: Account, record: Record) -> Account:
    goodput = before.goodput
    changes: GoodputFields = {"training": True, "since": format_time(record.time)}
    if parse_time(goodput.since) is None:
        return replace(before, goodput=revise(goodput, **changes))
    elapsed = _elapsed(goodput, record.time)
    changes["lost_seconds"] = round(goodput.lost_seconds + elapsed, 3)
    changes["last_recovery_seconds"] = round(elapsed, 3)
    changes["rescales"] = max(0, record.generation - 1)
    is_first = record.generation <= 1
    return Account(
        revise(goodput, **changes),
        _add(before.lost, Loss.START if is_first else loss_of(record.cause), elapsed),
        before.recoveries + (not is_first),
        before.recovery_seconds + (0.0 if is_first else elapsed),
    )


def _book_break(before: Account, record: Record) -> Account:
    goodput = before.goodput
    changes: GoodputFields = {"training": False, "since": format_time(record.time)}
    if parse_time(goodput.since) is None:
        return replace(before, goodput=revise(goodput, **changes))
    elapsed = _elapsed(goodput, record.time)
    lost = min(elapsed, record.seconds or 0.0)
    changes["training_seconds"] = round(goodput.training_seconds + elapsed - lost, 3)
    changes["lost_seconds"] = round(goodput.lost_seconds + lost, 3)
    return replace(before, goodput=revise(goodput, **changes), lost=_add(before.lost, Loss.STALL, lost))


_RESTARTS = frozenset({names.Cause.FAILED, names.Cause.LOST, names.Cause.HUNG, names.Cause.UNRESPONSIVE})


def loss_of(cause: str) -> Loss:
    """The category of the time lost before a world, by the cause of that world."""
    if cause == names.Cause.START:
        return Loss.START
    return Loss.RESTART if cause in _RESTARTS else Loss.RESCALE


def _add(lost: Mapping[Loss, float], to: Loss, seconds: float) -> dict[Loss, float]:
    return {**lost, to: lost.get(to, 0.0) + seconds} if seconds else dict(lost)


def _elapsed(goodput: api.GoodputStatus, now: float) -> float:
    since = parse_time(goodput.since)
    return 0.0 if since is None else max(0.0, now - since)


def open_since(status: api.Status) -> float | None:
    """The start of the time that is not accounted for yet; None for a job that has finished or is suspended."""
    if status.finished or status.phase is api.Phase.SUSPENDED:
        return None
    return parse_time(status.goodput.since)


def add_stretch(training: bool, trained: float, lost: float, since: float | None, now: float) -> tuple[float, float]:
    """(trained, lost) with the time since then added to one of them."""
    stretch = 0.0 if since is None else max(0.0, now - since)
    return (trained + stretch, lost) if training else (trained, lost + stretch)
