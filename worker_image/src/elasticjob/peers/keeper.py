"""Keeps the job's checkpoints: looks at the directory, has finished files copied, and answers other agents.

In each world, rank 0's agent gathers what all pods report. When the files of all pods are finished and copied, it makes
a record of them, which the others fetch with their next report. Only what is in a record is ever restored. Before a
record is made, all pods look once more: a report may be older than what it is put together with.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from elasticjob import env
from elasticjob.peers import entering, records
from elasticjob.peers.choice import Peer
from elasticjob.peers.chunks import ChunkStore, FullError, digest_of
from elasticjob.peers.copying import ChangedError, Peers
from elasticjob.peers.directory import Directory, View, Workers
from elasticjob.peers.last_tier import LastTier, Members
from elasticjob.peers.lead import SPREAD_SECONDS, Ending, Lead
from elasticjob.peers.records import Files, Record, Report
from elasticjob.peers.transport import PeerError, RefusedError, Server

logger = logging.getLogger("elasticjob")

_LOOK_SECONDS = 0.3
_FULL_SECONDS = 10.0  # before this pod tries again to keep copies of its own files
_REPORT_SECONDS = 1.0  # between two reports that say the same ...
_REPORTS_PER_SECOND = 200  # ... and longer in a large world: so many does rank 0 get
_LEAST_TRY = 1.0  # for an attempt to have the last save archived, however little time is left
_LAST_FAILURES = 3  # in a row to reach rank 0, after which it has gone
_GONE_SECONDS = 4.0  # for pods that wait for a world to say the same once more: else they are gone
_FLUSH_HURRY = 5.0  # so much shorter at the end of a world
_ANOTHER_WORLD = "another world"  # why a request is refused
_SILENCE_SECONDS = 60.0  # after which a rank without a report is named
_MOST_STEPS = 4096  # of the script, with the times at which they were reported


@dataclass
class _World:
    generation: int
    peers: Peers
    lead: Lead | None  # at rank 0
    spare: int  # pods that may be lost with what this pod has written, as far as it knows
    round: int = 0  # of rank 0, as far as this pod has heard
    is_urgent: bool = False  # rank 0 waits for what this pod says next
    said: tuple[Report, int, str, Ending] | None = None  # with the round, and the name of the last record
    said_at: float = 0.0
    entered_at: float = field(default_factory=time.monotonic)
    is_ending: bool = False
    is_awaited: bool = False  # a pod that goes waits until rank 0 has archived the last record
    is_told: bool = False  # this pod has been told to end, and archives what is left if nobody else does
    archived: str = ""  # the name of the record that rank 0 has archived last, as far as this pod has heard
    is_alone: bool = False  # of what others have left: what they have deleted may still be in this pod's directory
    is_over: bool = False  # rank 0 has done what it could before all pods go

    @property
    def size(self) -> int:
        return len(self.peers.peers)

    @property
    def report_seconds(self) -> float:
        seconds = find_interval(self.size)
        return max(_REPORT_SECONDS, seconds / _FLUSH_HURRY) if self.is_ending else seconds


class _Fate(Enum):
    """What becomes of a world that a pod leaves."""

    ALL_LEAVE = auto()  # rank 0 takes care of what is saved last
    SOME_STAY = auto()
    NO_LEADER = auto()  # rank 0 is gone


def find_interval(size: int) -> float:
    """Seconds between two reports that say the same, in a world of so many pods."""
    return max(_REPORT_SECONDS, size / _REPORTS_PER_SECOND)


class Keeper:
    """One per agent. `enter` in each world, before its workers start."""

    def __init__(
        self,
        settings: env.Checkpoints,
        address: str,
        key: Callable[[], str],
        look_at_workers: Callable[[], tuple[Workers, list[int]]],
        on_kept: Callable[[int, int], None],
        open_last_tier: Callable[[Callable[[str], bytes | None]], LastTier] | None = None,
        find_step: Callable[[], int | None] = lambda: None,
        on_unfit: Callable[[str], None] = lambda unfit: None,
        on_unfinished: Callable[[str], None] = lambda unfinished: None,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_kept` gets, at rank 0, the number of the last record, and how many other pods hold it. Raises OSError.

        `open_last_tier` gets what reads a chunk of this pod; `find_step` returns the last step that was reported.
        `on_unfit` gets the name in a save that this pod cannot have, and "" once there is none; `on_unfinished` a file
        that is not copied because it or another one is always written, and "" in the same way. `is_leaving`: whether
        this pod has been told to end.
        """
        self._settings = settings
        self._address = address
        self._key = key
        self._look_at_workers = look_at_workers
        self._on_kept = on_kept
        self._on_unfit = on_unfit
        self._on_unfinished = on_unfinished
        self._is_leaving = is_leaving
        self._unfinished = ""  # what was told last
        self._unfit = {"restored": "", "written": ""}  # what was told last: of saves to begin with, and of its own
        settings.path.mkdir(parents=True, exist_ok=True)
        self.chunks = ChunkStore(settings.copies, settings.path, settings.limit_bytes)
        self.directory = Directory(settings.path, self.chunks)
        self.record: Record | None = None
        self._world: _World | None = None
        self._last = (0, 0)  # generation and size of the last world
        self._gathering = entering.Gathering()
        self._lock = threading.Lock()
        self._turning = threading.Lock()
        self._closed = threading.Event()
        self._full_until = 0.0  # there is no room for own copies
        self._is_cut_off = False  # rank 0 could not be reached
        self._left_out: frozenset[str] = frozenset()  # at the last look: entries that will never be copied
        self._told: frozenset[str] = frozenset()  # of these
        self._find_step = find_step
        self._steps: deque[tuple[int, int]] = deque(maxlen=_MOST_STEPS)  # by the clock of the files
        self._last_tier = None if open_last_tier is None else open_last_tier(self.directory.read_chunk)
        self._server = Server(address, key, self._handle)
        threading.Thread(target=self._run, name="elasticjob-keeper", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._leave()
        if self._last_tier is not None:
            self._last_tier.close()
        self._server.close()

    def enter(self, store: entering.Store, place: entering.Place, interrupted: Callable[[], bool]) -> bool:
        """Make the newest complete checkpoint appear in this pod, together with all others of the world.

        False if `interrupted()` became true first. Raises PeerError or OSError.
        """
        return self._enter(store, place, interrupted, self._last_tier)

    def _enter(
        self,
        store: entering.Store,
        place: entering.Place,
        interrupted: Callable[[], bool],
        restores_from: LastTier | None,
        *,
        is_alone: bool = False,
    ) -> bool:
        self._leave()
        with self._turning:
            report = self._look().as_report(0)
            with self._lock:
                self._gathering = entering.Gathering(place.generation)
            where = (self._address, self._server.port, self._settings.node)
            entry = entering.Entry(
                self.directory, store, place, self._key, where, self._gathering, interrupted, restores_from
            )
            try:
                has_saved = self.record is not None or self._last == (0, 0)
                found = entry.run(report, self._last, has_saved=has_saved)
            finally:
                if entry.unfit:
                    self._note_unfit("restored", entry.unfit)
            if found is None:
                return False
            self._note_unfit("restored", entry.unfit)
            self.record, self._last = found.record, (place.generation, place.size)
            with self._lock:
                peers = Peers(place.rank, found.peers, self._key, self._settings.bytes_per_second)
                spread = SPREAD_SECONDS + 2 * find_interval(place.size)
                lead = Lead(place.generation, place.size, self._settings.replicas, spread) if place.rank == 0 else None
                spare = min(self._settings.replicas, place.size - 1)
                self._world = _World(place.generation, peers, lead, spare, is_alone=is_alone)
            if self._last_tier is not None:
                self._last_tier.enter(self._introduce(place, found.peers))
            if place.rank == 0:
                self._on_kept(*((0, 0) if self.record is None else (self.record.number, place.size - 1)))
        return True

    def _introduce(self, place: entering.Place, peers: tuple[Peer, ...]) -> Members:
        """The world, for the thread of the last tier, which has connections of its own."""
        connections = Peers(place.rank, peers, self._key, self._settings.bytes_per_second)

        def find_writers(record: Record) -> Mapping[str, Sequence[int]]:
            with self._lock:
                world = self._world
                return {} if world is None or world.lead is None else world.lead.find_writers(record)

        def has_left(rank: int) -> bool:
            with self._lock:
                world = self._world
                return world is not None and world.lead is not None and world.lead.has_left(rank)

        return Members(
            place.generation,
            place.rank,
            place.size,
            connections.call,
            find_writers,
            connections.shut,
            connections.close,
            has_left,
        )

    @property
    def has_last_tier(self) -> bool:
        return self._last_tier is not None

    def flush(
        self, seconds: float, archive_seconds: float = 0.0, *, do_all_leave: bool = True, waits: bool = False
    ) -> None:
        """Before the agent leaves a world: wait until what the scripts have saved last is recorded.

        `archive_seconds`: the time to have it archived, too, where no pod of this world stays. `do_all_leave`: none
        does; else this pod leaves, and perhaps all others have been told to leave as well. `waits`: the world was over
        before, and this pod, which waits for the next one, is told to end.
        """
        world = self._world
        deadline = time.monotonic() + archive_seconds
        may_be_last = self._last_tier is not None and archive_seconds > 0
        if world is None:
            if may_be_last and waits:
                self._archive_alone(deadline)
            return
        fate = _Fate.SOME_STAY
        if may_be_last:
            world.is_told = True
            fate = _Fate.ALL_LEAVE if do_all_leave else self._ask_who_leaves(world)
        if fate is _Fate.SOME_STAY or (fate is _Fate.NO_LEADER and not waits):
            is_recorded = self._flush(world, seconds, do_all_leave=False)
            if may_be_last:
                fate = self._ask_who_leaves(world, waits=waits)  # the others may have been told meanwhile
            if waits and fate is _Fate.SOME_STAY:  # who waits on may lack a part that this pod has
                if world.lead is not None:
                    self._await_archived(world, deadline, is_newest=is_recorded)
                else:
                    self._await_end(world, deadline, lambda: world.archived == records.name_of(self.record))
            is_final = is_recorded and self._look_at_workers()[0] is Workers.DONE
            if is_final and world.lead is None and self._is_leaving():
                self._tell_rank_0(world, left=True)
        if fate is _Fate.SOME_STAY:
            return
        world.peers.end_copies()
        is_archived = fate is _Fate.ALL_LEAVE and self._flush_last(
            world, seconds, archive_seconds, deadline, waits=waits
        )
        if not is_archived and (waits or fate is _Fate.NO_LEADER):
            self._archive_alone(deadline)

    def _flush_last(
        self, world: _World, seconds: float, archive_seconds: float, deadline: float, *, waits: bool
    ) -> bool:
        """All pods of the world go. False if nothing can be archived in it, as some are gone without a word."""
        # To read much takes long: of a long time, half of it. Who waits has done that.
        patience = max(min(seconds, archive_seconds), archive_seconds / 2)
        if waits:
            patience = min(patience, _GONE_SECONDS + 2 * find_interval(world.size))
        is_recorded = self._flush(world, patience, do_all_leave=True)
        if waits and world.lead is not None and not is_recorded:
            return False
        return self._await_archived(world, deadline, is_newest=is_recorded)

    def _archive_alone(self, deadline: float) -> None:
        """Archive the newest checkpoint of which this pod has all: it may be the last one that has it.

        In a world of its own, of the generation of the last one: what the job saves in the next one is newer.
        """
        generation, before = self._last[0], self._world
        if not generation:
            return  # it was in none: it has nothing

        def is_late() -> bool:
            return time.monotonic() > deadline

        if before is not None and self.record is not None and not self._collect(before, self.record, is_late):
            return
        place = entering.Place(generation, 0, 1, touches=False)
        try:
            is_entered = self._enter(entering.Alone(), place, is_late, None, is_alone=True)
        except (PeerError, OSError) as error:
            logger.warning("Could not archive what this pod holds: %s", error)
            return
        world = self._world
        if is_entered and world is not None and self.record is not None:
            self._await_archived(world, deadline, is_newest=True)

    def _collect(self, world: _World, record: Record, is_late: Callable[[], bool]) -> bool:
        """Get what this pod lacks of a record from those that are still there. False if others go on with it.

        Of several pods that leave, the lowest rank does so, and the others stay as long.
        """
        lacks = self.directory.find_lacking(record)
        peers = Peers(world.peers.me, world.peers.peers, self._key, self._settings.bytes_per_second)
        try:
            for rank in range(peers.me if lacks else 0):
                while not is_late() and (does_leave := self._ask_whether_it_leaves(peers, world, rank)) is not None:
                    if not does_leave:
                        return False
                    time.sleep(_LOOK_SECONDS)
            for rank in range(world.size):
                if lacks and rank != peers.me:
                    lacks -= self._get_from(peers, rank, lacks, is_late)
        finally:
            peers.close()
        return True

    def _ask_whether_it_leaves(self, peers: Peers, world: _World, rank: int) -> bool | None:
        """Whether a pod archives what is left, or goes on in another world; None if it does neither, or is gone."""
        try:
            answer, _ = peers.call(rank, "leave", generation=world.generation, rank=peers.me)
        except RefusedError as error:
            return _ANOTHER_WORLD not in str(error)  # in a world of its own, it archives
        except (PeerError, OSError):
            return None
        return True if answer.get("told") is True else None

    def _get_from(self, peers: Peers, rank: int, lacks: set[str], is_late: Callable[[], bool]) -> set[str]:
        """The chunks that this rank had of these; this pod has them now."""
        found = set[str]()
        try:
            _, answer = peers.call(rank, "missing", json.dumps(sorted(lacks)).encode())
            for digest in sorted(lacks.difference(json.loads(answer))):
                if is_late():
                    break
                _, data = peers.call(rank, "get", digest=digest)
                self.chunks.put(digest, data)
                found.add(digest)
        except (PeerError, OSError, ValueError, TypeError, FullError) as error:
            logger.debug("rank %d does not hand out what it holds: %s", rank, error)
        return found

    def _ask_who_leaves(self, world: _World, *, waits: bool = False) -> _Fate:
        """Without a turn: one that is under way may make copies for long. `waits`: see `flush`."""
        with self._lock:
            if world.lead is not None:
                world.lead.note_leaving(0)
                return _Fate.ALL_LEAVE if world.lead.do_all_leave else _Fate.SOME_STAY
        return self._tell_rank_0(world, waits=waits)

    def _tell_rank_0(self, world: _World, **said: bool) -> _Fate:
        """That this pod leaves; that it waits for a world, or has done all that it had to do before."""
        peers = Peers(world.peers.me, world.peers.peers, self._key, self._settings.bytes_per_second)
        try:
            answer, _ = peers.call(0, "leave", generation=world.generation, rank=world.peers.me, **said)
        except RefusedError as error:
            logger.debug("rank 0 is in another world: %s", error)
            return _Fate.SOME_STAY
        except (PeerError, OSError) as error:
            logger.debug("rank 0 does not say whether all pods leave: %s", error)
            return _Fate.NO_LEADER
        finally:
            peers.close()
        return _Fate.ALL_LEAVE if answer.get("leaving") is True else _Fate.SOME_STAY

    def _await_archived(self, world: _World, deadline: float, *, is_newest: bool) -> bool:
        """At rank 0, have the last record archived. Others stay until then: rank 0 makes no record without them.

        False if rank 0 has gone before it said that it has done what it could.
        """
        assert self._last_tier is not None
        if world.lead is not None:
            step = None if self.record is None else self._step_of(self.record)
            if self.record is not None or not is_newest:
                left = max(_LEAST_TRY, deadline - time.monotonic())
                self._last_tier.await_saved(self.record, step, left, is_newest=is_newest)
            with self._lock:
                world.is_over = True
            return True
        return self._await_end(world, deadline, lambda: world.is_over)

    def _await_end(self, world: _World, deadline: float, is_over: Callable[[], bool]) -> bool:
        """At other ranks, go on telling rank 0 what there is. False if it has gone before."""
        failures = 0
        while time.monotonic() < deadline:
            self._is_cut_off, world.is_urgent = False, True
            self._turn()
            failures = failures + 1 if self._is_cut_off else 0
            if is_over():
                return True
            if failures >= _LAST_FAILURES:
                return False
            time.sleep(_LOOK_SECONDS / 3)
        return True

    def _flush(self, world: _World, seconds: float, *, do_all_leave: bool) -> bool:
        """Whether what the scripts have saved last is recorded."""
        deadline = time.monotonic() + seconds
        self._is_cut_off = False
        with self._lock:
            world.is_ending = world.peers.has_hurry = True
            is_awaited = world.is_awaited
        if is_awaited:
            self._hurry(world)
        while True:
            is_done = self._look_at_workers()[0] is Workers.DONE  # else what was not finished is no save
            if not is_done and not (do_all_leave and world.lead is not None):
                return True
            report = self._turn()
            if report is None or self._is_cut_off:
                return False
            is_mine = not is_done or records.covers(self.record, report, self._left_out)
            if is_mine and self._is_known(world, settled=do_all_leave):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS / 3)

    def _is_known(self, world: _World, *, settled: bool) -> bool:
        """At rank 0: whether as many other pods as there should be have the last record.

        `settled`: instead, whether no pod has anything that is not in it.
        """
        with self._lock:
            lead = world.lead
            if lead is None:
                return True
            if settled:
                return lead.is_settled(self.record)
            return self.record is None or lead.is_known(self.record)

    def _leave(self) -> None:
        with self._lock:
            world, self._world = self._world, None
        if self._last_tier is not None:
            self._last_tier.leave()
        if world is not None:
            world.peers.shut()
            with self._turning:
                world.peers.close()

    # Turns.

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                self._turn()
            except Exception:
                logger.exception("Could not look after the checkpoints; trying again.")
                self._closed.wait(5.0)

    def _look(self) -> View:
        workers, pids = self._look_at_workers()
        view = self.directory.look(self.record, workers, pids, lambda: self._look_at_workers()[0] is workers)
        after, _ = self._look_at_workers()
        # A worker that died meanwhile may have been writing.
        return view if workers is after else View(unready=view.unready | {records.entry_of(p) for p in view.written})

    def _turn(self) -> Report | None:
        """Look, copy and report once. Returns the report; None outside of a world."""
        with self._turning:
            world = self._world
            if world is None:
                return None
            known = world.round
            self._note_step()
            ending = Ending(self._is_leaving(), self._look_at_workers()[0] is not Workers.RUN)
            view = self._look()
            try:
                copies = self._copy(world, view.written)
            except ChangedError:
                return Report(unready=frozenset(map(records.entry_of, view.written)))
            left_out = view.left_out & self._left_out  # not what was just removed
            for entry in left_out - self._told:
                logger.warning(
                    "%r is in no checkpoint: it holds a link out of the directory, a socket, a pipe, or a path that is"
                    " too long.",
                    entry,
                )
            self._told |= left_out
            self._note_unfit("written", next((text for entry, text in view.unfit.items() if entry in left_out), ""))
            self._note_unfinished(view.held)
            report, self._left_out = view.as_report(copies), view.left_out
            if world.peers.over:
                return None
            urgent = world.is_urgent if world.lead is None else world.lead.has_news
            news = (report, known, records.name_of(self.record), ending) != world.said
            if urgent or news or time.monotonic() - world.said_at > world.report_seconds:
                self._report(world, report, known, ending)
            return report

    def _note_unfit(self, which: str, text: str) -> None:
        if self._unfit[which] != text:
            self._unfit[which] = text
            self._on_unfit(next(filter(None, self._unfit.values()), ""))

    def _note_unfinished(self, text: str) -> None:
        if self._unfinished != text:
            self._unfinished = text
            self._on_unfinished(text)

    def _copy(self, world: _World, written: Files) -> int:
        """Have the files of this pod copied; rank 0 also those of the last record that it has, whoever wrote them.

        This pod keeps a copy too: the script may overwrite its file before the next one is recorded. Returns how many
        pods may be lost; while the script overwrites what was copied, that is what it was.
        """
        if not world.peers.makes_copies():
            return world.spare
        files, is_all = written, bool(written)
        if world.lead is not None and self.record is not None:
            present = self.directory.find_present(self.record.files)
            files, is_all = {**present, **written}, is_all or len(present) == len(self.record.files)
        digests = set(records.digests_of(files))
        if digests:
            mine = self._hold(world, digests)
            others = world.peers.copy(digests, self._settings.replicas, self.directory.read_chunk)
            if not world.peers.makes_copies():
                return world.spare
            spare = others if mine else max(0, others - 1)
            world.spare = spare if is_all else min(spare, world.spare)
        return world.spare

    def _hold(self, world: _World, digests: set[str]) -> bool:
        """Whether this pod has copies of its own."""
        if time.monotonic() < self._full_until:
            return False
        try:
            for digest in digests:
                if not world.peers.makes_copies():
                    return False
                self.directory.hold(digest)
        except FullError:
            logger.warning(
                "There is no room for this pod's own copies of checkpoints: raise spec.checkpoints.sizeLimit."
            )
            self._full_until = time.monotonic() + _FULL_SECONDS
            return False
        return True

    def _report(self, world: _World, report: Report, known: int, ending: Ending) -> None:
        """`known`: the round that this pod knew of when it looked."""
        name = records.name_of(self.record)
        if world.lead is not None:
            with self._lock:
                world.lead.take(0, report, known, ending=ending)
            self._decide(world, world.lead)
        else:
            said: dict[str, Any] = {"generation": world.generation, "rank": world.peers.me, "known": name}
            said |= {"round": known, "leaving": ending.is_leaving, "done": ending.is_done}
            try:
                header, body = world.peers.tell(0, "report", report.dump(), **said)
                world.round, world.is_urgent = int(header.get("round", 0)), header.get("urgent") is True
                world.archived = str(header.get("archived", ""))
                # An older agent does not say that it is over.
                world.is_over = header.get("over", world.archived == name) is True
                if body:
                    self._save(records.parse_record(body))
            except (PeerError, OSError, records.RecordError) as error:
                logger.debug("could not report the checkpoints to rank 0: %s", error)
                self._is_cut_off = True
                return
        world.said, world.said_at = (report, known, name, ending), time.monotonic()

    def _decide(self, world: _World, lead: Lead) -> None:
        """At rank 0: make a record as soon as the reports of all pods allow it, and tell how far it has spread."""
        with self._lock:
            made = None if world.is_alone else lead.make_record(self.record)
            world.round = lead.round
            silent = lead.find_silent()
        if made is not None:
            self._save(made)
        if silent and world.entered_at + _SILENCE_SECONDS + 2 * find_interval(world.size) < time.monotonic():
            logger.warning(
                "No checkpoint can be recorded: the agents of %d of %d pods have not said what theirs have written, the"
                " first is that of rank %d. Look at its log, and whether it reaches the pod of rank 0.",
                len(silent),
                world.size,
                silent[0],
            )
            world.entered_at = time.monotonic()
        if self.record is not None:
            with self._lock:
                kept = lead.find_kept(time.monotonic(), self.record)
            if kept is not None:
                if world.peers.makes_copies():  # else they are of the record before
                    self._on_kept(*kept)
                if self._last_tier is not None and kept[0] == self.record.number:
                    self._last_tier.offer(self.record, self._step_of(self.record))

    def _note_step(self) -> None:
        step = self._find_step()
        if step is not None and (not self._steps or self._steps[-1][1] != step):
            self._steps.append((time.time_ns(), step))

    def _step_of(self, record: Record) -> int | None:
        """The last step that was reported when the newest file of a record was written."""
        newest = max((file.mtime_ns for file in record.files.values()), default=0)
        return next((step for time_ns, step in reversed(self._steps) if time_ns <= newest), None)

    def _save(self, record: Record) -> None:
        try:
            self.chunks.save_record(record)
        except FullError:
            logger.warning("There is no room in %s to record a checkpoint.", self._settings.copies)
            return
        self.record = record

    # Requests of other agents, each in its thread.

    def _handle(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        match header.get("op"):
            case "get":
                data = self.directory.read_chunk(records.check_digest(header.get("digest")))
                return ({"error": "not here"}, b"") if data is None else ({}, data)
            case "missing":
                return {}, json.dumps([one for one in records.parse_digests(body) if not self._holds(one)]).encode()
            case "put":
                return self._put(records.check_digest(header.get("digest")), body), b""
            case "record":
                found = [one for one in self.chunks.read_records() if one.name == header.get("name")]
                return ({}, found[0].dump()) if found else ({"error": "not here"}, b"")
            case "join":
                with self._lock:
                    gathering = self._gathering
                return gathering.join(header, body), b""
            case "archive" if self._last_tier is not None:
                return self._last_tier.take(header, body), b""
            case "report":
                return self._take_report(header, records.parse_report(body))
            case "leave":
                return self._take_leave(header), b""
            case op:
                return {"error": f"unknown request {op!r}"}, b""

    def _holds(self, digest: str) -> bool:
        try:
            return self.directory.hold(digest)
        except FullError:
            return False

    def _put(self, digest: str, data: bytes) -> dict[str, Any]:
        if digest_of(data) != digest:
            return {"error": "the chunk is damaged"}
        try:
            self.chunks.keep(digest, data)
        except FullError:
            return {"full": True}
        return {}

    def _take_leave(self, header: dict[str, Any]) -> dict[str, Any]:
        rank = header.get("rank")
        with self._lock:
            world = self._world
            if world is None or header.get("generation") != world.generation:
                return {"error": _ANOTHER_WORLD}
            if not isinstance(rank, int) or not 0 < rank < world.size:
                return {"error": "no rank of this world"}
            if world.lead is None:
                return {"told": world.is_told}
            world.lead.note_leaving(rank, left=header.get("left") is True)
            do_all_leave = world.lead.do_all_leave
            waits = header.get("waits") is True  # it may hold a part of the last record alone
            world.is_awaited |= waits
            is_ending = world.is_ending
        if waits and is_ending:
            self._hurry(world)
        return {"leaving": do_all_leave}

    def _hurry(self, world: _World) -> None:
        record = self.record
        if self._last_tier is not None and record is not None:
            self._last_tier.hurry(world.generation, record, self._step_of(record))

    def _take_report(self, header: dict[str, Any], report: Report) -> tuple[dict[str, Any], bytes]:
        rank = header.get("rank")
        with self._lock:
            world = self._world
            if world is None or world.lead is None or header.get("generation") != world.generation:
                return {"error": _ANOTHER_WORLD}, b""
            if not isinstance(rank, int) or not 0 < rank < world.size:
                return {"error": "no rank of this world"}, b""
            ending = Ending(header.get("leaving") is True, header.get("done") is not False)
            lead = world.lead
            lead.take(rank, report, int(header.get("round", 0)), str(header.get("known")), ending)
            answer: dict[str, Any] = {"round": lead.round, "urgent": lead.is_proposing(), "over": world.is_over}
            if self._last_tier is not None:
                answer["archived"] = self._last_tier.saved_name
        record = self.record
        is_new = record is not None and record.name != header.get("known")
        return answer, record.dump() if record is not None and is_new else b""
