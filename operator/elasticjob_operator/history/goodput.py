"""Goodput: how the time since the first world was spent. Pure.

`watch` returns what has happened since the last update, and `reduce` accounts for it: at each change, the time since
the previous change is added to training or to one category of loss. Time before the first world does not count. Time
that was booked as training turns into lost time when a world repeats steps or has waited for checkpoints, so that
training and the categories always add up to the time that has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce as fold

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.history import worlds
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.model.revise import GoodputFields, revise
from elasticjob_operator.times import format_time, parse_time


class Loss(StrEnum):
    """Categories of lost time: the fields of `status.lostSeconds`."""

    START = "start"  # until the first world trained
    RESCALE = "rescale"  # changes that were announced
    RESTART = "restart"  # failures and lost members
    CHECKPOINT = "checkpoint"  # steps that waited for a save
    STALL = "stall"  # worlds that ran without completing a step
    REPEATED = "repeated_steps"  # steps that a later world had to make again


@dataclass(frozen=True, slots=True)
class Account:
    """Everything that is known of the past of a job; the status stores it."""

    goodput: api.GoodputStatus = field(default_factory=api.GoodputStatus)
    lost: api.LostSeconds = field(default_factory=api.LostSeconds)  # they add up to goodput.lost_seconds
    worlds: tuple[api.WorldStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Reported:
    """What the members of a world have reported; None and 0 where they have not."""

    first_step: int | None = None  # the lowest step of the present generation
    last_step: int | None = None  # the highest step of the last generation that made one
    step_seconds: float | None = None  # of that generation
    checkpoint_seconds: float | None = None  # that its steps waited for saves, since its processes started
    stalled_seconds: float = 0.0  # without a step before the world was found to hang
    state_bytes: int | None = None  # the most that one rank received when the present generation was entered
    state_seconds: float | None = None


def watch(
    before: api.GoodputStatus,
    *,
    running: bool,
    formed: int,
    now: float,
    cause: str = "",
    reported: Reported | None = None,
) -> tuple[Record, ...]:
    """The records since the last update. They are derived from the account, so that errors in it are corrected.

    `running`: a complete world runs, of generation `formed`, created for `cause`.
    """
    reported = reported or Reported()
    found: list[Record] = []
    measured, step_generation = before.measured, before.step_generation
    first = reported.first_step
    if first is not None and (measured is not api.Measured.STEPS or step_generation != formed):
        found.append(Record(Kind.STEPPED, now, formed, cause, step=first))
        measured, step_generation = api.Measured.STEPS, formed
    is_unproven = measured is api.Measured.STEPS and step_generation != formed
    if running and not is_unproven and not before.training:
        found.append(Record(Kind.TRAINS, now, formed, cause))
    elif before.training and (is_unproven or not running):
        last, speed = reported.last_step, reported.step_seconds
        found.append(
            Record(Kind.BROKE, now, formed, cause, seconds=reported.stalled_seconds, step=last, step_seconds=speed)
        )
    elif running and parse_time(before.since) is None:
        found.append(Record(Kind.RUNS, now, formed, cause))
    saved = reported.checkpoint_seconds
    if saved is not None and saved != before.checkpoint_seconds:
        found.append(Record(Kind.SAVED, now, formed, cause, seconds=saved))
    if reported.state_bytes:
        found.append(
            Record(Kind.RECEIVED, now, formed, cause, seconds=reported.state_seconds, count=reported.state_bytes)
        )
    return tuple(found)


def update(before: api.Status, records: Iterable[Record]) -> api.Status:
    """The status with goodput, lost time and timeline after these records."""
    found = tuple(records)
    if not found:
        return before
    account = fold(reduce, found, read(before))
    lost = None if account.lost == api.LostSeconds() else account.lost
    return revise(before, goodput=account.goodput, lost_seconds=lost, timeline=list(account.worlds))


def read(status: api.Status) -> Account:
    return Account(status.goodput, status.lost_seconds or api.LostSeconds(), tuple(status.timeline))


def list_losses(status: api.Status) -> tuple[tuple[str, float], ...]:
    """(category, seconds) of the lost time that is booked."""
    lost = read(status).lost
    return tuple((loss.value, getattr(lost, loss.value)) for loss in Loss)


def reduce(before: Account, record: Record) -> Account:
    """The account after one more record; unrelated records change nothing."""
    goodput = before.goodput
    match record.kind:
        case Kind.FORMED:
            return replace(before, worlds=worlds.add(before.worlds, record))
        case Kind.STEPPED:
            return _book_step(before, record)
        case Kind.RUNS if parse_time(goodput.since) is None:
            return replace(before, goodput=revise(goodput, since=format_time(record.time)))
        case Kind.TRAINS if not goodput.training:
            return _book_training(before, record)
        case Kind.BROKE if goodput.training:
            return _book_break(before, record)
        case Kind.SAVED:
            return _book_saved(before, record)
        case Kind.RECEIVED:
            return replace(before, worlds=worlds.add_transfer(before.worlds, record))
        case Kind.EMPTIED:
            return replace(before, goodput=revise(goodput, since=None))
        case _:
            return before


def _book_step(before: Account, record: Record) -> Account:
    """At the very first step, time that was counted as training turns out to be lost."""
    goodput, before = before.goodput, replace(before, worlds=worlds.note_first_step(before.worlds, record))
    changes: GoodputFields = {"step_generation": record.generation, "measured": api.Measured.STEPS}
    if goodput.measured is not api.Measured.FORMATION:
        return _book_repeated(replace(before, goodput=revise(goodput, **changes)), record)
    open_stretch = _elapsed(goodput, record.time) if goodput.training else 0.0
    changes["training_seconds"] = 0.0
    if goodput.training:
        changes["since"] = format_time(record.time)
    booked = replace(before, goodput=revise(goodput, **changes))
    booked = _lose(booked, Loss.START, goodput.training_seconds + open_stretch)
    return replace(booked, worlds=worlds.add_loss(booked.worlds, record.generation, open_stretch))


def _book_repeated(before: Account, record: Record) -> Account:
    """The steps after the one that this world continued from were made for nothing."""
    goodput = before.goodput
    if goodput.step is None or record.step is None or goodput.step_seconds is None:
        return before
    repeated = max(0, goodput.step + 1 - record.step) * goodput.step_seconds
    kept = replace(before, goodput=revise(goodput, step=None, step_seconds=None))
    return _turn_into_loss(kept, Loss.REPEATED, repeated)


def _book_training(before: Account, record: Record) -> Account:
    goodput = before.goodput
    changes: GoodputFields = {"training": True, "since": format_time(record.time)}
    if parse_time(goodput.since) is None:
        return replace(before, goodput=revise(goodput, **changes))
    elapsed = _elapsed(goodput, record.time)
    changes["last_recovery_seconds"] = round(elapsed, 3)
    changes["rescales"] = max(0, record.generation - 1)
    loss = Loss.START if record.generation <= 1 else _loss_before(before.worlds, record)
    changes["faults"] = goodput.faults + (loss is Loss.RESTART)
    booked = _lose(replace(before, goodput=revise(goodput, **changes)), loss, elapsed)
    booked = replace(booked, worlds=worlds.add_loss(booked.worlds, record.generation, elapsed))
    return _book_means(booked) if loss is Loss.RESTART else booked


def _book_means(before: Account) -> Account:
    goodput = before.goodput
    means: GoodputFields = {
        "mean_recovery_seconds": round(before.lost.restart / goodput.faults, 3),
        "mean_seconds_between_faults": round(goodput.training_seconds / goodput.faults, 3),
    }
    return replace(before, goodput=revise(goodput, **means))


def _book_break(before: Account, record: Record) -> Account:
    goodput = before.goodput
    changes: GoodputFields = {"training": False, "since": format_time(record.time)}
    if record.step is not None:
        changes["step"], changes["step_seconds"] = record.step, record.step_seconds
    if parse_time(goodput.since) is None:
        return replace(before, goodput=revise(goodput, **changes))
    elapsed = _elapsed(goodput, record.time)
    lost = min(elapsed, record.seconds or 0.0)
    changes["training_seconds"] = round(goodput.training_seconds + elapsed - lost, 3)
    return _lose(replace(before, goodput=revise(goodput, **changes)), Loss.STALL, lost)


def _book_saved(before: Account, record: Record) -> Account:
    """Processes that were started anew report less than the ones before them."""
    goodput, total = before.goodput, record.seconds or 0.0
    known = goodput.checkpoint_seconds or 0.0
    changes: GoodputFields = {"checkpoint_seconds": total}
    if goodput.training and parse_time(goodput.since) is not None:
        changes["training_seconds"] = round(goodput.training_seconds + _elapsed(goodput, record.time), 3)
        changes["since"] = format_time(record.time)
    booked = replace(before, goodput=revise(goodput, **changes))
    return _turn_into_loss(booked, Loss.CHECKPOINT, total - known if total >= known else total)


def _turn_into_loss(before: Account, to: Loss, seconds: float) -> Account:
    """The account with this much of the training time booked as lost, as far as there is that much."""
    goodput = before.goodput
    moved = round(min(seconds, goodput.training_seconds), 3)
    left = round(goodput.training_seconds - moved, 3)
    return _lose(replace(before, goodput=revise(goodput, training_seconds=left)), to, moved)


def _lose(before: Account, to: Loss, seconds: float) -> Account:
    if not seconds:
        return before
    goodput, category = before.goodput, to.value
    total = round(getattr(before.lost, category) + seconds, 3)
    return replace(
        before,
        goodput=revise(goodput, lost_seconds=round(goodput.lost_seconds + seconds, 3)),
        lost=before.lost.model_copy(update={category: total}),
    )


_RESTARTS = frozenset(
    {names.Cause.FAILED, names.Cause.LOST, names.Cause.HUNG, names.Cause.UNRESPONSIVE, names.Cause.RULE}
)


def loss_of(cause: str) -> Loss:
    """The category of the time lost before a world, by the cause of that world."""
    if cause == names.Cause.START:
        return Loss.START
    return Loss.RESTART if cause in _RESTARTS else Loss.RESCALE


def _loss_before(formed: Sequence[api.WorldStatus], record: Record) -> Loss:
    """The category of the time lost before this world trained: that of a fault, if one has ended any world since."""
    untrained = worlds.list_untrained(formed, record.generation)
    has_fault = any(loss_of(cause) is Loss.RESTART for cause in untrained)
    return Loss.RESTART if has_fault else loss_of(record.cause)


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
