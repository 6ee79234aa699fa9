"""What restoring from an archive costs: requests, reads and checks, however slow the store is."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob import env
from elasticjob.archive import commands, layout
from elasticjob.archive.storage import Storage
from elasticjob.peers import chunks
from elasticjob.peers.records import CHUNK_BYTES
from worker.peers import gang as gangs
from worker.peers.gang import Gang

pytestmark = pytest.mark.timeout(120)

FILES = {f"{number}.bin": os.urandom(2 * CHUNK_BYTES + 1 + number) for number in range(3)}
SMALL = {f"small/{number}": os.urandom(2000) for number in range(20)}


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    yield from gangs.make(tmp_path)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """In which there is one save."""
    (tmp_path / "source" / "small").mkdir(parents=True)
    for path, data in {**FILES, **SMALL}.items():
        (tmp_path / "source" / path).write_bytes(data)
    storage = Storage(f"file://{tmp_path}/store/other")
    commands.push(storage, tmp_path / "source", 1)
    return storage


def enter(gang: Gang, storage: Storage, size: int) -> None:
    settings = env.Archive(f"file://{gang.folder}/store/uid", "uid", origin=(storage.url, None))
    pods = [gang.pod(archive=settings) for _ in range(size)]
    assert gang.enter(*pods) == [True] * size
    for pod in pods:
        assert pod.read() == {**FILES, **SMALL}


class Counted:
    """In the place of `hashlib`, for what checks chunks."""

    def __init__(self, real: Any) -> None:
        self._real, self.bytes = real, 0

    def sha256(self, data: bytes) -> Any:
        self.bytes += len(data)
        return self._real.sha256(data)


def test_a_pod_that_is_alone_reads_and_checks_each_byte_once(
    gang: Gang, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else needs them. What is packed with others is kept as copies first, and checked again."""
    counted, got, get = Counted(chunks.hashlib), list[int](), Storage.get

    def note(self: Storage, name: str, start: int | None = None, end: int | None = None) -> bytes:
        data = get(self, name, start, end)
        got.append(len(data) if name.startswith(layout.OBJECTS) else 0)
        return data

    monkeypatch.setattr(chunks, "hashlib", counted)
    monkeypatch.setattr(Storage, "get", note)
    pod = gang.pod(archive=env.Archive(f"file://{gang.folder}/store/uid", "uid", origin=(storage.url, None)))
    checked = list[int]()
    pod.keeper._on_kept = lambda number, copies: checked.append(counted.bytes)  # the world begins
    assert gang.enter(pod) == [True]
    large, small = sum(map(len, FILES.values())), sum(map(len, SMALL.values()))
    assert sum(got) == large + small
    assert checked[0] <= large + 3 * small
    assert pod.read() == {**FILES, **SMALL}
    assert len(list(gang.folder.rglob("chunks/*"))) == 6 + 3 + len(SMALL), "and keeps a copy of it"


@pytest.mark.parametrize("size", [0, 1, 2], ids=["pull", "one pod", "two pods"])
def test_a_store_is_asked_for_several_objects_at_once(
    size: int, gang: Gang, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer of a store takes long, so one after the other would take as many times as long."""
    together, get = Together(max(2, size + 1)), Storage.get

    def wait(self: Storage, name: str, start: int | None = None, end: int | None = None) -> bytes:
        if name.startswith(layout.OBJECTS):
            together.meet()
        return get(self, name, start, end)

    monkeypatch.setattr(Storage, "get", wait)
    if size:
        enter(gang, storage, size)
    else:
        commands.pull(storage, tmp_path / "target")
    assert together.most >= together.wanted
    assert together.most <= 4 * max(size, 1), "memory is bounded"


class Together:
    """How many are here at once."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.most, self._here, self._changed = wanted, 0, 0, threading.Condition()

    def meet(self) -> None:
        with self._changed:
            self._here += 1
            self.most = max(self.most, self._here)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.wanted, 3.0)
            self._here -= 1
