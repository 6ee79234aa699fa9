"""Notes what happens in the worlds of all jobs, and sends the spans of those that have ended.

The spans themselves follow from the statuses. Only their notes are kept in memory: of a world that was formed before
this operator started, they begin with its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.history import spans
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.plan import Plan
from elasticjob_operator.run.otlp import Exporter
from elasticjob_operator.shares import Room

MOST_NOTES: Final = 64  # of a span; the oldest are dropped
MOST_IN_ALL: Final = 20_000  # of which one namespace gets half
_IS_A_SPAN: Final = frozenset(("WorldFormed", "WorldChanged"))  # events that only say that one begins


@dataclass(slots=True)
class _Notes:
    """What was noted of a span that has not ended."""

    kept: deque[spans.Note] = field(default_factory=lambda: deque(maxlen=MOST_NOTES))
    left_out: int = 0
    saves: dict[str, tuple[int, float]] = field(default_factory=dict)  # by tier: how many, and when the last was


@dataclass(slots=True)
class _Known:
    job: Job
    status: api.Status
    of_job: _Notes = field(default_factory=_Notes)  # while it has no world
    of_world: _Notes = field(default_factory=_Notes)


class Tracer:
    def __init__(self, exporter: Exporter, clock: Callable[[], float]) -> None:
        self.exporter = exporter
        self._clock = clock
        self._known: dict[JobKey, _Known] = {}
        self._noted = Room(MOST_IN_ALL)  # by namespace

    def observe(self, job: Job, plan: Plan) -> None:
        """Take what a pass has decided and written."""
        known = self._known.get(job.key)
        if known is not None and known.job.uid != job.uid:
            self.forget(job.key)
            known = None
        if known is None:
            known = self._known[job.key] = _Known(job, job.status)
        if known.job.is_short or job.is_short:  # what is not kept has not changed
            known.status = job.status
        before, after, now = known.status, plan.status, self._clock()
        notes = known.of_world if before.rendezvous.members else known.of_job
        told = [spans.note_event(e.reason, e.message, now, warning=e.warning) for e in plan.events]
        self._note(job, notes, (one for one in told if one.name not in _IS_A_SPAN))
        known.job, known.status = job, after
        if after is before:
            return
        for tier, at in spans.list_saves(before, after):
            notes.saves[tier] = (notes.saves.get(tier, (0, 0.0))[0] + 1, at)
        turns = spans.list_turns(before, after, now)
        self._note(job, notes, (one for one in turns if one.name == spans.BROKE))
        self._end(known, spans.list_ended(job, before, after, now))
        self._note(job, known.of_world, (one for one in turns if one.name == spans.TRAINS))

    def forget(self, key: JobKey) -> None:
        """The job is gone, with its pods."""
        known = self._known.pop(key, None)
        if known is not None:
            self._end(known, spans.list_ended(known.job, known.status, None, self._clock()))
            self._noted.leave(key[0], len(known.of_job.kept) + len(known.of_world.kept))

    def _note(self, job: Job, notes: _Notes, fresh: Iterable[spans.Note]) -> None:
        for note in fresh:
            is_full = len(notes.kept) == MOST_NOTES
            has_room = is_full or self._noted.enter(job.namespace)
            if is_full or not has_room:
                notes.left_out += 1
            if has_room:
                notes.kept.append(note)

    def _end(self, known: _Known, ended: tuple[spans.Span, ...]) -> None:
        for span in ended:
            notes = known.of_world if span.parent else known.of_job
            self._noted.leave(known.job.namespace, len(notes.kept))
            if span.parent:
                known.of_world = _Notes()
            else:
                known.of_job = _Notes()
            self.exporter.put(known.job.namespace, _with_notes(span, notes))


def _with_notes(span: spans.Span, notes: _Notes) -> spans.Span:
    saves = (
        spans.Note(at, "Saved", {"elasticjob.tier": tier, "elasticjob.saves": count})
        for tier, (count, at) in notes.saves.items()
    )
    found = sorted((*notes.kept, *saves), key=lambda note: note.time)
    within = tuple(replace(note, time=min(max(note.time, span.start), span.end)) for note in found)
    return replace(span, notes=within, left_out=notes.left_out)
