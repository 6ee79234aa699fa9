"""The copies that a pod holds, and the room that they may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticjob.peers import chunks
from elasticjob.peers.chunks import ChunkStore, FullError, digest_of


def test_many_small_chunks_are_stored_without_a_look_at_all_files_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    real = chunks._size_of

    def count(folder: Path) -> int:
        looks.append(folder)
        return real(folder)

    monkeypatch.setattr(chunks, "_size_of", count)
    monkeypatch.setattr(chunks, "_MEASURE_SECONDS", 600.0)
    beside = tmp_path / "files"
    beside.mkdir()
    store = ChunkStore(tmp_path / "copies", beside, 3000)
    stored = 0
    with pytest.raises(FullError):
        while True:
            data = b"%0100d" % stored
            store.put(digest_of(data), data)
            stored += 1
    assert stored == 30
    assert len(looks) == 2, "once at each of the two folders"


def test_after_a_refusal_the_room_is_measured_again(tmp_path: Path) -> None:
    beside = tmp_path / "files"
    beside.mkdir()
    (beside / "old.pt").write_bytes(bytes(90))
    store = ChunkStore(tmp_path / "copies", beside, 100)
    data = bytes(50)
    with pytest.raises(FullError):
        store.put(digest_of(data), data)
    (beside / "old.pt").unlink()
    store.put(digest_of(data), data)
    assert store.get(digest_of(data)) == data
