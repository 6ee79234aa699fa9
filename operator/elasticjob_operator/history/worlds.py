"""The timeline: the last worlds of a job, each with its cause, whom it was about, and the time lost before it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.model import errortext
from elasticjob_operator.model.revise import revise
from elasticjob_operator.text import cut
from elasticjob_operator.times import format_time, parse_time

MOST_WORLDS: Final = 50
REPEATED: Final = 2  # times in a row that the same error stops the training at the same place
_FAILURES: Final = (names.Cause.FAILED, names.Cause.HUNG)
_MOST_NAMES: Final = 3
MOST_NAMES_LENGTH: Final = 160


def watch(before: api.Status, world: api.RendezvousStatus, now: float) -> tuple[Record, ...]:
    """The record of a world that the timeline does not have yet. `before` is the status before it was formed."""
    if world.generation <= max((w.generation for w in before.timeline), default=0):
        return ()
    formed = parse_time(world.formed_time) or now
    who = name_causers(before, world)
    cause = world.reason or ""
    size, revision = len(world.members), world.revision or 0
    return (Record(Kind.FORMED, formed, world.generation, cause, size=size, who=who, revision=revision),)


def name_causers(before: api.Status, world: api.RendezvousStatus) -> str:
    """Who caused this world: the rank that failed, else the pods that left, else those that joined."""
    failure, old = before.last_failure, before.rendezvous
    asked = _describe_request(count_repeats(before.restarts) - 1)
    failed = world.reason in _FAILURES
    if failed and failure is not None and failure.generation == old.generation and failure.rank is not None:
        return _shorten([f"rank {failure.rank} in {_place(failure.pod or '', failure.node or '')}"]) + asked
    ordered = before.restarts.ordered
    if world.reason == names.Cause.RULE and ordered is not None:
        who = (
            "" if ordered.rank is None else f": rank {ordered.rank} in {_place(ordered.pod or '', ordered.node or '')}"
        )
        since = "" if ordered.before is None else f", from before step {ordered.before}"
        return _shorten([f"{ordered.rule}{who}"]) + since + asked
    if world.reason == names.Cause.UPDATE:
        return f"revision {world.revision or 0}"
    now, then = {m.uid for m in world.members}, {m.uid for m in old.members}
    gone = [_place(m.pod, m.node) for m in old.members if m.uid not in now]
    joined = [_place(m.pod, m.node) for m in world.members if m.uid not in then] if old.members else []
    return _shorten(gone or joined)


def count_repeats(restarts: api.RestartStatus) -> int:
    """How many worlds in a row have failed alike, or were sick from their start on; 0 for the first one.

    The next one is asked to leave out one checkpoint less than that.
    """
    alike = 0 if errortext.REFUSAL.fullmatch(restarts.error or "") else restarts.alike  # no checkpoint mends a script
    sick = (restarts.ordered.tries or 0) + 1 if restarts.ordered is not None else 0
    found = max(alike, sick)
    return found if found >= REPEATED else 0


def tell_repeated(restarts: api.RestartStatus, timeline: Sequence[api.WorldStatus]) -> str:
    """What a job that ends says of an error that was always the same: where, and from where else it was met."""
    if restarts.alike < REPEATED:
        return ""
    where = "" if restarts.step is None else f", never beyond step {restarts.step}"
    failed = [w for w, after in pairwise(timeline) if after.cause in _FAILURES] + [*timeline[-1:]]
    begun = [w.first_step for w in failed[-restarts.alike :] if w.first_step is not None]
    since = f", also from step {min(begun)}" if len({*begun}) > 1 else ""
    return f"; {restarts.error} {restarts.alike} times in a row{where}{since}"


def _describe_request(count: int) -> str:
    """A request, because the oldest checkpoint is never left out, and not every script has any."""
    if count < 1:
        return ""
    checkpoints = "the newest checkpoint" if count == 1 else f"the {count} newest checkpoints"
    return f", asked to leave out {checkpoints}"


def _place(pod: str, node: str) -> str:
    return f"{pod} on {node}" if node else pod


def _shorten(found: Sequence[str]) -> str:
    more = len(found) - _MOST_NAMES
    text = ", ".join(found[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return cut(text, MOST_NAMES_LENGTH)


def add(worlds: Sequence[api.WorldStatus], record: Record) -> tuple[api.WorldStatus, ...]:
    """The timeline with the world of this record, which is dropped again after fifty more."""
    fresh = api.WorldStatus(
        generation=record.generation,
        time=format_time(record.time),
        size=record.size,
        cause=record.cause or None,
        who=record.who or None,
        revision=record.revision or None,
    )
    return (*worlds, fresh)[-MOST_WORLDS:]


def note_first_step(worlds: Sequence[api.WorldStatus], record: Record) -> tuple[api.WorldStatus, ...]:
    """The timeline with the first step that this world has reported."""
    return tuple(revise(w, first_step=record.step) if w.generation == record.generation else w for w in worlds)


def add_loss(worlds: Sequence[api.WorldStatus], generation: int, seconds: float) -> tuple[api.WorldStatus, ...]:
    """The timeline with the time that was lost before this world trained."""
    return tuple(
        revise(w, lost_seconds=round((w.lost_seconds or 0.0) + seconds, 3)) if w.generation == generation else w
        for w in worlds
    )


def list_untrained(worlds: Sequence[api.WorldStatus], generation: int) -> tuple[str, ...]:
    """The causes of the worlds before this one that were formed since the last one that trained, the latest first."""
    before = (w for w in reversed(worlds) if w.generation < generation)
    return tuple(w.cause or "" for w in takewhile(lambda w: w.lost_seconds is None, before))


def add_transfer(worlds: Sequence[api.WorldStatus], record: Record) -> tuple[api.WorldStatus, ...]:
    """The timeline with the state that was sent when this world was entered."""
    return tuple(
        revise(w, state_bytes=record.count, state_seconds=record.seconds) if w.generation == record.generation else w
        for w in worlds
    )
