"""Pods of one job as keepers in this process: their directories are folders, their workers are what a test says."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from elasticjob import env
from elasticjob.archive.archive import Archive
from elasticjob.peers import directory, keeper
from elasticjob.peers.directory import Workers
from elasticjob.peers.entering import Place
from elasticjob.peers.keeper import Keeper
from elasticjob.protocol import wire

PATIENCE = 60.0


def wait_for(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.02)


def knows_that_all_leave(leader: Keeper) -> bool:
    """Whether rank 0 has heard that all pods of its world have been told to end."""
    with leader._lock:
        lead = None if leader._world is None else leader._world.lead
        return lead is not None and lead.do_all_leave


class FakeStore:
    """The store of a world, which all of its pods reach."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes, /) -> None:
        self._values[key] = value

    def get(self, key: str, /) -> bytes:
        return self._values[key]

    def check(self, keys: list[str], /) -> bool:
        return self._values.keys() >= set(keys)


class FakePod:
    """One pod, with its agent's keeper."""

    def __init__(
        self,
        folder: Path,
        node: str,
        *,
        key: str = "secret",
        limit: int | None = None,
        replicas: int = 1,
        archive: env.Archive | None = None,
        rate: float = 1e9,
    ) -> None:
        self.path = folder / "files"
        self.workers = Workers.RUN
        self.pids: list[int] = []
        self.kept: list[tuple[int, int]] = []
        self.step: int | None = None
        self.is_leaving = False
        self.archive = wire.Archive()
        settings = env.Checkpoints(self.path, folder / "copies", replicas, limit, node, rate)
        self.keeper = Keeper(
            settings,
            "127.0.0.1",
            lambda: key,
            lambda: (self.workers, list(self.pids)),
            lambda number, copies: self.kept.append((number, copies)),
            None if archive is None else partial(Archive, archive, tell=self._note, on_saved=lambda: None),
            lambda: self.step,
            is_leaving=lambda: self.is_leaving,
        )

    def _note(self, told: wire.Archive) -> None:
        self.archive = told

    @property
    def chunks(self) -> list[Path]:
        return list((self.path.parent / "copies" / "chunks").iterdir())

    @property
    def records(self) -> list[Path]:
        return list((self.path.parent / "copies" / "records").iterdir())

    def read(self) -> dict[str, bytes]:
        return {p.relative_to(self.path).as_posix(): p.read_bytes() for p in self.path.rglob("*") if p.is_file()}


class Gang:
    """The pods of a job, which form one world after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0
        self.generation = 0
        self.pods: list[FakePod] = []

    def pod(self, node: str = "", **options: object) -> FakePod:
        self.made += 1
        folder = self.folder / f"pod-{self.made}"
        folder.mkdir()
        pod = FakePod(folder, node or f"node-{self.made}", **options)  # type: ignore[arg-type]
        self.pods.append(pod)
        return pod

    def enter(self, *pods: FakePod, interrupted: Callable[[], bool] = lambda: False) -> list[bool]:
        """Form a world of these pods, by rank."""
        self.generation += 1
        store = FakeStore()
        entered = [False] * len(pods)

        def run(rank: int) -> None:
            place = Place(self.generation, rank, len(pods))
            entered[rank] = pods[rank].keeper.enter(store, place, interrupted)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(pods))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the world is entered"
        return entered

    def await_kept(self, pod: FakePod, number: int, copies: int = 1) -> None:
        """Wait until rank 0's pod tells of this checkpoint, with as many copies."""
        wait_for(lambda: pod.kept and pod.kept[-1] == (number, copies), f"{(number, copies)}; told: {pod.kept[-1:]}")

    def close(self) -> None:
        for pod in self.pods:
            pod.keeper.close()


def make(folder: Path) -> Iterator[Gang]:
    """Pods that wait for less than those of a cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "QUIET", 0.4)
        patch.setattr(keeper, "_LOOK_SECONDS", 0.1)
        patch.setattr(keeper, "_REPORT_SECONDS", 0.3)
        patch.setattr(keeper, "_GONE_SECONDS", 1.0)
        gang = Gang(folder)
        yield gang
        gang.close()


def limit_names(monkeypatch: pytest.MonkeyPatch, root: Path, most: int) -> None:
    """The file system of this directory has shorter names than others, as an encrypting one does."""
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target.is_relative_to(root) and len(target.name) > most:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(target))
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)


def make_deep(folder: Path) -> None:
    """A file whose path is longer than the system takes in one piece: a script gets there with `chdir`."""
    folder.mkdir(exist_ok=True)
    where = os.open(folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=where)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=where)
        os.close(where)
        where = below
    file = os.open("part.bin", os.O_CREAT | os.O_WRONLY, dir_fd=where)
    os.write(file, b"a part of the model")
    os.close(file)
    os.close(where)


def make_levels(folder: Path, count: int) -> Path:
    """A folder that lies so many levels deeper, and all on the way there. `pathlib` would call itself for each."""
    for _ in range(count):
        folder = folder / "d"
        folder.mkdir(exist_ok=True)
    return folder


def remove_levels(folder: Path, count: int) -> None:
    """For the end of a test: whoever clears its directory away calls itself for each level, too."""
    for levels in range(count, 0, -1):
        place = folder.joinpath(*["d"] * levels)
        for path in place.iterdir() if place.is_dir() else ():
            path.unlink()
        if place.is_dir():
            place.rmdir()
