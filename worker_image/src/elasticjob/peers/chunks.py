"""The copies that a pod holds: chunks by their SHA-256, and the records that name them. Thread-safe.

A chunk is verified whenever it is read: a damaged one is removed and never handed out. Files appear by a rename.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elasticjob.peers import records, tree
from elasticjob.peers.records import Record

_MEASURE_SECONDS: Final = 1.0  # between two looks at the size of all files
_MEASURE_PART: Final = 20.0  # so many times as long as a look takes: a twentieth of the time
_YOUNG: Final = 600.0  # seconds for which a chunk that no record has named is kept: it may belong to the next one


class FullError(Exception):
    """There is no room for another copy. Nothing was stored."""


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class ChunkStore:
    """A folder of chunks and records."""

    def __init__(self, folder: Path, beside: Path, limit: int | None) -> None:
        """`limit`: bytes that this folder and `beside`, the script's directory, may take together; None: any."""
        self._chunks, self._records = folder / "chunks", folder / "records"
        self._chunks.mkdir(parents=True, exist_ok=True)
        self._records.mkdir(exist_ok=True)
        self._beside = beside
        self._limit = limit
        self._named = _find_named(self.read_records())  # chunks of the records that are kept
        self._touched: dict[str, float] = {}  # other chunks: when they were asked for or stored
        self._count = itertools.count()
        self._parts: set[str] = set()  # names of files that are being written
        self._lock = threading.Lock()
        self._size = 0  # of both folders, as it was measured and with what was stored since ...
        self._measure_at = 0.0  # ... and when it is measured again

    def has(self, digest: str) -> bool:
        """Whether this chunk is there. It is then kept for a while, even if no record names it yet."""
        with self._lock:
            self._touch(digest)
            return (self._chunks / digest).exists()

    def get(self, digest: str) -> bytes | None:
        """The chunk; None if it is not there or was damaged."""
        path = self._chunks / digest
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if digest_of(data) == digest:
            return data
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, digest: str, data: bytes) -> None:
        """Store a chunk. Raises FullError, and ValueError if it is not what the digest says."""
        if digest_of(data) != digest:
            raise ValueError("the chunk is damaged")
        self.keep(digest, data)

    def keep(self, digest: str, data: bytes) -> None:
        """Store a chunk that was checked when it was read. Raises FullError. Threads write at the same time."""
        path = self._chunks / digest
        with self._lock:
            self._touch(digest)
            if path.exists():
                return
            self._make_room(len(data))
            part = self._name_part(path)
            self._parts.add(part.name)
        try:
            _write(part, path, data)
        finally:
            with self._lock:
                self._parts.discard(part.name)

    def _touch(self, digest: str) -> None:
        if digest not in self._named:
            self._touched[digest] = time.monotonic()

    def _make_room(self, size: int) -> None:
        if self._limit is None:
            return
        began = time.monotonic()
        if began >= self._measure_at:
            self._size = _size_of(self._chunks) + _size_of(self._beside)
            took = time.monotonic() - began
            self._measure_at = began + max(_MEASURE_SECONDS, _MEASURE_PART * took)  # of many files that takes long
        if size + self._size > self._limit:
            self._measure_at = 0.0  # there may be room again
            raise FullError
        self._size += size

    def _name_part(self, path: Path) -> Path:
        return path.with_name(f"{path.name}-{next(self._count)}.part")

    def read_records(self) -> list[Record]:
        """All records, oldest first; damaged ones are left out."""
        found = []
        for path in self._records.iterdir():
            with contextlib.suppress(OSError, records.RecordError):
                record = records.parse_record(path.read_bytes())
                if record.name == path.name:
                    found.append(record)
        return sorted(found, key=lambda record: record.order)

    def save_record(self, record: Record) -> None:
        """Store a record, and remove what the last ones do not name. Raises FullError."""
        with self._lock:
            path = self._records / record.name
            _write(self._name_part(path), path, record.dump())
        kept = records.choose_kept(self.read_records())
        names = {one.name for one in kept}
        for path in self._records.iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)
        self._sweep(_find_named(kept))

    def _sweep(self, named: frozenset[str]) -> None:
        with self._lock:
            young = time.monotonic() - _YOUNG
            self._touched = {digest: at for digest, at in self._touched.items() if digest not in named}
            self._named = named
            for path in self._chunks.iterdir():
                if path.name not in named | self._parts and self._touched.get(path.name, 0.0) < young:
                    path.unlink(missing_ok=True)
            self._touched = {digest: at for digest, at in self._touched.items() if at >= young}


def _write(part: Path, path: Path, data: bytes) -> None:
    """Let a file appear whole. `part`: its name until then. Raises FullError."""
    try:
        part.write_bytes(data)
        part.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise FullError from error


def _find_named(kept: Sequence[Record]) -> frozenset[str]:
    return frozenset().union(*(records.digests_of(one.files) for one in kept))


def _size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for where, names in tree.walk(os.fspath(folder), lambda _: None):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size  # noqa: PTH118 - of many files
    return total
