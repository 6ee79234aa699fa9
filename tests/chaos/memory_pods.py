"""Pods of a job whose checkpoints peers hold: keepers, connections and files are real, scripts and kills are played."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from chaos import memory_store
from chaos.memory_judge import POINTER, Content, Directory, Happened, Lost, Restored, Save, Told, find_whole
from chaos.memory_network import Network, give_key
from chaos.memory_store import Store
from elasticjob import env
from elasticjob.archive.archive import Archive
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.directory import Workers
from elasticjob.peers.entering import Place
from elasticjob.peers.keeper import Keeper
from elasticjob.peers.records import CHUNK_BYTES
from worker.peers.gang import FakeStore, knows_that_all_leave

PATIENCE = 120.0  # seconds, on a busy machine
QUIET = 0.2  # seconds without a change after which a file is finished, here
LAYOUTS = ("file", "pair", "folder", "parts", "torch")
EVERY = 0.3  # seconds between two saves in the archive, here
KEEP = 2
_KEPT_FOLDERS = 2


def digest(data: bytes) -> Content:
    return tuple(digest_of(data[begin : begin + CHUNK_BYTES]) for begin in range(0, len(data), CHUNK_BYTES))


def read(root: Path) -> Directory:
    return {path.relative_to(root).as_posix(): digest(path.read_bytes()) for path in root.rglob("*") if path.is_file()}


class Pod:
    """One pod, with its agent's keeper."""

    def __init__(self, number: int, folder: Path, network: Network, replicas: int, limit: int | None,
                 on_kept: Callable[[Pod, int, int], None], store: Store | None = None) -> None:  # fmt: skip
        self.number, self.folder, self.limit = number, folder, limit
        self.path = folder / "files"
        self.workers = Workers.BROKEN
        self.is_lost = self.is_leaving = False
        self.is_left = threading.Event()  # the world that it enters is over
        settings = env.Checkpoints(self.path, folder / "copies", replicas, limit, f"node-{number}", 20e6)
        key = give_key(number, network)
        last_tier = None
        if store is not None:
            to = env.Archive(memory_store.give_url(number, store), "uid", EVERY, KEEP, None, None, 1e9)
            last_tier = partial(Archive, to, tell=lambda _: None, on_saved=lambda: None)
        self.keeper = Keeper(
            settings,
            "127.0.0.1",
            lambda: key,
            lambda: (self.workers, [os.getpid()]),
            lambda count, copies: on_kept(self, count, copies),
            last_tier,
            is_leaving=lambda: self.is_leaving,
        )
        network.ports[self.keeper._server.port] = number

    def find_chunks(self) -> list[Path]:
        return sorted(path for path in (self.folder / "copies/chunks").iterdir() if not path.suffix)

    def find_intact(self) -> set[str]:
        found = set()
        for path in self.find_chunks():
            with contextlib.suppress(FileNotFoundError):  # dropped meanwhile
                if digest_of(path.read_bytes()) == path.name:
                    found.add(path.name)
        return found


class Job:
    """Pods by rank, which form one world after another, and what was seen of them."""

    def __init__(self, folder: Path, size: int, replicas: int, layout: str, chance: random.Random,
                 store: Store | None = None) -> None:  # fmt: skip
        self.store = store
        self._ghosts: list[Pod] = []  # agents of an old world, which nobody reaches, and which reach the store
        self.folder, self.replicas, self.layout, self.chance = folder, replicas, layout, chance
        self.network = Network()
        self.saves: list[Save] = []
        self.happened: list[Happened] = []
        self._lock = threading.Lock()
        self._told: set[Told] = set()  # in this world
        self._tells = 0  # in this world: by rank 0, also of what it has told before
        self.is_stalled = False  # the machine stood still while the script wrote what it writes at once
        self._is_whole = True  # no pod was lost in this world
        self._steps: dict[int, int] = {}  # by save
        self._step = 0
        self._made = 0
        self._generation = 0
        self.pods = [self.make_pod() for _ in range(size)]

    def make_pod(self, limit: int | None = None) -> Pod:
        self._made += 1
        folder = self.folder / f"pod-{self._made}"
        folder.mkdir(parents=True)
        return Pod(self._made, folder, self.network, self.replicas, limit, self._on_kept, self.store)

    def _on_kept(self, pod: Pod, number: int, copies: int) -> None:
        made = next((one for one in reversed(pod.keeper.chunks.read_records()) if one.number == number), None)
        world = pod.keeper._world
        if made is None or world is None or world.generation != self._generation:  # the last word of an older world
            return
        self._tells += 1
        newest = find_whole({path: file.chunks for path, file in made.files.items()}, self.saves)
        told = Told(newest, copies)
        with self._lock:
            if newest and self._is_whole and told not in self._told:
                self._told.add(told)
                self.happened.append(told)

    def close(self) -> None:
        for pod in self.pods:
            self._end(pod)
        self.end_ghosts()
        if self.store is not None:
            memory_store.forget(self.store)

    def end_ghosts(self) -> None:
        while self._ghosts:
            self._end(self._ghosts.pop())

    def _end(self, pod: Pod) -> None:
        pod.is_lost = True
        self.network.gone.add(pod.number)
        pod.is_left.set()
        pod.keeper.close()
        shutil.rmtree(pod.folder, ignore_errors=True)

    # Faults.

    def break_workers(self) -> None:
        for pod in self.pods:
            pod.workers = Workers.BROKEN

    def lose(self, *ranks: int) -> None:
        """These pods and all that they hold are gone; no worker trains on."""
        pods = [self.pods[rank] for rank in sorted(set(ranks))]
        with self._lock:
            self._is_whole = False
            self.happened += [Lost(pod.number) for pod in pods]
        self.break_workers()
        for pod in pods:
            self.network.gone.add(pod.number)
        for pod in self.pods:
            pod.is_left.set()
        for pod in pods:
            self._end(pod)

    def lose_all(self, *, requests: int = 0, are_ghosts: bool = False) -> None:
        """All pods go: after so many more requests to the store, or as ghosts, whose agents go on with it."""
        assert self.store is not None
        if not are_ghosts:
            for pod in self.pods:
                self.store.last_words[pod.number] = requests
            until = time.monotonic() + 0.4
            words = self.store.last_words
            while requests and min(words[pod.number] for pod in self.pods) >= 0 and time.monotonic() < until:
                time.sleep(0.01)
            self.lose(*range(len(self.pods)))
            return
        with self._lock:
            self._is_whole = False
            self.happened += [Lost(pod.number) for pod in self.pods]
        self.break_workers()
        for pod in self.pods:
            self.network.gone.add(pod.number)
            pod.is_lost = True
        self._ghosts += self.pods

    def await_archived(self) -> None:
        """Wait until the newest save is in the archive, and can be restored from it."""
        deadline, last = time.monotonic() + PATIENCE, len(self.saves)
        while self.find_archived() < last:
            assert time.monotonic() < deadline, f"save {last} was never archived"
            time.sleep(0.02)

    def find_archived(self) -> int:
        """The newest save that is whole in the archive."""
        newest = None if self.store is None else self.store.find_newest()
        if newest is None:
            return 0
        return find_whole({path: file.chunks for path, file in newest.record.files.items()}, self.saves)

    def damage(self, rank: int) -> None:
        """Change a byte of something that this pod holds for others, or cut a record off."""
        pod = self.pods[rank]
        found = [*pod.find_chunks(), *sorted((pod.folder / "copies/records").iterdir())]
        if not found:
            return
        with self._lock:
            self.happened.append(Lost(pod.number))
        path = self.chance.choice(found)
        with contextlib.suppress(OSError):  # dropped meanwhile
            data = path.read_bytes()
            at = self.chance.randrange(len(data)) if data else 0
            path.write_bytes(data[:at] + bytes(byte ^ 1 for byte in data[at : at + 1]) + data[at + 1 :])

    # Worlds.

    def fill(self, size: int, place: float, limit: int | None = None) -> None:
        """Replace lost pods by new ones, the first of which gets the rank at `place` (0..1) of the world."""
        self.pods = [pod for pod in self.pods if not pod.is_lost]
        while len(self.pods) < size:
            rank = int(place * (len(self.pods) + 1))
            self.pods.insert(rank, self.make_pod(limit if rank else None))
            limit = None

    def enter(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Form a world of all pods; `meanwhile` is called beside that. False if it was over before it began."""
        self._generation += 1
        with self._lock:
            self._is_whole = True
            self._told.clear()
            self._tells = 0
        held, store, pods = self._find_held(), FakeStore(), list(self.pods)
        if not held and self.store is not None and not self.store.has("forget"):
            held = self.find_archived()
        entered = [False] * len(pods)

        def run(rank: int) -> None:
            place = Place(self._generation, rank, len(pods))
            try:
                entered[rank] = pods[rank].keeper.enter(store, place, pods[rank].is_left.is_set)
            except OSError:
                if not pods[rank].is_lost:
                    raise

        for pod in pods:
            pod.is_left.clear()
        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(pods))]
        for thread in threads:
            thread.start()
        meanwhile()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "no world is entered"
        if any(pod.is_lost for pod in pods):
            return False
        assert all(entered), f"who entered, by rank: {entered}"
        directories = [read(pod.path) for pod in pods]
        with self._lock:
            self.happened.append(Restored(directories, held))
        self._step = self._steps.get(find_whole(directories[0], self.saves), 0)
        for pod in pods:
            pod.workers = Workers.RUN
        # A script takes longer to start than its agent to look at the directory and to tell.
        deadline = time.monotonic() + PATIENCE
        while any(directories) and self._tells < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return True

    def _find_held(self) -> int:
        """The newest save that the pods hold whole: one of them has the record, and of each file one has all bytes."""
        directories = [read(pod.path) for pod in self.pods]
        intact = [pod.find_intact() for pod in self.pods]
        known = [{one.name: one for one in pod.keeper.chunks.read_records()} for pod in self.pods]
        made = {name: record for names in known for name, record in names.items()}
        for record in sorted(made.values(), key=lambda one: (one.order, one.name), reverse=True):
            if all(
                any(directory.get(path) == file.chunks for directory in directories)
                or any(chunks >= set(file.chunks) for chunks in intact)
                for path, file in record.files.items()
            ):
                return find_whole({path: file.chunks for path, file in record.files.items()}, self.saves)
        return 0

    def await_told(self) -> None:
        """Wait until the job is told that the last save is kept."""
        deadline, last = time.monotonic() + PATIENCE, len(self.saves)
        while not any(isinstance(one, Told) and one.save >= last for one in list(self.happened)):
            assert time.monotonic() < deadline, f"save {last} was never kept: {self.happened[-3:]}"
            time.sleep(0.01)

    def leave(self, rank: int) -> None:
        """An announced change: all workers have saved and exited, and this pod goes."""
        for pod in self.pods:
            pod.workers = Workers.DONE
        threads = [threading.Thread(target=pod.keeper.flush, args=(10.0,), daemon=True) for pod in self.pods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        with self._lock:
            self._is_whole = False
            self.happened.append(Lost(self.pods[rank].number))
        self._end(self.pods[rank])

    def evict_all(self) -> None:
        """All pods are told to end at once, and none knows of the others: all workers have saved and exited."""
        for pod in self.pods:
            pod.is_leaving = True
        deadline = time.monotonic() + PATIENCE
        while not knows_that_all_leave(self.pods[0].keeper):
            assert time.monotonic() < deadline, "rank 0 never hears that all pods leave"
            time.sleep(0.01)
        for pod in self.pods:
            pod.workers = Workers.DONE
        threads = [threading.Thread(target=self._evict, args=(pod,), daemon=True) for pod in self.pods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a pod that was told to end does so"
        assert self.find_archived() == len(self.saves), "what was saved last is archived"
        self.lose(*range(len(self.pods)))

    def evict_in_turn(self) -> None:
        """One pod after the other is told to end: the others are too few for a world by then, and wait.

        Each has had room for what it is to hold.
        """
        first, *waiting = self.chance.sample(self.pods, len(self.pods))
        for pod in self.pods:
            pod.workers = Workers.DONE
        first.is_leaving = True
        threads = [threading.Thread(target=pod.keeper.flush, args=(10.0,), daemon=True) for pod in waiting]
        for thread in threads:
            thread.start()
        self._evict(first, 10.0)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a pod that stays waits for nobody who has gone"
        for pod in waiting:
            pod.is_leaving = True
            self._evict(pod, 10.0, waits=True)
        assert self.find_archived() == len(self.saves), "what was saved last is archived"
        self.lose(*range(len(self.pods)))

    def make_room(self) -> None:
        """From now on, all pods can hold what they are to hold."""
        for pod in self.pods:
            pod.keeper.chunks._limit = None

    def _evict(self, pod: Pod, seconds: float = 2.0, *, waits: bool = False) -> None:
        pod.keeper.flush(seconds, 20.0, do_all_leave=False, waits=waits)
        self.network.gone.add(pod.number)

    # The script.

    def save(self, *, tear: bool = False) -> None:
        """Save the next step. `tear`: the workers are killed while they write."""
        number, step = len(self.saves) + 1, self._step + 1
        contents = {
            (rank, path): self.chance.randbytes(self._find_size()) for rank, path in self._find_paths(f"step-{step}")
        }
        made = {path: digest(data) for (_, path), data in contents.items()}
        pointer = f"step-{step}, save {number}".encode()
        has_pointer = self.layout in ("folder", "parts", "torch")
        if not tear:
            # Known before it is written: rank 0 may tell of it at once.
            self.saves.append(Save(number, made, digest(pointer) if has_pointer else ()))
            self._steps[number] = step
            self._step = step
        self._write(contents, tear=tear)
        if tear:
            return
        if has_pointer:
            root = self.pods[0].path
            (root / ".tmp-latest").write_bytes(pointer)
            (root / ".tmp-latest").rename(root / POINTER)
            folders = sorted(root.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
            for path in folders[:-_KEPT_FOLDERS]:
                shutil.rmtree(path)

    def _write(self, contents: dict[tuple[int, str], bytes], *, tear: bool) -> None:
        """Begin to write all files at once. The first one is open until all others have been finished for a while."""
        opened, began = [], time.monotonic()
        with contextlib.ExitStack() as files:
            for (rank, path), data in contents.items():
                place = self.pods[rank].path / path
                place.parent.mkdir(exist_ok=True)
                file = files.enter_context(place.open("wb", buffering=0))
                file.write(data[: len(data) // 2])
                opened.append((file, data[len(data) // 2 :]))
            self.is_stalled |= time.monotonic() - began > QUIET / 2
            for file, rest in opened[1:]:
                file.write(rest)
                file.close()
            time.sleep(self.chance.random() * 0.6)
            if tear:
                self.break_workers()
            else:
                opened[0][0].write(opened[0][1])

    def _find_size(self) -> int:
        return CHUNK_BYTES + self.chance.randrange(1 << 16) if self.chance.random() < 0.03 else (
            1 + self.chance.randrange(1 << 17)
        )  # fmt: skip

    def _find_paths(self, folder: str) -> list[tuple[int, str]]:
        """Who writes what, by rank. The first one is finished last."""
        ranks = list(range(len(self.pods)))
        self.chance.shuffle(ranks)
        match self.layout:
            case "file":
                return [(0, "model.bin")]
            case "pair":
                return [(0, "optimizer.bin"), (0, "model.bin")]
            case "folder":
                return [(0, f"{folder}/{name}") for name in ("model.bin", "optimizer.bin", "state.json")]
            case "parts":
                return [(rank, f"{folder}/{rank}.bin") for rank in ranks]
            case _:
                return [(0, f"{folder}/.metadata"), *((rank, f"{folder}/__{rank}_0.distcp") for rank in ranks)]
