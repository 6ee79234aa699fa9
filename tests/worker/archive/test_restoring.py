"""What restoring from an archive costs: requests, reads and checks, however slow the store is."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticjob import env
from elasticjob.archive import commands, layout, reading
from elasticjob.archive.layout import Object, Save
from elasticjob.archive.restoring import Reader, Restorer
from elasticjob.archive.storage import Storage
from elasticjob.archive.writing import Leader, Sender
from elasticjob.peers import chunks
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.entering import Place
from elasticjob.peers.last_tier import Saved
from elasticjob.peers.records import CHUNK_BYTES, File, Record
from elasticjob.peers.transport import PeerError
from worker.peers import gang as gangs
from worker.peers.gang import Gang, limit_names, wait_for

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


def test_where_a_pod_cannot_have_the_only_save_that_is_told(
    gang: Gang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is not waited for another one, as if there were none."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / (name := "a-name-of-" + 190 * "x")).write_bytes(b"1")
    storage = Storage(f"file://{tmp_path}/store/other")
    commands.push(storage, tmp_path / "source", 1)
    pod = gang.pod(archive=env.Archive(f"file://{gang.folder}/store/uid", "uid", origin=(storage.url, None)))
    limit_names(monkeypatch, pod.path, 143)
    over = threading.Event()
    patience = threading.Timer(gangs.PATIENCE, over.set)
    patience.start()
    with pytest.raises(PeerError, match=name[:80]):
        pod.keeper.enter(gangs.FakeStore(), Place(1, 0, 1), over.is_set)
    patience.cancel()


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
    counted, got, get = Counted(hashlib), list[int](), Storage.get

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


def test_copies_without_room_are_not_tried_again_with_each_chunk(
    gang: Gang, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each one, the sizes of all files would be added up."""
    looked, size_of = list[Path](), chunks._size_of

    def look(folder: Path) -> int:
        looked.append(folder)
        return size_of(folder)

    monkeypatch.setattr(chunks, "_size_of", look)
    pod = gang.pod(archive=env.Archive(f"file://{gang.folder}/x/uid", "uid", origin=(storage.url, None)), limit=10**6)
    assert gang.enter(pod) == [True]
    assert pod.read() == {**FILES, **SMALL}
    assert len(looked) <= 6


@pytest.mark.parametrize("size", [1, 2])
def test_copies_are_written_by_several_threads_at_once(
    size: int, gang: Gang, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that read: a thread that wrote all of them would be what the restore waits for."""
    together, write = Together(2), chunks._write

    def wait(part: Path, path: Path, data: bytes) -> None:
        if path.parent.name == "chunks" and len(data) > layout.ALONE:
            together.meet()
        write(part, path, data)

    monkeypatch.setattr(chunks, "_write", wait)
    enter(gang, storage, size)
    assert together.most >= 2
    wait_for(lambda: not list(gang.folder.rglob("*.part")), "each is whole")


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


class Making:
    """Saves files in an archive by itself, as the agent of a world that is over and has not noticed."""

    def __init__(self, url: str) -> None:
        self.storage, self._number = Storage(url), 0
        self._leader = Leader(self.storage, "uid", 1, 9, lambda: "now")

    def save(self, data: bytes) -> None:
        chunks = {digest_of(data): data}
        sender, self._number = Sender(self.storage, chunks.get, float("inf"), has_hurry=True), self._number + 1

        def send(shares: Mapping[int, Sequence[Object]]) -> None:
            sender.send(shares.get(0, ()), lambda: False)

        record = Record(1, self._number, {"model.pt": File(len(data), 0o600, tuple(chunks))})
        self._leader.save(record, None, lambda missing: dict.fromkeys(missing, (0,)), send)


def damage(storage: Storage, saves: Sequence[tuple[str, Save]]) -> None:
    for _, save in saves:
        for one in save.objects:
            path = Path(storage.url.removeprefix("file://")) / layout.OBJECTS / one.name
            path.write_bytes(bytes(one.size))


@pytest.mark.parametrize("size", [1, 2])
def test_what_goes_while_it_is_restored_is_not_all_that_there_is(
    size: int, gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody prunes between the look and the read, and keeps a save that has come meanwhile."""
    url = f"file://{gang.folder}/store/uid"
    making, look = Making(url), Restorer.find
    for number in range(2):
        making.save(b"old" + bytes([number]))

    def look_and_prune(self: Restorer, *args: Any, **kwargs: Any) -> Sequence[Saved]:
        found = look(self, *args, **kwargs)
        monkeypatch.setattr(Restorer, "find", look)
        making.save(b"new")
        commands.prune(making.storage, 1, dry_run=False)
        return found

    monkeypatch.setattr(Restorer, "find", look_and_prune)
    pods = [gang.pod(archive=env.Archive(url, "uid")) for _ in range(size)]
    assert gang.enter(*pods) == [True] * size
    assert [pod.read() for pod in pods] == [{"model.pt": b"new"}] * size


def test_a_step_to_begin_from_that_goes_meanwhile_is_told_and_no_other_one_is_taken(gang: Gang, tmp_path: Path) -> None:
    """The job that has it goes on, and keeps newer ones."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.pt").write_bytes(b"of step 7")
    origin, look = Storage(f"file://{gang.folder}/store/other"), Restorer.find
    commands.push(origin, tmp_path / "source", 7)

    def look_and_lose(self: Restorer, *args: Any, **kwargs: Any) -> Sequence[Saved]:
        found = look(self, *args, **kwargs)
        for folder in (layout.SAVES, layout.OBJECTS):
            for name in origin.list(folder):
                origin.delete(f"{folder}/{name}")
        Making(origin.url).save(b"newer")
        return found

    pod = gang.pod(archive=env.Archive(f"file://{gang.folder}/store/uid", "uid", origin=(origin.url, 7)))
    over = threading.Event()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Restorer, "find", look_and_lose)
        entering = threading.Thread(target=gang.enter, args=(pod,), kwargs={"interrupted": over.is_set})
        entering.start()
        try:
            wait_for(lambda: pod.archive.reason == "NothingToRestore" or not entering.is_alive(), "it is told")
            assert entering.is_alive(), "it waits"
            assert "no whole save of step 7" in pod.archive.message
            assert pod.read() == {}
        finally:
            over.set()
            entering.join(30)


def test_two_jobs_begin_from_the_same_archive(gang: Gang, storage: Storage) -> None:
    """At once, each with a folder of its own; of the one that both read nothing changes."""
    before = sorted(path for path in (gang.folder / "store/other").rglob("*"))
    jobs = [
        gang.pod(archive=env.Archive(f"file://{gang.folder}/store/{uid}", uid, origin=(storage.url, None)))
        for uid in ("left", "right")
    ]
    for pod in jobs:
        assert gang.enter(pod) == [True]
        assert pod.read() == {**FILES, **SMALL}
        (pod.path / "model.pt").write_bytes(pod.path.name.encode())
    for uid in ("left", "right"):
        mine = Storage(f"file://{gang.folder}/store/{uid}")
        wait_for(lambda mine=mine: len(reading.find_saves(mine)) >= 1, "each archives its own")  # type: ignore[misc]
    assert sorted(path for path in (gang.folder / "store/other").rglob("*")) == before


def test_a_whole_save_is_found_behind_many_that_are_damaged(gang: Gang) -> None:
    url = f"file://{gang.folder}/store/uid"
    making = Making(url)
    for number in range(8):
        making.save(bytes([number]) * 9)
    damage(making.storage, reading.find_saves(making.storage)[:-1])
    pod = gang.pod(archive=env.Archive(url, "uid"))
    assert gang.enter(pod) == [True]
    assert pod.read() == {"model.pt": bytes(9)}


def test_a_job_does_not_begin_anew_where_all_that_it_is_to_begin_from_is_damaged(gang: Gang) -> None:
    making = Making(f"file://{gang.folder}/store/other")
    making.save(b"damaged")
    damage(making.storage, reading.find_saves(making.storage))
    pod = gang.pod(archive=env.Archive(f"file://{gang.folder}/store/uid", "uid", origin=(making.storage.url, None)))
    over = threading.Event()
    entering = threading.Thread(target=gang.enter, args=(pod,), kwargs={"interrupted": over.is_set})
    entering.start()
    try:
        wait_for(lambda: pod.archive.reason == "NothingToRestore" or not entering.is_alive(), "it is told")
        assert entering.is_alive(), "it waits"
    finally:
        over.set()
        entering.join(30)


def test_of_a_save_that_was_made_twice_the_whole_one_is_restored(gang: Gang, tmp_path: Path) -> None:
    url = f"file://{gang.folder}/store/uid"
    making = Making(url)
    making.save(b"before")
    making.save(b"twice")
    (_, save), *_ = reading.find_saves(making.storage)
    lost = Object((1, 7), save.objects[0].chunks)  # of the first attempt
    for time in ("a", "b", "c", "d", "e"):  # some of the names come before that of the whole one
        data = replace(save, time=time, objects=(lost,)).dump()
        making.storage.put(f"{layout.SAVES}/{layout.name_save(save.order, data)}", data)
    pod = gang.pod(archive=env.Archive(url, "uid"))
    assert gang.enter(pod) == [True]
    assert pod.read() == {"model.pt": b"twice"}
    commands.pull(making.storage, tmp_path / "target")
    assert (tmp_path / "target" / "model.pt").read_bytes() == b"twice"


def test_a_pod_of_a_large_world_sorts_the_objects_of_a_save_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terabyte has a quarter of a million of them: to sort them for each of a thousand pods takes minutes."""
    objects = tuple(Object((1, 0), ((f"{number:064x}", 5),)) for number in range(2000))
    save = Save("uid", Record(1, 1, {}), None, "now", objects)
    asked: list[int] = []
    share_of = layout.share_of

    def note(objects: Iterable[Object], rank: int, size: int) -> Iterator[Object]:
        asked.append(rank)
        return share_of(objects, rank, size)

    monkeypatch.setattr(layout, "share_of", note)
    reader = Reader(Storage(f"file://{tmp_path}"), save, save.record, 3, 500)
    assert reader.find_owner(objects[3].chunks[0][0]) == 3
    assert reader.find_owner(objects[1999].chunks[0][0]) == 1999 % 500
    assert len(asked) < 5
