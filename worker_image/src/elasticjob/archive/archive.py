"""The archive of a job, as an agent has it: one thread beside the training, which is never waited for."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from elasticjob import env
from elasticjob.archive import layout
from elasticjob.archive.layout import ManifestError, Object
from elasticjob.archive.restoring import Reader, Restorer
from elasticjob.archive.storage import Storage, StoreError
from elasticjob.archive.writing import GoneError, Leader, LostError, OverError, Sender, UnreadableError
from elasticjob.peers import records
from elasticjob.peers.last_tier import Members, Pause, Saved
from elasticjob.peers.records import Record
from elasticjob.peers.transport import PeerError, RefusedError
from elasticjob.protocol import wire

logger = logging.getLogger("elasticjob")

_NICE: Final = 10
_POLL_SECONDS: Final = 0.5  # between two questions to a rank that sends
_SILENCE_SECONDS: Final = 30.0  # after which one that does not answer counts as gone
_LONGEST: Final = 60.0  # seconds between two attempts
_MOST_SAVES: Final = 16  # that are told
_MOST_TEXT: Final = 1024

ReadChunk = Callable[[str], bytes | None]


@dataclass
class _Order:
    """What rank 0 has asked this pod to send."""

    attempt: int
    objects: Sequence[Object]
    is_done: bool = False
    is_gone: bool = False
    problem: tuple[str, str] = ("", "")


@dataclass
class _World:
    members: Members
    leader: Leader | None
    offered: tuple[Record, int | None] | None = None
    order: _Order | None = None
    due_at: float = 0.0  # when the next save is due ...
    retry_at: float = 0.0  # ... and the next attempt, after one that failed
    wait: float = 1.0
    attempt: int = 0
    is_hurry: bool = False
    has_lost: bool = False  # the store has lost something: what was sent is sent again
    is_over: bool = False
    is_unfit: set[str] = field(default_factory=set)  # records that cannot be archived: something is lost, say


class Archive:
    """One per agent, for its life. See `LastTier`."""

    def __init__(
        self,
        settings: env.Archive,
        read: ReadChunk,
        tell: Callable[[wire.Archive], None],
        on_saved: Callable[[], None],
    ) -> None:
        """`tell` gets what rank 0 knows of the archive, whenever that changes. `on_saved`: a save is complete."""
        self._settings, self._read, self._tell, self._on_saved = settings, read, tell, on_saved
        self._storage = Storage(settings.url, settings.credentials)
        self._sender = Sender(self._storage, read, settings.bytes_per_second)
        self._restorer = Restorer(settings.url, settings.credentials, settings.origin, self._note_problem)
        self._changed = threading.Condition()
        self._world: _World | None = None
        self._view = wire.Archive()
        self._saved_name = ""
        self._closed = False
        self._left: list[Members] = []  # worlds whose connections are still to be closed
        threading.Thread(target=self._run, name="elasticjob-archive", daemon=True).start()

    # Restoring, in the thread that enters a world.

    def find(
        self, pause: Pause, *, is_needed: bool, is_fresh: bool = False, lost: Collection[str] = ()
    ) -> Sequence[Saved]:
        return self._restorer.find(pause, is_needed=is_needed, is_fresh=is_fresh, lost=lost)

    def open(self, saved: Mapping[str, Any], place: tuple[int, int], pause: Pause) -> Reader | None:
        return self._restorer.open(saved, place, pause)

    # Saving.

    def enter(self, members: Members) -> None:
        settings = self._settings
        leader = None
        if members.rank == 0:
            leader = Leader(self._storage, settings.job, members.generation, settings.keep, _now)
        with self._changed:
            self._world = _World(members, leader)
            self._saved_name, self._sender.has_hurry = "", False
            if leader is None:
                self._show(wire.Archive())  # another one knows
            self._changed.notify_all()

    def leave(self) -> None:
        with self._changed:
            world, self._world = self._world, None
            if world is not None:
                world.is_over = True
            self._changed.notify_all()
            if world is not None:
                self._left.append(world.members)
        if world is not None:
            world.members.shut()

    def close(self) -> None:
        self._closed = True
        self.leave()

    def offer(self, record: Record, step: int | None) -> None:
        with self._changed:
            world = self._world
            if world is not None and (world.offered is None or world.offered[0].name != record.name):
                world.offered = (record, step)
                self._changed.notify_all()

    def await_saved(self, record: Record | None, step: int | None, seconds: float, *, is_newest: bool = True) -> bool:
        is_saved = record is not None and self._await_saved(record, step, seconds)
        if not is_newest:
            self._note_problem("NotInTime", "the pods went before what the scripts have saved last was read")
        elif not is_saved:
            self._note_problem(
                "NotInTime",
                f"the last checkpoint was not archived within the grace period ({seconds:.0f} s): "
                + (self._view.message or "the store was too slow"),
            )
        return is_saved and is_newest

    def hurry(self, generation: int, record: Record, step: int | None) -> None:
        with self._changed:
            if self._world is not None and self._world.members.generation == generation:
                self._hurry(self._world, record, step)

    def _hurry(self, world: _World, record: Record, step: int | None) -> None:
        self.offer(record, step)
        world.is_hurry = self._sender.has_hurry = True
        world.retry_at = 0.0
        self._changed.notify_all()

    def _await_saved(self, record: Record, step: int | None, seconds: float) -> bool:
        with self._changed:
            world = self._world
            if world is None or world.leader is None:
                return False
            self._hurry(world, record, step)
            is_over = self._changed.wait_for(
                lambda: self._saved_name == record.name or world.is_over or record.name in world.is_unfit, seconds
            )
            return is_over and self._saved_name == record.name

    @property
    def saved_name(self) -> str:
        return self._saved_name

    def take(self, header: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        try:
            attempt = records.check_count(header["attempt"])
            objects = [layout.parse_object(one) for one in json.loads(body)]
        except (KeyError, ValueError, TypeError, ManifestError) as error:
            return {"error": f"no order: {error}"}
        with self._changed:
            world = self._world
            if world is None or header.get("generation") != world.members.generation:
                return {"error": "another world"}
            order = world.order
            if order is None or order.attempt != attempt:
                order = world.order = _Order(attempt, objects)
                if header.get("again") is True:
                    self._sender.forget()
                self._changed.notify_all()
            if header.get("hurry") is True:
                self._sender.has_hurry = True
            return {"done": order.is_done, "gone": order.is_gone, "problem": list(order.problem)}

    # The thread.

    def _run(self) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (world := self._await_work()) is not None:
            try:
                if world.leader is None:
                    self._obey(world)
                else:
                    self._lead(world, world.leader)
            except Exception:
                logger.exception("Could not look after the archive of checkpoints; trying again.")
                self._put_off(world)

    def _await_work(self) -> _World | None:
        """The world in which there is something to do; None at the end."""
        with self._changed:
            while True:
                while self._left:
                    self._left.pop().close()
                if self._closed:
                    return None
                world = self._world
                now = time.monotonic()
                if world is None or world.is_over:
                    self._changed.wait()
                elif world.leader is None:
                    if world.order is not None and not (world.order.is_done or any(world.order.problem)):
                        return world
                    self._changed.wait()
                elif now < world.retry_at:
                    self._changed.wait(world.retry_at - now)
                elif self._is_due(world, now):
                    return world
                else:
                    self._changed.wait(max(0.05, world.due_at - now) if world.due_at > now else None)

    def _is_due(self, world: _World, now: float) -> bool:
        if world.attempt == 0:
            return True  # the first look says whether the store can be used
        if world.offered is None or world.offered[0].name in {self._saved_name, *world.is_unfit}:
            return False
        return world.is_hurry or now >= world.due_at

    def _obey(self, world: _World) -> None:
        order = world.order
        assert order is not None
        try:
            self._sender.send(order.objects, lambda: world.is_over or world.order is not order)
            order.is_done = True
        except OverError:
            return
        except GoneError:
            order.is_gone, order.problem = True, ("Gone", "")
        except StoreError as error:
            order.problem = (error.reason, str(error)[:_MOST_TEXT])

    def _lead(self, world: _World, leader: Leader) -> None:
        began = time.monotonic()
        world.attempt += 1
        offered = world.offered
        try:
            leader.begin()
            self._note(leader)
            if offered is None:
                return
            record, step = offered
            if not leader.has(record.name):
                self._save(world, leader, record, step)
                world.due_at = began + self._settings.every_seconds
            self._note(leader, record.name)
            world.wait, world.has_lost = 1.0, False
            if not world.is_hurry:
                leader.tidy()
                self._note(leader)
        except GoneError as error:  # the script has saved again meanwhile, or a pod is lost: the next one is tried
            logger.info("A checkpoint cannot be archived: %s.", error)
            if offered is not None:
                self._note_unfit(world, offered[0])
        except OverError:
            if not world.is_over:
                self._note_problem("NewerWorld", "another agent writes to the archive of this job, of a newer world")
                world.retry_at = time.monotonic() + _LONGEST
        except LostError as error:
            self._saved_name, world.has_lost = "", True
            self._sender.forget()
            self._note_problem(error.reason, str(error))
            self._put_off(world)
        except StoreError as error:
            logger.warning("Could not archive a checkpoint: %s.", error)
            self._note_problem(error.reason, str(error))
            if isinstance(error, UnreadableError) and offered is not None:
                self._note_unfit(world, offered[0])  # the next one may be smaller
            else:
                self._put_off(world)

    def _save(self, world: _World, leader: Leader, record: Record, step: int | None) -> None:
        members = world.members

        def is_over() -> bool:
            return world.is_over

        def find_holders(missing: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
            writers = members.find_writers(record)
            found = {digest: list(writers[digest]) for digest in missing if digest in writers}
            unknown = missing.keys() - found.keys()
            for rank in range(members.size):
                if not unknown:
                    break
                if rank == members.rank:
                    held = {digest for digest in unknown if self._read(digest) is not None}
                else:
                    held = _ask_for(members, rank, unknown)
                found |= {digest: [rank] for digest in held}
                unknown = unknown - held
            return found

        def send(shares: Mapping[int, Sequence[Object]]) -> None:
            orders = {rank: objects for rank, objects in shares.items() if objects and rank != members.rank}
            waiting = {rank for rank, objects in orders.items() if self._order(world, rank, objects)}
            self._sender.send(shares.get(members.rank, ()), is_over)
            for rank in orders.keys() - waiting:  # an older agent, which only hands out what it has
                rate, has_hurry = self._settings.bytes_per_second, world.is_hurry
                Sender(self._storage, _reader_of(members, rank), rate, has_hurry=has_hurry).send(orders[rank], is_over)
            while waiting:
                if is_over():
                    raise OverError
                waiting = {rank for rank in waiting if self._order(world, rank, orders[rank])}
                if waiting:
                    time.sleep(_POLL_SECONDS)

        leader.save(record, step, find_holders, send)
        self._on_saved()

    def _order(self, world: _World, rank: int, objects: Sequence[Object]) -> bool:
        """Have a rank send these. True while it does. Raises GoneError or StoreError."""
        body = json.dumps([one.dump() for one in objects]).encode()
        header = {"generation": world.members.generation, "attempt": world.attempt, "hurry": world.is_hurry}
        deadline = time.monotonic() + _SILENCE_SECONDS
        while True:
            try:
                said, _ = world.members.call(rank, "archive", body, **header, again=world.has_lost)
                break
            except (PeerError, OSError) as error:  # it may be about to enter this world
                if isinstance(error, RefusedError) and "unknown request" in str(error):
                    return False
                if world.is_over:
                    raise OverError from None
                if time.monotonic() > deadline or world.members.has_left(rank):
                    raise StoreError(f"rank {rank} does not answer: {error}") from None
                time.sleep(_POLL_SECONDS)
        if said.get("gone") is True:
            raise GoneError(f"rank {rank} does not have its part any more")
        reason, text = [str(one) for one in said.get("problem") or ("", "")]
        if reason:
            failure = StoreError(f"rank {rank}: {text}")
            failure.reason = reason
            raise failure
        return said.get("done") is not True

    def _note_unfit(self, world: _World, record: Record) -> None:
        with self._changed:
            world.is_unfit.add(record.name)
            self._changed.notify_all()  # nobody waits for it any more

    def _put_off(self, world: _World) -> None:
        world.retry_at = time.monotonic() + world.wait
        world.wait = min(2 * world.wait, _LONGEST)

    # What is told.

    def _note(self, leader: Leader, saved_name: str = "") -> None:
        saves = tuple(
            wire.Archived(save.step, save.time, save.total, len(save.record.files))
            for save in leader.saves[:_MOST_SAVES]
        )
        with self._changed:
            if saved_name:
                self._saved_name = saved_name
            self._show(wire.Archive(saves))

    def _note_problem(self, reason: str, text: str) -> None:
        with self._changed:
            self._show(wire.Archive(self._view.saves, reason, text[:_MOST_TEXT]))

    def _show(self, view: wire.Archive) -> None:
        self._changed.notify_all()
        if view != self._view:
            self._view = view
            self._tell(view)


def _ask_for(members: Members, rank: int, digests: set[str]) -> set[str]:
    """Which of these chunks this rank has."""
    try:
        _, answer = members.call(rank, "missing", json.dumps(sorted(digests)).encode())
        return digests - {str(one) for one in json.loads(answer)}
    except (PeerError, OSError, ValueError, TypeError) as error:
        logger.debug("rank %d does not say what it holds: %s", rank, error)
        return set()


def _reader_of(members: Members, rank: int) -> ReadChunk:
    def read(digest: str) -> bytes | None:
        try:
            return members.call(rank, "get", digest=digest)[1]
        except (PeerError, OSError):
            return None

    return read


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
