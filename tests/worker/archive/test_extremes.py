"""Very many files, and very large ones: how many requests they take, and how much memory."""

from __future__ import annotations

import hashlib
import random
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from elasticjob import env
from elasticjob.archive import layout, reading
from elasticjob.archive.layout import Object
from elasticjob.archive.storage import Storage
from elasticjob.archive.writing import Leader, Sender
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.records import CHUNK_BYTES, File, Record
from worker.archive.faulty_store import Contents, FaultyFiles
from worker.peers import gang as gangs
from worker.peers.gang import Gang

pytestmark = pytest.mark.timeout(600)


def save(storage: Storage, record: Record, read: Any) -> Sender:
    sender = Sender(storage, read, 1e15)

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        for objects in shares.values():
            sender.send(objects, lambda: False)

    leader = Leader(storage, "uid", record.generation, 2, lambda: "now")
    leader.save(record, record.number, lambda missing: dict.fromkeys(missing, (0,)), send)
    leader.tidy()
    return sender


def connect(files: Any) -> Storage:
    storage = Storage("s3://bucket/job")
    storage._files, storage._used, storage._root = files, {}, "bucket/job"
    return storage


def test_a_hundred_thousand_small_files_take_few_requests() -> None:
    data = {f"folder-{i % 100}/{i}": f"the content of file {i}".encode() for i in range(100_000)}
    chunks = {digest_of(one): one for one in data.values()}
    files = {path: File(len(one), 0o600, (digest_of(one),)) for path, one in data.items()}
    contents = Contents()
    storage = connect(FaultyFiles(contents, random.Random(1)))
    sender = save(storage, Record(1, 1, files), chunks.get)
    assert contents.requests <= 20, "they are packed"
    assert contents.put_bytes <= sender.bytes + 20_000_000, "a manifest is 200 bytes for each file"
    changed = {**files, "folder-0/0": File(3, 0o600, (digest_of(b"new"),))}
    assert save(storage, Record(2, 1, changed), {**chunks, digest_of(b"new"): b"new"}.get).bytes == 3
    before = contents.requests
    ((_, newest),) = reading.find_saves(storage, most=1)
    read: dict[str, bytes] = {}
    for one in newest.objects:
        read |= reading.read_object(storage, one)
    assert {path: read[file.chunks[0]] for path, file in newest.record.files.items()} == {**data, "folder-0/0": b"new"}
    assert contents.requests - before <= 10


class LargeFile:
    """A file whose chunks are made when they are asked for, and a store that does not keep them."""

    def __init__(self, size: int) -> None:
        self._seeds: dict[str, int] = {}
        digests = []
        for index in range(size // CHUNK_BYTES):
            digest = digest_of(self._make(index))
            self._seeds[digest] = index
            digests.append(digest)
        self.record = Record(1, 1, {"large": File(len(digests) * CHUNK_BYTES, 0o600, tuple(digests))})
        self._small: dict[str, bytes] = {}
        self._large: dict[str, int] = {}

    @staticmethod
    def _make(index: int) -> bytes:
        return hashlib.sha256(str(index).encode()).digest() * (CHUNK_BYTES // 32)

    def read(self, digest: str) -> bytes:
        return self._make(self._seeds[digest])

    def invalidate_cache(self) -> None:
        pass

    def pipe_file(self, path: str, data: bytes) -> None:
        found = layout.parse_name(path.rpartition("/")[2])
        if found is None or found[1] not in self._seeds:
            self._small[path] = data
            return
        assert digest_of(data) == found[1]
        self._large[path] = len(data)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if path in self._small:
            return self._small[path][start:end]
        return self.read(path.rpartition("-")[2])[start:end]

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        sizes = {**self._large, **{name: len(data) for name, data in self._small.items()}}
        return [{"name": n, "size": s, "type": "file"} for n, s in sizes.items() if n.startswith(f"{path}/")]


@pytest.mark.parametrize("mib", [256, pytest.param(50 * 1024, marks=pytest.mark.long)])
def test_memory_does_not_grow_with_a_file(mib: int) -> None:
    large = LargeFile(mib << 20)
    storage = connect(large)
    tracemalloc.start()
    try:
        sender = save(storage, large.record, large.read)
        assert sender.bytes == mib << 20
        ((_, found),) = reading.find_saves(storage)
        for one in found.objects:
            assert reading.read_object(storage, one)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20, f"{peak >> 20} MiB"


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    yield from gangs.make(tmp_path)


@pytest.mark.parametrize("mib", [300, pytest.param(50 * 1024, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_a_large_file_goes_through_whole_pods(mib: int, gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all of it is a hole, so that a disk has room for it twice. All of it is read, checked and compared."""
    monkeypatch.setattr(gangs, "PATIENCE", 1800.0)
    size, settings = (mib << 20) + 5, env.Archive(f"file://{gang.folder}/store", "uid", 0.1, 2)
    first, second = (gang.pod(archive=settings) for _ in range(2))
    gang.enter(first)
    times = [time.monotonic()]
    tracemalloc.start()
    try:
        with (first.path / "tmp-model.pt").open("wb") as file:
            for index in range(7):
                file.seek((mib << 20) * index // 7)
                file.write(random.Random(index).randbytes(1000))
            file.truncate(size)
        (first.path / "tmp-model.pt").rename(first.path / "model.pt")
        gangs.wait_for(lambda: reading.find_saves(Storage(settings.url)), "it is archived")
        times.append(time.monotonic())
        first.keeper.close()
        gang.enter(second)
        times.append(time.monotonic())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{mib} MiB: archived {times[1] - times[0]:.0f} s, restored {times[2] - times[1]:.0f} s, {peak >> 20} MiB")
    given, restored = first.path / "model.pt", second.path / "model.pt"
    assert restored.stat().st_size == size
    with given.open("rb") as theirs, restored.open("rb") as ours:
        while data := theirs.read(CHUNK_BYTES):
            assert ours.read(CHUNK_BYTES) == data
    assert restored.stat().st_blocks * 512 <= 8 * CHUNK_BYTES, "holes are holes again"
    assert peak < 64 << 20
