"""The start of a world: all agents agree on one checkpoint, and each makes its directory contain it.

They meet in the store of the world, where each leaves its address and the names of the records that it has. Rank 0
reads these, and leaves them there together. Each gets the records that it lacks, since it may hold files of them, and
tells rank 0 what it holds. Rank 0 chooses, and all of them report whether they have it before any worker starts. If a
copy turns out to be damaged and there is no other one, rank 0 chooses again. Values in the store carry an HMAC of the
job's key.

A world may have thousands of pods. So nobody keeps a connection to rank 0 open while it waits for others, and what one
of them asks the store for does not grow with their number.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from elasticjob.peers import choice, records
from elasticjob.peers.choice import Holding, Peer
from elasticjob.peers.chunks import FullError, digest_of
from elasticjob.peers.copying import Peers
from elasticjob.peers.directory import Directory
from elasticjob.peers.folder import UnfitError
from elasticjob.peers.last_tier import LastTier, Saved, Source
from elasticjob.peers.records import Record, Report
from elasticjob.peers.transport import PeerError

logger = logging.getLogger("elasticjob")

_POLL = 0.02  # seconds ...
_POLLS_PER_SECOND = 12_500  # ... and longer in a large world: so often is the store asked
_PREFIX = "elasticjob/checkpoints"
_UNLIMITED = 1e12  # bytes a second: nobody trains meanwhile


class Store(Protocol):
    """What is used of torch's store. Its methods raise RuntimeError when it is closed."""

    def set(self, key: str, value: Any, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


class Alone:
    """The store of a world of one pod."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def set(self, key: str, value: Any, /) -> None:
        self._values[key] = value

    def get(self, key: str, /) -> bytes:
        return bytes(self._values[key])

    def check(self, keys: list[str], /) -> bool:
        return self._values.keys() >= set(keys)


@dataclass(frozen=True)
class Place:
    """This agent's place in a world. `touches`: its workers start anew, so the directory may be changed."""

    generation: int
    rank: int
    size: int
    touches: bool = True


@dataclass(frozen=True)
class Found:
    """What the world begins with: all of its pods have the files of this record."""

    record: Record | None
    peers: tuple[Peer, ...]


@dataclass(frozen=True)
class Joined:
    """What one agent tells rank 0 before a world starts."""

    holdings: Sequence[Holding]
    report: Report
    last: tuple[int, int]  # generation and size of the last world that it was in
    has_last_tier: bool = False
    has_saved: bool = True  # that world, or one before it; a pod that was in none does not know

    def dump(self) -> bytes:
        holdings = [one.dump() for one in self.holdings]
        said = {"holdings": holdings, "last": self.last, "archive": self.has_last_tier, "saved": self.has_saved}
        return json.dumps(said).encode()[:-1] + b', "report": ' + self.report.dump() + b"}"


def parse_joined(body: bytes) -> Joined:
    """What another agent has dumped. Raises ValueError, TypeError or KeyError."""
    said = json.loads(body)
    generation, size = map(int, said["last"])
    holdings = [choice.parse_holding(one) for one in said["holdings"]]
    archive, saved = said.get("archive") is True, said.get("saved") is not False
    return Joined(holdings, records.read_report(said["report"]), (generation, size), archive, saved)


def is_nothing_saved(joined: Collection[Joined]) -> bool:
    """Whether the pods know that the job has never saved anything: all of its last world are there, and say so."""
    last = max(said.last for said in joined)
    all_there = last > (0, 0) and choice.are_all_there([said.last for said in joined])
    return all_there and not any(said.holdings or (said.last == last and said.has_saved) for said in joined)


class Gathering:
    """What the agents of a world tell rank 0 before it starts. Thread-safe."""

    def __init__(self, generation: int = 0) -> None:
        self._generation = generation
        self._lock = threading.Lock()
        self._joined: dict[int, Joined] = {}

    def join(self, header: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        """The answer to a `join` request."""
        if header.get("generation") != self._generation:
            return {"error": "another world"}
        self.add(int(header["rank"]), parse_joined(body))
        return {}

    def add(self, rank: int, joined: Joined) -> None:
        with self._lock:
            self._joined[rank] = joined

    def take(self, size: int) -> dict[int, Joined] | None:
        """What all ranks have told; None while one is missing."""
        with self._lock:
            return dict(self._joined) if self._joined.keys() >= set(range(size)) else None


class InterruptedEntryError(Exception):
    """The world is over before it has begun."""


class Entry:
    """One agent's way into one world."""

    def __init__(
        self,
        directory: Directory,
        store: Store,
        place: Place,
        key: Callable[[], str],
        where: tuple[str, int, str],
        gathering: Gathering,
        interrupted: Callable[[], bool],
        last_tier: LastTier | None = None,
    ) -> None:
        """`where`: address, port and node of this agent."""
        self._last_tier = last_tier
        self._saves: dict[
            str, Saved
        ] = {}  # at rank 0: what is in the last tier, by the names of the records, newest first
        self._directory = directory
        self._store = store
        self._place = place
        self._key = key
        self._where = where
        self._gathering = gathering
        self._interrupted = interrupted
        self._records = {record.name: record for record in directory.chunks.read_records()}
        self.unfit = ""  # which name in a save this pod cannot have
        self._is_alone = place.size == 1 and place.touches  # nobody else needs what this pod restores
        self._is_full = False  # there is no room for copies of it
        self._unfit_elsewhere = ""  # at rank 0: why some pod cannot have a record that is whole

    def run(self, report: Report, last: tuple[int, int], *, has_saved: bool = True) -> Found | None:
        """None if the world is over. Raises PeerError or OSError.

        `last`: generation and size of the world before. `has_saved`: the job, as far as this pod knows.
        """
        place = self._place
        try:
            self._set(f"peer/{place.rank}", [list(self._where), list(self._records)])
            if place.rank == 0:
                self._set("peers", self._get([f"peer/{rank}" for rank in range(place.size)]))
            met = self._get(["peers"])[0]
            peers = tuple(Peer(rank, *where) for rank, (where, _) in enumerate(met))
            connections = Peers(place.rank, peers, self._key, _UNLIMITED)
            try:
                self._get_records(connections, [names for _, names in met])
                joined = Joined((), report, last, self._last_tier is not None, has_saved)
                return self._agree(connections, joined, peers)
            finally:
                connections.close()
        except InterruptedEntryError:
            return None

    def _agree(self, peers: Peers, joined: Joined, where: tuple[Peer, ...]) -> Found:
        rank, size = self._place.rank, self._place.size
        holdings = [self._directory.find_holding(record) for record in self._records.values()]
        joined = replace(joined, holdings=holdings)
        if rank == 0:
            self._gathering.add(0, joined)
            chosen = self._gather(peers)
        else:
            self._join(peers, joined)
            chosen = {}
        failed: frozenset[str] = frozenset()
        attempt = 0
        while True:
            if rank == 0:
                self._set(f"plan/{attempt}", self._plan(chosen, failed))
            plan = self._get([f"plan/{attempt}"])[0]
            held = {int(one): [choice.parse_holding(item) for item in items] for one, items in plan["holdings"].items()}
            source = self._open_source(plan)
            if "archive" in plan:
                self._read_share(source, attempt)
            try:
                record = self._restore(peers, str(plan["name"]), held, source)
            except UnfitError as error:
                logger.warning("This pod cannot have the checkpoint %s: %s", plan["name"], error)
                record, self.unfit = None, str(error)
                self._set(f"unfit/{attempt}/{rank}", self.unfit)
            self._set(f"done/{attempt}/{rank}", record is not None or not plan["name"])
            if rank == 0:
                done = self._get([f"done/{attempt}/{one}" for one in range(size)])
                self._note_unfit(attempt, done)
                self._set(f"go/{attempt}", all(done))
            if self._get([f"go/{attempt}"])[0]:
                return Found(record, where)
            failed |= {str(plan["name"])}
            attempt += 1

    # Rank 0.

    def _gather(self, peers: Peers) -> dict[int, list[Holding]]:
        """What each rank holds, once all have told; with the files that were finished at the end of the last world."""
        while (joined := self._gathering.take(self._place.size)) is None:
            self._pause()
        holdings: dict[int, list[Holding]] = {rank: list(said.holdings) for rank, said in joined.items()}
        newest = choice.choose_record(holdings)
        before = None if newest is None else self._find_record(peers, newest.name, sorted(holdings))
        reports = {rank: said.report for rank, said in joined.items()}
        all_there = choice.are_all_there([said.last for said in joined.values()])
        files, shared = records.combine(before, [reports[rank] for rank in sorted(reports)], all_there=all_there)
        is_new = bool(files) and (before is None or files != before.files)
        is_needed = newest is None and not is_new
        is_fresh = self._place.generation <= 1 or is_nothing_saved(joined.values())
        self._saves = self._find_saves(is_needed=is_needed, is_fresh=is_fresh, all_there=all_there)
        if self._saves and not all(said.has_last_tier for said in joined.values()):
            if is_needed:
                raise PeerError(
                    "some pods cannot begin from checkpoints.archive: they were made before it was set, or have an"
                    " older runtime. Suspend and resume the job"
                )
            self._saves = {}
        if not is_new:
            return holdings
        fresh = Record(self._place.generation, 1 if before is None else before.number + 1, files, shared)
        try:
            self._directory.chunks.save_record(fresh)
        except FullError:
            logger.warning("There is no room to record the last checkpoint; an older one is used.")
            return holdings
        self._records[fresh.name] = fresh
        return choice.add_fresh(holdings, before, fresh, reports)

    def _find_saves(
        self, *, is_needed: bool, all_there: bool, is_fresh: bool = False, lost: frozenset[str] = frozenset()
    ) -> dict[str, Saved]:
        """What the last tier has, if the pods have nothing whole, or a lost one may have had something newer."""
        if self._last_tier is None or (all_there and not is_needed):
            return {}
        saves: dict[str, Saved] = {}
        for one in self._last_tier.find(self._pause, is_needed=is_needed, is_fresh=is_fresh, lost=lost):
            saves.setdefault(one.record.name, one)
        return saves

    def _plan(self, holdings: Mapping[int, Sequence[Holding]], failed: frozenset[str]) -> dict[str, Any]:
        """What to restore: of the same record, the pods' copies are preferred to the last tier's."""
        chosen = choice.choose_record(holdings, failed)
        saved = choice.choose_saved([one.record for one in self._saves.values()], chosen, failed)
        # Lost while they were read: others may have come.
        if saved is None and chosen is None and self._saves and not self._unfit_elsewhere:
            self._saves = self._find_saves(is_needed=True, all_there=False, lost=failed)
            saved = choice.choose_saved([one.record for one in self._saves.values()], chosen, failed)
        if saved is not None:
            found = self._saves[saved.name]
            return {"name": saved.name, "holdings": {}, "archive": {"url": found.url, "save": found.name}}
        if chosen is None and self._unfit_elsewhere:  # not anew: what all of them cannot have is still there
            raise PeerError(
                f"there is no checkpoint that all pods can have: {self._unfit_elsewhere}. Let spec.checkpoints.path be"
                " on a file system that takes these names, or begin from another save"
            )
        if chosen is None:
            return {"name": "", "holdings": {}}
        held = {rank: [one.dump() for one in held if one.name == chosen.name] for rank, held in holdings.items()}
        return {"name": chosen.name, "holdings": {rank: found for rank, found in held.items() if found}}

    def _note_unfit(self, attempt: int, done: Sequence[bool]) -> None:
        for rank in (rank for rank, is_done in enumerate(done) if not is_done):
            key = f"unfit/{attempt}/{rank}"
            if self._has(key):
                self._unfit_elsewhere = f"that of rank {rank} cannot have {self._get([key])[0]}"

    # All ranks.

    def _join(self, peers: Peers, joined: Joined) -> None:
        place = self._place
        while True:
            try:
                peers.tell(0, "join", joined.dump(), generation=place.generation, rank=place.rank)
            except (PeerError, OSError) as error:  # rank 0 is not here yet, or has another key for a moment
                logger.debug("rank 0 does not take what this pod holds: %s", error)
                self._pause()
            else:
                return

    def _get_records(self, peers: Peers, known: Sequence[Sequence[str]]) -> None:
        """Get what other pods know, by rank: this one may hold files of a record that it has not heard of."""
        for name in dict.fromkeys(str(name) for names in known for name in names):
            self._find_record(peers, name, [rank for rank, names in enumerate(known) if name in names])

    def _find_record(self, peers: Peers, name: str, ranks: Sequence[int]) -> Record | None:
        if name not in self._records:
            start = self._place.rank % max(len(ranks), 1)  # each begins elsewhere, so that the load is spread
            others = [rank for rank in (*ranks[start:], *ranks[:start]) if rank != self._place.rank]
            data = peers.fetch("record", others, lambda data: _is_record(data, name), self._pause, name=name)
            if data is None:
                return None
            self._records[name] = records.parse_record(data)
        return self._records[name]

    def _open_source(self, plan: Mapping[str, Any]) -> Source | None:
        """The save of the last tier that rank 0 has chosen; None if it has chosen the pods' copies, or it is lost."""
        said = plan.get("archive")
        if self._last_tier is None or not isinstance(said, dict):
            return None
        source = self._last_tier.open(said, (self._place.rank, self._place.size), self._pause)
        return source if source is not None and source.record.name == plan["name"] else None

    def _read_share(self, source: Source | None, attempt: int) -> None:
        """Get this pod's share from the last tier, and wait until all pods have theirs: each serves the others.

        Where there are no others, what lies alone is read when it is written, once.
        """
        place = self._place
        try:
            if source is not None:
                source.read_share(self._keep, self._pause, packs_only=self._is_alone)
        except PeerError as error:  # whoever needs the rest reads it from the store
            logger.debug("could not get all of this pod's share: %s", error)
        self._set(f"share/{attempt}/{place.rank}", True)
        if place.rank == 0:
            self._get([f"share/{attempt}/{one}" for one in range(place.size)])
            self._set(f"shares/{attempt}", True)
        self._get([f"shares/{attempt}"])

    def _restore(
        self, peers: Peers, name: str, holdings: Mapping[int, Sequence[Holding]], source: Source | None
    ) -> Record | None:
        """Make the directory contain this record. None if a part of it is nowhere undamaged, or there is none.

        `source`: the save of the last tier that has it. Raises OSError if this pod cannot write it: that is nothing
        against the record. Raises UnfitError if it never can.
        """
        if source is not None:
            record: Record | None = source.record
        else:
            record = self._find_record(peers, name, sorted({0, *holdings})) if name else None
        if name and record is None:
            return None
        files = {} if record is None else record.files
        index_of = {path: index for index, path in enumerate(sorted(files))}
        homes = {digest: index_of[path] for path, file in files.items() for digest in file.chunks}

        masks = choice.find_masks(name, holdings)
        expected = set[str]()  # chunks that this pod does not have, so that it need not look for them

        def fetch(digest: str) -> bytes:
            if self._interrupted():
                raise InterruptedEntryError
            if digest in expected and source is not None:
                expected.discard(digest)
                return source.read(digest, self._pause)
            data = self._directory.read_chunk(digest)
            if data is None and source is not None:
                return self._fetch_saved(peers, digest, source)
            if data is None:
                ranks = choice.find_holders(homes[digest], masks, self._place.rank)
                data = peers.fetch("get", ranks, lambda data: digest_of(data) == digest, self._pause, digest=digest)
            if data is None:
                raise PeerError(f"no undamaged copy of the chunk {digest[:12]} is left")
            return data

        if self._place.touches:
            if source is not None and self._is_alone:
                fetched = self._directory.find_fetched(files)
                source.expect(fetched, self._keep)
                expected.update(fetched)
            try:
                self._directory.restore(files, fetch)
            except PeerError as error:
                logger.warning("Could not restore the checkpoint %s: %s", name, error)
                return None
        if record is not None:
            try:
                self._directory.chunks.save_record(record)
            except FullError:
                logger.warning("There is no room to record the checkpoint %s in this pod.", name)
        return record

    def _fetch_saved(self, peers: Peers, digest: str, source: Source) -> bytes:
        """A chunk of the last tier, from the pod that has read it if that has it."""
        owner = source.find_owner(digest)
        if owner != self._place.rank:
            try:
                _, data = peers.call(owner, "get", digest=digest)
                if digest_of(data) == digest:
                    return data
            except (PeerError, OSError) as error:
                logger.debug("rank %d does not hand out a chunk: %s", owner, error)
        return source.read(digest, self._pause)

    def _keep(self, digest: str, data: bytes) -> bool:
        if not self._is_full:
            try:
                self._directory.chunks.keep(digest, data)
            except FullError:
                self._is_full = True
        return not self._is_full

    # The store.

    def _pause(self) -> None:
        if self._interrupted():
            raise InterruptedEntryError
        time.sleep(max(_POLL, self._place.size / _POLLS_PER_SECOND))

    def _seal(self, key: str, text: bytes) -> bytes:
        said = f"{self._place.generation}/{key}/".encode() + text
        return hmac.new(self._key().encode(), said, hashlib.sha256).hexdigest().encode() + text

    def _set(self, key: str, value: Any) -> None:
        try:
            self._store.set(f"{_PREFIX}/{key}", self._seal(key, zlib.compress(json.dumps(value).encode(), 1)))
        except RuntimeError as error:  # the store is closed: its host is gone, or the world is over
            raise InterruptedEntryError from error

    def _has(self, key: str) -> bool:
        try:
            return self._store.check([f"{_PREFIX}/{key}"])
        except RuntimeError as error:
            raise InterruptedEntryError from error

    def _get(self, keys: list[str]) -> list[Any]:
        """The values of these keys, once all are there. Raises PeerError if one was not written by an agent."""
        try:
            while not self._store.check([f"{_PREFIX}/{key}" for key in keys]):
                self._pause()
            found = {key: bytes(self._store.get(f"{_PREFIX}/{key}")) for key in keys}
        except RuntimeError as error:
            raise InterruptedEntryError from error
        for key, data in found.items():
            if not hmac.compare_digest(data, self._seal(key, data[64:])):
                raise PeerError("a value in the store of the world was made with another key")
        return [json.loads(zlib.decompress(data[64:])) for data in found.values()]


def _is_record(data: bytes, name: str) -> bool:
    try:
        return records.parse_record(data).name == name
    except records.RecordError:
        return False
