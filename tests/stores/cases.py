"""What holds for an archive in every store: `place` is the URL of an empty folder, and the folder with the keys."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from elasticjob.archive import commands, reading
from elasticjob.archive.layout import ALONE, Object, locate
from elasticjob.archive.storage import NotThereError, Storage
from elasticjob.archive.writing import Leader, Sender
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.records import File, Record


def test_a_save_comes_back_whole_and_only_what_changed_is_sent(place: tuple[str, Path]) -> None:
    rng = random.Random(1)
    files = {f"small/{i}": rng.randbytes(200) for i in range(50)} | {"large": rng.randbytes(ALONE + 5)}
    chunks = {digest_of(data): data for data in files.values()}
    storage = Storage(*place)
    sender, leader = Sender(storage, chunks.get, 1e12), Leader(storage, "uid", 1, 1, lambda: "now")

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        for objects in shares.values():
            sender.send(objects, lambda: False)

    def save(number: int) -> None:
        record = Record(1, number, {path: File(len(data), 0o600, (digest_of(data),)) for path, data in files.items()})
        leader.save(record, number, lambda missing: dict.fromkeys(missing, (0,)), send)
        leader.tidy()

    save(1)
    assert len(storage.list("objects")) == 2, "small files are packed"
    sent = sender.bytes
    for number in (2, 3, 4):
        files["small/0"] = bytes([number]) * 300
        chunks[digest_of(files["small/0"])] = files["small/0"]
        save(number)
    assert sender.bytes == sent + 900
    found = reading.find_saves(Storage(*place))
    assert found[0][1].step == 4
    places = locate(found[0][1].objects)
    read = {
        path: b"".join(reading.read_chunk(storage, digest, places[digest]) for digest in file.chunks)
        for path, file in found[0][1].record.files.items()
    }
    assert read == files
    assert len(found) <= 2, "older saves are gone"


def test_old_saves_are_pruned(place: tuple[str, Path], tmp_path: Path) -> None:
    storage = Storage(*place)
    chunks = {digest_of(data): data for data in (b"shared", *(str(step).encode() for step in range(4)))}
    leader, sender = Leader(storage, "uid", 1, 9, lambda: "now"), Sender(storage, chunks.get, 1e12, has_hurry=True)

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        for objects in shares.values():
            sender.send(objects, lambda: False)

    for step in range(4):
        names = {"shared": b"shared", "own": str(step).encode()}
        record = Record(1, step + 1, {path: File(len(data), 0o600, (digest_of(data),)) for path, data in names.items()})
        leader.save(record, step, lambda missing: dict.fromkeys(missing, (0,)), send)
    assert [save.step for save in commands.prune(storage, 2, dry_run=True).saves] == [1, 0]
    commands.prune(storage, 2, dry_run=False)
    assert [save.step for _, save in reading.find_saves(storage)] == [3, 2]
    assert commands.pull(storage, tmp_path / "target", 2).step == 2
    assert (tmp_path / "target/shared").read_bytes() == b"shared"
    assert not storage.list("garbage")


def test_a_folder_is_pushed_and_pulled(place: tuple[str, Path], tmp_path: Path) -> None:
    storage = Storage(*place)
    (tmp_path / "source/step-7").mkdir(parents=True)
    files = {"step-7/model": random.Random(5).randbytes(5 << 20), "latest": b"step-7"}
    for path, data in files.items():
        (tmp_path / "source" / path).write_bytes(data)
    commands.push(storage, tmp_path / "source", 7)
    assert commands.pull(storage, tmp_path / "target", 7).step == 7
    assert {path: (tmp_path / "target" / path).read_bytes() for path in files} == files
    with pytest.raises(commands.CommandError, match="in use"):
        commands.push(storage, tmp_path / "source")


def test_what_is_not_there_is_no_error_of_the_store(place: tuple[str, Path]) -> None:
    storage = Storage(*place)
    with pytest.raises(NotThereError):
        storage.get("saves/none")
    with pytest.raises(NotThereError):
        storage.get("saves/none", 0, 5)
    storage.delete("saves/none")
    assert storage.list("nothing") == {}
    storage.put("saves/empty", b"")
    assert storage.list("saves") == {"empty": 0}
    assert storage.get("saves/empty") == b""


def test_what_was_written_is_shown_at_once(place: tuple[str, Path]) -> None:
    """Also by a client that has just looked: none of them keeps an answer."""
    storage, other = Storage(*place), Storage(*place)
    for data in (b"one", b"another"):
        storage.put("leads/x", data)
        assert other.get("leads/x") == data
        assert other.list("leads") == {"x": len(data)}
        assert other.get("leads/x", 1, 3) == data[1:3]
    other.delete("leads/x")
    assert storage.list("leads") == {}


def test_a_part_that_is_not_there_has_no_bytes(place: tuple[str, Path]) -> None:
    """An object may have been cut off, or emptied: no store that does not answer, which would be asked for ever."""
    storage = Storage(*place)
    storage.put("objects/x", b"")
    storage.put("objects/y", b"abc")
    assert storage.get("objects/x", 0, 10) == b""
    assert storage.get("objects/y", 3, 10) == b""
    assert storage.get("objects/y", 8, 10) == b""
    assert storage.get("objects/y", 1, 10) == b"bc"
