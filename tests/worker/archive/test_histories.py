"""Random histories of one archive: agents that lead one after the other, or two at once, in a store that fails.

Whatever happens, what is read back is one save as it was made, and a save that counts as made can be read until there
are `keep` newer ones.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from elasticjob.archive import reading
from elasticjob.archive.commands import CommandError, prune
from elasticjob.archive.layout import ManifestError, Object, Save, locate, name_save
from elasticjob.archive.reading import DamagedError
from elasticjob.archive.storage import NotThereError, Storage, StoreError
from elasticjob.archive.writing import Leader, LostError, OverError, Sender
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.records import File, Record
from worker.archive.faulty_store import Contents, DiedError, FaultyFiles

URL = "s3://bucket/job"


def connect(files: FaultyFiles) -> Storage:
    storage = Storage(URL)
    storage._files, storage._used, storage._root = files, {}, "bucket/job"
    return storage


class Pods:
    """What the pods of the job hold: every chunk that was ever made."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.is_split = False  # each generation goes on from the same by itself
        self.forgetful: set[int] = set()  # generations that save nothing of what was there before
        self.chunks: dict[str, bytes] = {}
        self._last: dict[int, dict[str, bytes]] = {0: {}}  # by generation

    def make_record(self, generation: int, number: int) -> Record:
        """A directory in which some files are new, some as before, and some as long ago."""
        files = {} if generation in self.forgetful else dict(self._last.get(generation, self._last[0]))
        for _ in range(self._rng.randint(1, 3)):
            size = self._rng.choice([10, 300, 5000])
            files[f"file-{self._rng.randrange(6)}"] = self._rng.randbytes(size)
        if self.chunks and self._rng.random() < 0.3:
            files["back"] = self._rng.choice(list(self.chunks.values()))
        if len(files) > 3 and self._rng.random() < 0.5:
            del files[self._rng.choice(sorted(files))]
        self._last[generation] = files
        if not self.is_split:
            self._last[0] = files
        self.chunks |= {digest_of(data): data for data in files.values()}
        return Record(
            generation, number, {path: File(len(data), 0o600, (digest_of(data),)) for path, data in files.items()}
        )


def read_back(storage: Storage, save: Save) -> dict[str, bytes]:
    chunks: dict[str, bytes] = {}
    for one in save.objects:
        chunks |= reading.read_object(storage, one)
    return {path: b"".join(chunks[digest] for digest in file.chunks) for path, file in save.record.files.items()}


def find_whole(contents: Contents, pods: Pods) -> list[tuple[int, int]]:
    """The orders of all saves that can be restored, newest first. Each is exactly what was saved."""
    storage = connect(FaultyFiles(contents, random.Random(0)))
    whole = []
    for _, save in reading.find_saves(storage):
        try:
            found = read_back(storage, save)
        except DamagedError:
            continue
        assert found == {p: b"".join(pods.chunks[d] for d in f.chunks) for p, f in save.record.files.items()}
        if save.order not in whole:  # a save may be there twice, as the agent did not learn that it was made
            whole.append(save.order)
    return whole


def drive(
    leader: Leader, sender: Sender, pods: Pods, generation: int, numbers: Sequence[int], made: list[tuple[int, int]]
) -> None:
    """An agent that saves these records as `Archive` does, with the same errors in the same places."""

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        for objects in shares.values():
            sender.send(objects, lambda: False)

    for number in numbers:
        record = pods.make_record(generation, number)
        for _ in range(8):
            try:
                if not leader.has(record.name):
                    made.append(leader.save(record, number, lambda missing: dict.fromkeys(missing, (0,)), send).order)
                leader.tidy()
                break
            except StoreError:
                sender.forget()
            except OverError:
                return


def begin(contents: Contents, pods: Pods, rng: random.Random, generation: int, keep: int, **faults: object):  # type: ignore[no-untyped-def]
    storage = connect(FaultyFiles(contents, rng, **faults))  # type: ignore[arg-type]
    clock = itertools.count()
    leader = Leader(storage, "uid", generation, keep, lambda: str(next(clock)))
    return leader, Sender(storage, pods.chunks.get, 1e12)


@pytest.mark.parametrize("seed", range(60))
def test_a_process_may_die_between_any_two_requests(seed: int) -> None:
    rng = random.Random(seed)
    contents, pods, keep = Contents(), Pods(rng), rng.choice([1, 2, 3])
    made: list[tuple[int, int]] = []
    contents.after_delete = lambda: check(contents, pods, made, keep)
    for generation in range(1, 7):
        left = [rng.randint(1, 80)]

        def die(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise DiedError

        faults = {"failing": rng.choice([0.0, 0.1]), "halves": rng.choice([0.0, 0.1]), "before": die}
        leader, sender = begin(contents, pods, rng, generation, keep, **faults)
        with contextlib.suppress(DiedError):
            drive(leader, sender, pods, generation, range(1, 9), made)
        check(contents, pods, made, keep)


def check(contents: Contents, pods: Pods, made: Sequence[tuple[int, int]], keep: int) -> None:
    """The newest `keep` saves are whole: those that count as made, and those of agents that died before they knew."""
    whole = set(find_whole(contents, pods))
    lacking = set(sorted(whole.union(made), reverse=True)[:keep]) - whole
    assert not lacking, f"{lacking} are lost"


class Turns:
    """Lets one of some threads go on at a time: the first for some requests, then the next, and so on."""

    def __init__(self, quotas: Sequence[int], size: int = 2) -> None:
        self._quotas = list(quotas)
        self._changed, self._now, self.alive = threading.Condition(), 1, set(range(1, size + 1))

    def take(self, who: int) -> None:
        with self._changed:
            if self._now == who and self._quotas and len(self.alive) > 1:
                self._quotas[0] -= 1
                if self._quotas[0] < 0:
                    del self._quotas[0]
                    self._pass_on()
            assert self._changed.wait_for(lambda: self._now == who, 30)

    def end(self, who: int) -> None:
        with self._changed:
            self.alive.discard(who)
            if self._now == who:
                self._pass_on()

    def _pass_on(self) -> None:
        later = [who for who in self.alive if who > self._now]
        self._now = min(later or self.alive or {0})
        self._changed.notify_all()


def run_all(turns: Turns, run: Callable[[int], None]) -> None:
    problems = list[BaseException]()

    def take_part(who: int) -> None:
        try:
            turns.take(who)
            run(who)
        except BaseException as error:
            problems.append(error)
        finally:
            turns.end(who)

    threads = [threading.Thread(target=take_part, args=(who,), daemon=True) for who in sorted(turns.alive)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not problems, problems


@pytest.mark.parametrize("seed", range(200))
def test_two_agents_may_write_at_once(seed: int) -> None:
    """One of a world that is over has not noticed. Each request of either may come at any time between the other's."""
    rng = random.Random(1000 + seed)
    contents, pods = Contents(), Pods(rng)
    made: list[tuple[int, int]] = []
    leader, sender = begin(contents, pods, rng, 0, 1)
    drive(leader, sender, pods, 0, range(1, 4), made)
    pods.is_split, pods.forgetful = True, rng.choice([set(), {1}, {1}])
    contents.after_delete = lambda: check(contents, pods, made, 1)
    turns = Turns([rng.randint(0, 40), rng.randint(0, 16), rng.randint(0, 30), rng.randint(0, 20), rng.randint(0, 30)])
    forgets, failing = rng.choice([0, 0, 4]), rng.choice([0.0, 0.0, 0.05])

    def run(who: int) -> None:
        leader, sender = begin(
            contents, pods, rng, who, 1, forgets=forgets, failing=failing, before=lambda: turns.take(who)
        )
        drive(leader, sender, pods, who, range(4, 9), made)

    run_all(turns, run)
    check(contents, pods, made, 1)


@pytest.mark.parametrize("seed", range(120))
def test_an_archive_may_be_pruned_beside_an_agent_that_writes(seed: int) -> None:
    """Each request of either may come at any time between the other's, and a prune may end between any two of its own.

    The agent may keep more saves than are left, and build on those that go.
    """
    rng = random.Random(3000 + seed)
    contents, pods, keep = Contents(), Pods(rng), rng.choice([1, 2, 4])
    made: list[tuple[int, int]] = []
    turns = Turns([rng.randint(0, 40), *(rng.randint(0, 12) for _ in range(12))])
    failing, is_beside, most = rng.choice([0.0, 0.0, 0.05]), False, rng.choice([40, 400])

    def wait() -> None:
        if is_beside:
            turns.take(1)

    leader, sender = begin(contents, pods, rng, 1, keep, failing=failing, before=wait)
    drive(leader, sender, pods, 1, range(1, 6), made)
    contents.after_delete = lambda: check(contents, pods, made, 1)
    is_beside, requests = True, itertools.count()

    def ask() -> None:
        turns.take(2)
        if next(requests) >= most:
            raise DiedError

    def run(who: int) -> None:
        if who == 1:
            drive(leader, sender, pods, 1, range(6, 16), made)
            return
        storage = connect(FaultyFiles(contents, rng, failing=failing, before=ask))
        for _ in range(6):
            with contextlib.suppress(DiedError, StoreError, CommandError):
                prune(storage, 1, dry_run=False)

    run_all(turns, run)
    is_beside = False
    check(contents, pods, made, 1)
    drive(leader, sender, pods, 1, range(16, 20), made)
    assert find_whole(contents, pods)[: min(keep, 3)] == sorted(set(made), reverse=True)[: min(keep, 3)]
    assert not [name for name in contents.objects if "/garbage/" in name and "prune" in name], "agents finish what ends"


@pytest.mark.parametrize("seed", range(150))
def test_prunes_may_run_at_once_and_beside_an_agent(seed: int) -> None:
    """Each request of one of the three may come between any two of another's, and a prune may end there too."""
    rng = random.Random(4000 + seed)
    contents, pods, keep = Contents(), Pods(rng), rng.choice([1, 2, 4])
    made: list[tuple[int, int]] = []
    turns = Turns([rng.randint(0, 30), *(rng.randint(0, 14) for _ in range(40))], 3)
    is_beside, most = False, rng.choice([40, 400, 400])

    def wait() -> None:
        if is_beside:
            turns.take(1)

    leader, sender = begin(contents, pods, rng, 1, keep, before=wait)
    drive(leader, sender, pods, 1, range(1, 6), made)
    contents.after_delete = lambda: check(contents, pods, made, 1)
    is_beside = True

    def run(who: int) -> None:
        requests = itertools.count()

        def ask() -> None:
            turns.take(who)
            if next(requests) >= most:
                raise DiedError

        if who == 1:
            drive(leader, sender, pods, 1, range(6, 16), made)
            return
        storage = connect(FaultyFiles(contents, rng, before=ask))
        for _ in range(6):
            with contextlib.suppress(DiedError, StoreError, CommandError):
                prune(storage, rng.choice([1, 2]), dry_run=False)

    run_all(turns, run)
    is_beside = False
    check(contents, pods, made, 1)
    drive(leader, sender, pods, 1, range(16, 20), made)
    assert find_whole(contents, pods)[: min(keep, 3)] == sorted(set(made), reverse=True)[: min(keep, 3)]
    assert not [name for name in contents.objects if "/garbage/" in name and "prune" in name], "agents finish what ends"


def prune_twice(quotas: Sequence[int]) -> None:
    """An agent saves what was there before its last save, and builds on it; two prunes take all but the newest save."""
    rng = random.Random(16)
    contents, pods, turns = Contents(), Pods(rng), Turns(quotas, 3)
    is_beside, made = False, list[tuple[int, int]]()

    def wait() -> None:
        if is_beside:
            turns.take(1)

    leader, sender = begin(contents, pods, rng, 1, 3, before=wait)

    def save(number: int, text: bytes) -> None:
        def send(shares: Mapping[int, Sequence[Object]]) -> None:
            for objects in shares.values():
                sender.send(objects, lambda: False)

        record = make_record(pods, 1, number, text)
        made.append(leader.save(record, number, lambda missing: dict.fromkeys(missing, (0,)), send).order)

    def run(who: int) -> None:
        if who == 1:
            with contextlib.suppress(LostError):  # it dies before it tries again
                save(3, b"first")
            return
        with contextlib.suppress(CommandError):
            prune(connect(FaultyFiles(contents, rng, before=lambda: turns.take(who))), 1, dry_run=False)

    save(1, b"first")
    save(2, b"second")
    contents.after_delete = lambda: check(contents, pods, made, 1)
    is_beside = True
    run_all(turns, run)
    check(contents, pods, made, 1)


@pytest.mark.parametrize("first", range(1, 20))
def test_a_prune_may_come_when_a_save_does_not_count_because_of_another_one(first: int) -> None:
    """It counts on the manifest that the agent is about to take back, and deletes what is older."""
    for then in range(1, 7):
        prune_twice([0, first, 0, then, 60, 60])


@pytest.mark.parametrize("first", range(3, 19))
def test_of_two_prunes_at_once_one_knows_what_the_other_deletes(first: int) -> None:
    """The second has looked for others before the first wrote down what it deletes: some of a save that comes now."""
    for before, second in itertools.product((2, 3), range(6, 20)):
        prune_twice([0, 0, 1, 0, first, 0, before, 0, second, 0, 60, 60, 60])


@pytest.mark.parametrize("seed", range(20))
def test_a_store_that_loses_the_newest_object_costs_one_save(seed: int) -> None:
    rng = random.Random(2000 + seed)
    contents, pods, keep = Contents(), Pods(rng), rng.choice([1, 3])
    leader, sender = begin(contents, pods, rng, 1, keep)
    made: list[tuple[int, int]] = []
    for number in range(1, 12):
        drive(leader, sender, pods, 1, [number], made)
        assert find_whole(contents, pods)[0] == (1, number), "the next save is whole again"
        if rng.random() < 0.5:
            folder = rng.choice(["/saves/", "/objects/"])
            newest = max((name for name in contents.objects if folder in name), key=contents.since.__getitem__)
            del contents.objects[newest]


def test_what_is_not_kept_goes_and_nothing_else() -> None:
    rng = random.Random(7)
    contents, pods = Contents(), Pods(rng)
    leader, sender = begin(contents, pods, rng, 1, 2)
    contents.objects["bucket/other/objects/x"] = b"of another job"
    contents.objects["bucket/job/notes.txt"] = b"of a person"
    made: list[tuple[int, int]] = []
    drive(leader, sender, pods, 1, range(1, 30), made)
    assert find_whole(contents, pods)[:2] == [(1, 29), (1, 28)]
    assert len(find_whole(contents, pods)) <= 4, "older ones are gone, the last ones with the next save"
    storage = connect(FaultyFiles(contents, rng))
    stock = reading.look(storage)
    named = {one.name for save in stock.saves.values() for one in save.objects}
    assert len(stock.sizes.keys() - named) <= 12, "objects of the saves that have just gone"
    assert {"bucket/other/objects/x", "bucket/job/notes.txt"} <= contents.objects.keys()


def test_an_unchanged_chunk_is_sent_once() -> None:
    rng = random.Random(3)
    contents, pods = Contents(), Pods(rng)
    leader, sender = begin(contents, pods, rng, 1, 3)
    drive(leader, sender, pods, 1, range(1, 20), [])
    leader, sender2 = begin(contents, pods, rng, 2, 3)
    drive(leader, sender2, pods, 2, range(1, 2), [])
    fresh = sum(map(len, pods.chunks.values()))
    assert sender.bytes + sender2.bytes <= 1.3 * fresh, "only what comes back after it was deleted is sent again"


def make_record(pods: Pods, generation: int, number: int, text: bytes) -> Record:
    pods.chunks[digest_of(text)] = text
    return Record(generation, number, {"file": File(len(text), 0o600, (digest_of(text),))})


def test_what_an_old_leader_is_about_to_delete_is_sent_again() -> None:
    """It has looked whether it still leads, and deletes; a new one comes between two of its requests."""
    rng = random.Random(11)
    contents, pods = Contents(), Pods(rng)
    old, sender = begin(contents, pods, rng, 1, 1)
    new, new_sender = begin(contents, pods, rng, 2, 1)
    came: list[Save] = []

    def save(leader: Leader, sender: Sender, record: Record) -> Save:
        def send(shares: Mapping[int, Sequence[Object]]) -> None:
            for objects in shares.values():
                sender.send(objects, lambda: False)

        return leader.save(record, record.number, lambda missing: dict.fromkeys(missing, (0,)), send)

    def come() -> None:
        contents.after_delete = lambda: None
        came.append(save(new, new_sender, make_record(pods, 2, 1, b"first")))

    contents.after_delete = come
    for number, text in enumerate((b"first", b"second", b"third"), 1):
        save(old, sender, make_record(pods, 1, number, text))
        old.tidy()
    assert came, "the old one deletes"
    assert find_whole(contents, pods)[0] == came[0].order


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_a_prune_takes_from_a_save_that_is_being_made_is_sent_again(is_slow: bool) -> None:
    """It comes when all objects have been seen and the manifest is not there yet; `is_slow`: and deletes them later."""
    rng = random.Random(12)
    contents, pods = Contents(), Pods(rng)
    files = FaultyFiles(contents, rng)
    leader, sender = Leader(connect(files), "uid", 1, 2, lambda: "now"), Sender(connect(files), pods.chunks.get, 1e12)
    late: list[str] = []
    put = files.pipe_file

    class Slow(FaultyFiles):
        def rm_file(self, path: str) -> None:
            if late or (is_slow and "/objects/" in path):
                late.append(path)
            else:
                super().rm_file(path)

    def prune_and_put(path: str, data: bytes) -> None:
        if "/saves/" in path:
            files.pipe_file = put  # type: ignore[method-assign]
            prune(connect(Slow(contents, rng)), 1, dry_run=False)
        put(path, data)

    def save(number: int, text: bytes) -> None:
        def send(shares: Mapping[int, Sequence[Object]]) -> None:
            for objects in shares.values():
                sender.send(objects, lambda: False)

        record = make_record(pods, 1, number, text)
        leader.save(record, number, lambda missing: dict.fromkeys(missing, (0,)), send)

    for number, text in enumerate((b"first", b"second"), 1):
        save(number, text)
        leader.tidy()
    files.pipe_file = prune_and_put  # type: ignore[method-assign]
    try:
        save(3, b"first")
    except LostError:
        sender.forget()
        save(3, b"first")
    for path in late:
        contents.objects.pop(path, None)
    assert find_whole(contents, pods) == [(1, 3), (1, 2)]


def test_a_save_that_a_prune_counts_on_is_not_withdrawn() -> None:
    """A prune that has seen the manifest deletes all others, and ends before it takes its note away."""
    rng = random.Random(14)
    contents, pods = Contents(), Pods(rng)
    files = FaultyFiles(contents, rng)
    leader, sender = Leader(connect(files), "uid", 1, 2, lambda: "now"), Sender(connect(files), pods.chunks.get, 1e12)
    left: list[list[tuple[int, int]]] = []
    put = files.pipe_file

    class Ends(FaultyFiles):
        def rm_file(self, path: str) -> None:
            if "/garbage/" in path:
                raise DiedError
            super().rm_file(path)

    def put_and_prune(path: str, data: bytes) -> None:
        put(path, data)
        if "/saves/" in path:
            files.pipe_file = put  # type: ignore[method-assign]
            with pytest.raises(DiedError):
                prune(connect(Ends(contents, rng)), 1, dry_run=False)

    made: list[tuple[int, int]] = []
    drive(leader, sender, pods, 1, [1, 2], made)
    contents.after_delete = lambda: left.append(find_whole(contents, pods))
    files.pipe_file = put_and_prune  # type: ignore[method-assign]
    drive(leader, sender, pods, 1, [3], made)
    assert left and all(left), "there is a whole save at any moment"
    drive(leader, sender, pods, 1, [4], made)
    assert find_whole(contents, pods) == [(1, 4), (1, 3)]
    assert not [name for name in contents.objects if "/garbage/" in name and "prune" in name], "agents finish what ends"


def test_a_save_that_is_made_again_in_the_same_second_stays() -> None:
    """An object of the first one goes, and the manifest of the second one has the same name."""
    rng = random.Random(16)
    contents, pods = Contents(), Pods(rng)
    files = FaultyFiles(contents, rng)
    leader, sender = Leader(connect(files), "uid", 1, 2, lambda: "now"), Sender(connect(files), pods.chunks.get, 1e12)
    put = files.pipe_file

    def put_and_lose(path: str, data: bytes) -> None:
        put(path, data)
        if "/saves/" in path:
            files.pipe_file = put  # type: ignore[method-assign]
            contents.objects.pop(next(name for name in contents.objects if "/objects/" in name))

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        for objects in shares.values():
            sender.send(objects, lambda: False)

    files.pipe_file = put_and_lose  # type: ignore[method-assign]
    record = pods.make_record(1, 1)
    with pytest.raises(LostError):
        leader.save(record, 1, lambda missing: dict.fromkeys(missing, (0,)), send)
    sender.forget()
    leader.save(record, 1, lambda missing: dict.fromkeys(missing, (0,)), send)
    assert find_whole(contents, pods) == [(1, 1)]


@pytest.mark.parametrize("folder", ["garbage", "objects"])
def test_a_save_that_is_made_twice_counts_once(folder: str) -> None:
    """The store does not answer once the manifest is there. The time in the second one is another."""
    rng = random.Random(15)
    contents, pods = Contents(), Pods(rng)
    leader, sender = begin(contents, pods, rng, 1, 2)
    files = leader._storage._files
    put, ls = files.pipe_file, files.ls

    def fail(path: str, detail: bool) -> list[dict[str, object]]:
        if path.endswith(folder):
            files.ls = ls
            raise TimeoutError("no answer")
        return ls(path, detail)  # type: ignore[no-any-return]

    def put_and_fail(path: str, data: bytes) -> None:
        put(path, data)
        if "/saves/" in path:
            files.pipe_file, files.ls = put, fail

    drive(leader, sender, pods, 1, [1, 2], [])
    files.pipe_file = put_and_fail
    drive(leader, sender, pods, 1, [3], [])
    storage = connect(FaultyFiles(contents, rng))
    assert [save.order for _, save in reading.find_saves(storage)] == [(1, 3), (1, 3), (1, 2), (1, 1)]
    assert [save.order for save in leader.saves] == [(1, 3), (1, 2)]
    assert [save.order for save in prune(storage, 2, dry_run=False).kept] == [(1, 3), (1, 2)]
    assert [save.order for _, save in reading.find_saves(storage)] == [(1, 3), (1, 2)]
    assert find_whole(contents, pods) == [(1, 3), (1, 2)]


def test_what_arrives_in_part_is_damaged() -> None:
    rng = random.Random(13)
    contents, pods = Contents(), Pods(rng)
    leader, sender = begin(contents, pods, rng, 1, 1)
    drive(leader, sender, pods, 1, [1], [])
    ((_, save),) = reading.find_saves(connect(FaultyFiles(contents, rng)))
    storage = connect(FaultyFiles(contents, rng, halves=1.0))
    for one in save.objects:
        with pytest.raises(DamagedError):
            reading.read_object(storage, one)
    for digest, place in locate(save.objects).items():
        with pytest.raises(DamagedError):
            reading.read_chunk(storage, digest, place)


@pytest.mark.parametrize("error", [NotThereError, ManifestError])
def test_a_manifest_that_is_gone_or_damaged_is_no_save(error: type[Exception]) -> None:
    rng = random.Random(5)
    contents, pods = Contents(), Pods(rng)
    leader, sender = begin(contents, pods, rng, 1, 3)
    drive(leader, sender, pods, 1, [1], [])
    storage = connect(FaultyFiles(contents, rng))
    (name,) = storage.list("saves")
    if error is ManifestError:
        contents.objects[f"bucket/job/saves/{name}"] = contents.objects[f"bucket/job/saves/{name}"][:-1]
    else:
        del contents.objects[f"bucket/job/saves/{name}"]
    with pytest.raises(error):
        reading.read_save(storage, name)


@pytest.mark.parametrize(
    ("text", "whole", "expected"),
    [
        pytest.param(b'{"version": 1}', True, 1, id="it is no manifest, whoever reads it"),
        pytest.param(b'{"version": 2}', True, 1, id="it is of a newer runtime"),
        pytest.param(b'{"version": 1}', False, 3, id="it may have arrived in part"),
    ],
)
def test_a_manifest_that_is_wrong_is_read_once(text: bytes, whole: bool, expected: int) -> None:
    """To read it takes as much memory and time as somebody likes to ask for."""
    contents = Contents()
    data = gzip.compress(text, mtime=0)
    name = name_save((1, 1), data)
    contents.objects[f"bucket/job/saves/{name}"] = data if whole else data[:-1]
    with pytest.raises(ManifestError):
        reading.read_save(connect(FaultyFiles(contents, random.Random(1))), name)
    assert contents.requests == expected
