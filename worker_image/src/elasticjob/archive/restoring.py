"""Finds a save to begin from, and reads it: each pod of a world reads a share, and gets the rest from others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from elasticjob.archive import layout, reading
from elasticjob.archive.ahead import Ahead, Answer
from elasticjob.archive.layout import ManifestError, Object, Save
from elasticjob.archive.reading import DamagedError
from elasticjob.archive.storage import ORIGIN, OWN, NotThereError, Storage, StoreError
from elasticjob.peers.last_tier import Keep, Pause, Saved
from elasticjob.peers.records import Record
from elasticjob.peers.transport import PeerError

logger = logging.getLogger("elasticjob")

_GLANCE: Final = 5.0  # seconds for a store that may have something newer than the pods have
_LONGEST: Final = 30.0  # seconds between two attempts
_MOST: Final = 4  # saves to choose from: the newest may be damaged

T = TypeVar("T")
Tell = Callable[[str, str], None]  # reason and text of a problem; empty: there is none


class NothingThereError(StoreError):
    """There is no save where the job is to begin."""

    reason = "NothingToRestore"


class Restorer:
    """What the job can begin from. `origin`: the archive of another job, and the step that is wanted of it."""

    def __init__(self, url: str, credentials: Path | None, origin: tuple[str, int | None] | None, tell: Tell) -> None:
        self._url, self._credentials, self._origin, self._tell = url, credentials, origin, tell

    def find(
        self, pause: Pause, *, is_needed: bool, is_fresh: bool = False, lost: Collection[str] = ()
    ) -> Sequence[Saved]:
        """See `LastTier`. Without anything else to begin from, the store is awaited: a job that began anew would lose
        all that it has there. Only one that has saved nothing goes on without an answer.
        """
        is_fresh = is_fresh and self._origin is None
        deadline = time.monotonic() + _GLANCE if is_fresh or not is_needed else None
        wait = 0.5
        while True:
            try:
                found = Answer(partial(self._look, lost)).take(pause, deadline)
            except StoreError as error:
                logger.warning("Could not look for a checkpoint: %s.", error)
                if is_needed:
                    self._tell(error.reason, str(error))
                if is_fresh:
                    return ()
            except TimeoutError:
                return ()
            else:
                self._tell("", "")
                return found
            until = time.monotonic() + wait
            while time.monotonic() < until:
                if deadline is not None and time.monotonic() > deadline:
                    return ()
                pause()
            wait = min(2 * wait, _LONGEST)

    def _look(self, lost: Collection[str]) -> list[Saved]:
        storage = Storage(self._url, self._credentials)
        mine = reading.find_saves(storage, most=_MOST, is_wanted=lambda save: save.record.name not in lost)
        if mine or self._origin is None or (lost and reading.find_saves(storage, most=1)):
            return [Saved(self._url, name, save.record) for name, save in mine]
        url, step = self._origin
        theirs = reading.find_saves(
            Storage(url, self._credentials, ORIGIN), step, _MOST, lambda save: _adopt(save.record).name not in lost
        )
        if not theirs:
            what = "no whole save" if step is None else f"no whole save of step {step}"
            raise NothingThereError(
                f"checkpoints.from.archive {url} holds {what}, so the job does not begin: name the folder of a job, as"
                " its condition CheckpointArchived does, and a step that `kubectl elasticjob checkpoints` lists. It is"
                " looked for in the store that this job's own checkpoints.archive.credentialsSecret names"
            )
        return [Saved(url, name, _adopt(save.record)) for name, save in theirs]

    def open(self, said: Mapping[str, Any], place: tuple[int, int], pause: Pause) -> Reader | None:
        """See `LastTier`."""
        url, name = str(said["url"]), str(said["save"])
        if url not in {self._url, None if self._origin is None else self._origin[0]}:
            return None
        storage = Storage(url, self._credentials, OWN if url == self._url else ORIGIN)
        try:
            save = _insist(lambda: reading.read_save(storage, name), pause)
        except (NotThereError, ManifestError) as error:
            logger.warning("The save %s in %s cannot be read: %s.", name[:21], url, error)
            return None
        rank, size = place
        record = save.record if url == self._url else _adopt(save.record)
        return Reader(storage, save, record, rank, size)


def _adopt(record: Record) -> Record:
    """The files of another job, as a record that is older than all of this one: worlds count from 1."""
    return replace(record, generation=0, number=1)


class Reader:
    """One save, as one rank of a world reads it."""

    def __init__(self, storage: Storage, save: Save, record: Record, rank: int, size: int) -> None:
        self._storage, self._rank, self.record = storage, rank, record
        self._places = layout.locate(save.objects)
        self._wanted = layout.find_sizes(record.files).keys()
        self._mine = list(layout.share_of(save.objects, rank, size))
        self._owners = layout.find_owners(save.objects, size)
        self._ahead: Ahead[str, bytes] = Ahead(self._read_chunk, ())
        self._keep: Keep = lambda digest, data: True

    def find_owner(self, digest: str) -> int:
        return self._owners[digest]

    def read_share(self, keep: Keep, pause: Pause, *, packs_only: bool) -> None:
        objects = [one for one in self._mine if len(one.chunks) > 1 or not packs_only]

        def get(one: Object) -> bool:
            found = reading.read_object(self._storage, one)
            return all(keep(digest, data) for digest, data in found.items() if digest in self._wanted)

        ahead = Ahead(get, objects)
        for one in objects:
            try:
                if not _insist(partial(get, one), pause, ahead.begin(one)):
                    return
            except DamagedError as error:
                raise PeerError(str(error)) from None

    def expect(self, digests: Sequence[str], keep: Keep) -> None:
        self._ahead, self._keep = Ahead(self._read_chunk, digests), keep

    def read(self, digest: str, pause: Pause) -> bytes:
        try:
            return _insist(partial(self._read_chunk, digest), pause, self._ahead.begin(digest))
        except DamagedError as error:
            raise PeerError(str(error)) from None

    def _read_chunk(self, digest: str) -> bytes:
        data = reading.read_chunk(self._storage, digest, self._places[digest])
        self._keep(digest, data)
        return data


def _insist(call: Callable[[], T], pause: Pause, first: Answer[T] | None = None) -> T:
    """Call until the store answers. Raises what `pause` raises, and what the store's answer is.

    `first`: the first attempt, where it was begun before.
    """
    wait, answer = 0.5, first
    while True:
        try:
            return (answer or Answer(call)).take(pause)
        except StoreError as error:
            logger.warning("Could not read a checkpoint, trying again: %s.", error)
        answer = None
        until = time.monotonic() + wait
        while time.monotonic() < until:
            pause()
        wait = min(2 * wait, _LONGEST)
