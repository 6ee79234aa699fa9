"""How fast an agent sends: gradients use the same network."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from elasticjob.archive import layout, writing
from elasticjob.archive.ahead import AT_ONCE
from elasticjob.archive.storage import Storage, StoreError
from elasticjob.archive.writing import Sender
from elasticjob.peers.chunks import digest_of
from worker.archive.test_restoring import Together

RATE = 1000.0  # bytes a second
CHUNKS = [bytes([number]) * 500 for number in range(8)]


class FakeTime:
    """A clock that a sleep sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("hurry_at", [None, 101.0])
def test_the_rate_is_kept_until_there_is_a_hurry(
    hurry_at: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, chunks = FakeTime(), {digest_of(data): data for data in CHUNKS}
    monkeypatch.setattr(writing, "time", clock)
    sender = Sender(Storage(f"file://{tmp_path}"), chunks.get, RATE)

    def look() -> bool:
        sender.has_hurry = hurry_at is not None and clock.now >= hurry_at
        return False

    sender.send([layout.Object((1, 0), ((digest, 500),)) for digest in chunks], look)
    assert sender.bytes == 4000
    assert clock.now == pytest.approx(104.0 if hurry_at is None else hurry_at, abs=0.3)


@pytest.mark.parametrize(("has_hurry", "most"), [(False, 1), (True, AT_ONCE)])
def test_in_a_hurry_a_few_objects_are_sent_at_once(
    has_hurry: bool, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, put = Together(most), Storage.put

    def wait(self: Storage, name: str, data: bytes) -> None:
        together.meet()
        put(self, name, data)

    monkeypatch.setattr(Storage, "put", wait)
    chunks = {digest_of(data): data for data in CHUNKS}
    storage = Storage(f"file://{tmp_path}")
    sender = Sender(storage, chunks.get, 1e12)
    sender.has_hurry = has_hurry
    sender.send([layout.Object((1, 0), ((digest, 500),)) for digest in chunks], lambda: False)
    assert together.most == most
    assert (sender.bytes, len(storage.list("objects"))) == (4000, len(CHUNKS))


def test_in_a_hurry_what_was_sent_beside_a_failed_request_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grace period runs."""
    chunks = {digest_of(data): data for data in CHUNKS[:AT_ONCE]}
    objects = [layout.Object((1, 0), ((digest, 500),)) for digest in chunks]
    names, all_begun, put = list[str](), threading.Barrier(AT_ONCE), Storage.put

    def fail_first(self: Storage, name: str, data: bytes) -> None:
        names.append(name.rpartition("/")[2])
        if len(names) <= AT_ONCE:
            all_begun.wait(10.0)
            if name.endswith(objects[0].name):
                raise StoreError("busy")
        put(self, name, data)

    monkeypatch.setattr(Storage, "put", fail_first)
    storage = Storage(f"file://{tmp_path}")
    sender = Sender(storage, chunks.get, 1e12, has_hurry=True)
    with pytest.raises(StoreError, match="busy"):
        sender.send(objects, lambda: False)
    assert sender.bytes == 500 * (AT_ONCE - 1)
    sender.send(objects, lambda: False)
    assert names[AT_ONCE:] == [objects[0].name]
    assert (sender.bytes, len(storage.list("objects"))) == (500 * AT_ONCE, AT_ONCE)
