"""How much is lost where all pods go without a notice: at most what was recorded in the last `everySeconds`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticjob import env
from elasticjob.archive import archive as archives
from elasticjob.archive import reading
from elasticjob.archive.archive import Archive
from elasticjob.archive.storage import Storage
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.last_tier import Members
from elasticjob.peers.records import File, Record
from worker.peers.gang import wait_for

pytestmark = pytest.mark.timeout(240)

EVERY = 600.0


class FakeTime:
    """The clock of the archive, which a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Pod:
    """The only pod of a world, whose archive is a directory."""

    def __init__(self, folder: Path, clock: FakeTime) -> None:
        self.clock, self.chunks, self._number = clock, dict[str, bytes](), 0
        self.storage = Storage(f"file://{folder}/store")
        settings = env.Archive(self.storage.url, "uid", EVERY, 2, None, None, 1e12)
        self.archive = Archive(settings, self.chunks.get, tell=lambda told: None, on_saved=lambda: None)
        self.archive.enter(
            Members(1, 0, 1, lambda *_: ({}, b""), lambda record: {}, shut=lambda: None, close=lambda: None)
        )

    def record(self) -> int:
        """Another record; its number."""
        self._number += 1
        data = str(self._number).encode()
        self.chunks[digest_of(data)] = data
        self.archive.offer(Record(1, self._number, {"model.pt": File(len(data), 0o600, (digest_of(data),))}), None)
        return self._number

    def pass_time(self, seconds: float) -> None:
        """Until its thread has done what is due by then."""
        self.clock.now += seconds
        wait_for(self._rests, "its thread has nothing to do")

    def _rests(self) -> bool:
        archive = self.archive
        with archive._changed:
            archive._changed.notify_all()
            world = archive._world
            assert world is not None
            return world.attempt > 0 and not archive._is_due(world, self.clock.now)

    def find_newest(self) -> int:
        found = reading.find_saves(self.storage, most=1)
        return found[0][1].record.number if found else 0


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    clock = FakeTime()
    monkeypatch.setattr(archives, "time", clock)
    pod = Pod(tmp_path, clock)
    yield pod
    pod.archive.close()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_not_archived_is_no_older_than_every_seconds(pod: Pod, seed: int) -> None:
    rng, recorded, begun, newest = random.Random(seed), dict[int, float](), list[float](), 0
    for _ in range(40):
        if rng.random() < 0.6:
            recorded[pod.record()] = pod.clock.now
        # First what was due before, so that the time of each archiving is known.
        for seconds in (0.0, rng.choice([1.0, 60.0, 299.0, EVERY, 1500.0])):
            pod.pass_time(seconds)
            before, newest, now = newest, pod.find_newest(), pod.clock.now
            if newest != before:
                begun.append(now)
            assert all(now - at < EVERY for number, at in recorded.items() if number > newest), (newest, recorded, now)
    assert begun and all(later - earlier >= EVERY for earlier, later in itertools.pairwise(begun)), begun
