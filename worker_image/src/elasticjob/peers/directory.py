"""This pod's checkpoint directory: what is finished in it, what was restored, and where a chunk lies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from elasticjob.peers import folder, records, unfinished
from elasticjob.peers.choice import Holding
from elasticjob.peers.chunks import ChunkStore, digest_of
from elasticjob.peers.records import File, Files, Record, Report, entry_of
from elasticjob.peers.watch import QUIET, Stat, Watch

_LOGS_EVERY: Final = 2.0  # seconds: how often to look for logs


class Workers(Enum):
    """What the state of the workers says of the files that they wrote last."""

    RUN = "run"  # finished once they rest
    DONE = "done"  # finished: all workers have exited by themselves
    BROKEN = "broken"  # perhaps cut off: a worker was killed or failed, or none was started


@dataclass(frozen=True)
class Known:
    """A file whose content was read when it had this `stat`."""

    stat: Stat
    file: File
    restored: bool  # by the agent, not written by the script


@dataclass(frozen=True)
class View:
    """What one look found."""

    written: Files = field(default_factory=dict)  # finished files that were not restored
    gone: frozenset[str] = frozenset()
    unready: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()  # of these: what holds a link, socket or pipe that cannot be copied
    unfit: Mapping[str, str] = field(default_factory=dict)  # of these: what has a path that is too long, and which
    held: str = ""  # a file that has long been in an entry that is never finished, and why that is so

    def as_report(self, copies: int) -> Report:
        return Report(self.written, self.gone, self.unready, copies)


class Directory:
    """Looks from one thread at a time; chunks may be read from any."""

    def __init__(self, root: Path, chunks: ChunkStore) -> None:
        self.root = root
        self.chunks = chunks
        self._watch = Watch(quiet=QUIET)
        self._unready: frozenset[str] = frozenset()  # at the last look, by `_watch`
        self._logs = unfinished.Logs()
        self._sought_logs = -_LOGS_EVERY  # when they were looked for last
        self._open: frozenset[str] = frozenset()  # files that workers had open for writing, when that was asked last
        self._held: dict[str, unfinished.Held] = {}  # files that are not known yet, and what is written beside them
        self._known: dict[str, Known] = {}
        self._where: dict[str, tuple[str, int]] = {}  # by digest: path and number of the chunk
        self._lock = threading.Lock()
        self._given = folder.scan(root)  # before any worker ran: by an init container

    def look(
        self, record: Record | None, workers: Workers, pids: list[int], is_same: Callable[[], bool] = lambda: True
    ) -> View:
        """Look at all files, and read those that are finished and not known yet.

        `is_same`: whether the workers still are as `workers` says. If not, one may have been killed while it wrote what
        was read.
        """
        now = time.monotonic()
        files = folder.scan(self.root)
        self._logs = self._logs.look(now, files, self._find_appending(now, pids if workers is Workers.RUN else []))
        files = {path: stat for path, stat in files.items() if path not in self._logs.found}
        self._watch = self._watch.look(now, files, self._unready)
        paths, ended = self._watch.finishable, workers is Workers.DONE
        fresh = [path for path in paths if not self._is_known(path)]
        self._unready = self._watch.find_unready(now, ended=ended)
        if workers is not Workers.BROKEN and any(entry_of(path) not in self._unready for path in fresh):
            self._read_finished(now, fresh, pids, is_same, ended=ended)
        unknown = [path for path in paths if not self._is_known(path)]
        able = {path for path in unknown if folder.can_copy(self.root / path, self.root)}
        torn = set(map(entry_of, able))
        unready = self._watch.find_unready(now, self._unready | torn, ended=ended).union(map(entry_of, unknown))
        ready = {path: self._known[path] for path in paths if entry_of(path) not in unready}
        return View(
            written={path: known.file for path, known in ready.items() if not known.restored},
            gone=frozenset(path for path in self._find_gone(record) if entry_of(path) not in unready),
            unready=unready,
            left_out=frozenset(map(entry_of, set(unknown) - able)) - torn,
            unfit={
                entry_of(path): folder.describe_unfit(path)
                for path in sorted(unknown, reverse=True)
                if self._watch.files[path] == folder.UNREADABLE
            },
            held=self._find_held(now, able if workers is Workers.RUN else frozenset()),
        )

    def _find_held(self, now: float, unknown: Collection[str]) -> str:
        """One of these files that is never finished, and why that is so."""
        files = self._watch.files
        # Others cannot be read, or are cut off. One that is open for writing may be known.
        suspects = {*unknown, *(self._open & files.keys())} if unknown else ()
        busy = {path: files[path] for path in suspects if entry_of(path) in self._unready}
        self._held = unfinished.look(self._held, now, busy)
        return unfinished.describe(self._held, now, self._open, set(filter(self._is_known, busy)))

    def _find_appending(self, now: float, pids: list[int]) -> list[str] | None:
        """What workers have open to append to, in a directory with entries that are not finished; None if not asked."""
        if not (self._unready and pids):
            return []
        if now - self._sought_logs < _LOGS_EVERY:
            return None
        self._sought_logs = now
        return [path for path, appends in folder.find_open(self.root, list(pids)).items() if appends]

    def _read_finished(
        self, now: float, fresh: list[str], pids: list[int], is_same: Callable[[], bool], *, ended: bool
    ) -> None:
        """Read those of these files that are finished. What changes meanwhile is not, nor what was saved with it."""
        self._open = frozenset(folder.find_open(self.root, list(pids)).keys() - self._logs.found.keys())
        busy = frozenset(map(entry_of, self._open))
        self._unready = self._watch.find_unready(now, busy | self._find_changed(fresh), ended=ended)
        read = self._read([path for path in fresh if entry_of(path) not in self._unready])
        for path, known in read.items() if is_same() else ():
            self._note(path, known)
        self._unready = self._watch.find_unready(now, self._unready | self._find_changed(fresh), ended=ended)

    def _find_gone(self, record: Record | None) -> set[str]:
        """What the script has deleted of this record; of an entry that is gone also what other pods wrote into it."""
        files = frozenset() if record is None else record.files.keys()
        gone = (files & self._known.keys()) - self._watch.files.keys()
        entries = set(map(entry_of, gone)) - self._watch.entries
        return gone | {path for path in files if entry_of(path) in entries}

    def _is_known(self, path: str) -> bool:
        return path in self._known and self._known[path].stat == self._watch.files.get(path)

    def _find_changed(self, paths: list[str]) -> frozenset[str]:
        """The entries of those of these files that have changed since the last look."""
        return frozenset(entry_of(p) for p in paths if folder.scan_one(self.root / p) != self._watch.files[p])

    def find_present(self, files: Files) -> Files:
        """Those of these files that were in the directory at the last look."""
        return {path: file for path, file in files.items() if self._is_known(path) and self._known[path].file == file}

    def _read(self, paths: list[str]) -> dict[str, Known]:
        found = {}
        for path in paths:
            stat, place = self._watch.files[path], self.root / path
            if folder.is_cut_off(place):
                continue
            file = folder.read_file(place, self.root)
            if file is not None and folder.scan_one(place) == stat:
                found[path] = Known(stat, file, restored=False)
        return found

    def _note(self, path: str, known: Known) -> None:
        with self._lock:
            self._known[path] = known
            self._where.update({digest: (path, i) for i, digest in enumerate(known.file.chunks)})

    def read_chunk(self, digest: str) -> bytes | None:
        """The chunk, from the copies or from the script's own files; None if it is in neither, or damaged."""
        data = self.chunks.get(digest)
        if data is not None:
            return data
        with self._lock:
            where = self._where.get(digest)
        if where is None:
            return None
        data = folder.read_chunk(self.root / where[0], where[1])
        return data if digest_of(data) == digest else None

    def hold(self, digest: str) -> bool:
        """Whether the copies have this chunk. It is taken from the script's files if it is there."""
        if self.chunks.has(digest):
            return True
        data = self.read_chunk(digest)
        if data is not None:
            self.chunks.keep(digest, data)
        return data is not None

    def find_holding(self, record: Record) -> Holding:
        """Which files of the record this pod has whole."""
        have = 0
        for index, (path, file) in enumerate(sorted(record.files.items())):
            if self._has(path, file) or all(self.chunks.has(digest) for digest in file.chunks):
                have |= 1 << index
        return Holding(record.name, record.order, len(record.files), have)

    def find_lacking(self, record: Record) -> set[str]:
        """The chunks of a record that this pod has neither in a file nor in a copy."""
        files = [file for path, file in record.files.items() if not self._has(path, file)]
        return {digest for file in files for digest in file.chunks if not self.chunks.has(digest)}

    def find_fetched(self, files: Files) -> list[str]:
        """The chunks that `restore` fetches, in its order, and that are neither in a copy here nor in the directory."""
        absent = [file for path, file in _order(files) if not self._has(path, file)]
        digests = dict.fromkeys(digest for file in absent for digest in file.chunks)
        mine = records.digests_of({path: one.file for path, one in self._known.items() if self._has(path, one.file)})
        return [digest for digest in digests if digest not in mine and not self.chunks.has(digest)]

    def _has(self, path: str, file: File) -> bool:
        """Whether the script's directory has this file, as it is known."""
        known = self._known.get(path)
        return known is not None and known.file == file and folder.scan_one(self.root / path) == known.stat

    def restore(self, files: Files, fetch: Callable[[str], bytes]) -> None:
        """Make the directory contain these files, and nothing else that scripts have written.

        Oldest first, so that scripts that order checkpoints by time find the newest. Raises what `fetch` raises,
        OSError, and UnfitError if this pod cannot have one of these names.
        """
        for path, file in _order(files):
            if not self._has(path, file):
                folder.restore(self.root, path, file, fetch)
            stat = folder.scan_one(self.root / path)
            if stat is not None:
                self._note(path, Known(stat, file, restored=True))
        now = folder.scan(self.root)
        given = {path for path, stat in self._given.items() if now.get(path) == stat}
        folder.remove_all_but(self.root, {*files, *given})
        with self._lock:
            self._known = {path: known for path, known in self._known.items() if path in files}
        self._watch = Watch(quiet=QUIET).look(time.monotonic(), folder.scan(self.root))


def _order(files: Files) -> list[tuple[str, File]]:
    """As they were written, so that scripts that order checkpoints by time find the newest."""
    return sorted(files.items(), key=lambda item: (item[1].mtime_ns, item[0]))
