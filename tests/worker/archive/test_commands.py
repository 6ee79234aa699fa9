"""`elasticjob archive`: saves to and from a folder of the user."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from elasticjob.archive import commands, folders, layout, reading
from elasticjob.archive.garbage import Doomed
from elasticjob.archive.layout import Object, Save
from elasticjob.archive.reading import DamagedError
from elasticjob.archive.storage import COMMAND, Storage, StoreError
from elasticjob.archive.writing import Leader, Sender
from elasticjob.diagnose import cli
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.records import CHUNK_BYTES, File, Record
from elasticjob_operator.text import printable
from worker.peers.gang import limit_names

pytestmark = pytest.mark.timeout(60)

FILES: Mapping[str, bytes] = {"model.pt": os.urandom(CHUNK_BYTES + 7), "step-7/part": b"small", "step-7/empty": b""}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for path, data in FILES.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(data)
    (tmp_path / "source" / "latest").symlink_to("step-7")
    return tmp_path / "source"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path}/store/ns/job/uid")


def find_object(tmp_path: Path) -> Path:
    """The one in which a large chunk is."""
    objects = (tmp_path / "store/ns/job/uid" / layout.OBJECTS).iterdir()
    return max(objects, key=lambda path: path.stat().st_size)


def test_what_was_pushed_is_pulled(
    source: Path, storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "target"
    assert cli.main(["archive", "push", storage.url, str(source), "--step", "7"]) == 0
    assert cli.main(["archive", "list", storage.url]) == 0
    assert cli.main(["archive", "pull", storage.url, str(target)]) == 0
    assert [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()] == ["step 7"] * 3
    assert {path: (target / path).read_bytes() for path in FILES} == FILES
    assert (target / "latest").readlink() == Path("step-7")


def test_nothing_is_left_of_a_save_that_is_damaged(source: Path, storage: Storage, tmp_path: Path) -> None:
    commands.push(storage, source)
    find_object(tmp_path).write_bytes(bytes(CHUNK_BYTES))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DamagedError, match="missing or damaged"):
        commands.pull(storage, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_name_that_the_target_cannot_have_is_said(
    source: Path,
    storage: Storage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (source / ("a-name-of-" + 190 * "x")).write_bytes(b"1")
    commands.push(storage, source)
    before = sorted(path.name for path in tmp_path.iterdir())
    limit_names(monkeypatch, tmp_path, 143)
    assert cli.main(["archive", "pull", storage.url, str(tmp_path / "target")]) == 1
    told = capsys.readouterr().err
    assert "a-name-of-xxx" in told and "File name too long" in told and "another file system" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_nothing_is_written_over(kind: str, source: Path, storage: Storage, tmp_path: Path) -> None:
    commands.push(storage, source)
    target = tmp_path / "target"
    target.mkdir() if kind == "folder" else target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(commands.CommandError, match="exists"):
        commands.pull(storage, target)
    assert not (tmp_path / "elsewhere").exists()


def test_a_step_that_is_not_there_is_said(
    source: Path, storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.push(storage, source, 7)
    assert cli.main(["archive", "pull", storage.url, str(tmp_path / "target"), "--step", "8"]) == 1
    assert "holds no save of step 8" in capsys.readouterr().err


def test_a_folder_of_the_store_that_is_in_use_is_refused(source: Path, storage: Storage) -> None:
    storage.put(f"{layout.LEADS}/{3:010d}", b"")  # a job has begun, and saved nothing yet
    with pytest.raises(commands.CommandError, match="in use"):
        commands.push(storage, source)
    assert not reading.find_saves(storage)


@pytest.fixture
def links(source: Path, tmp_path: Path) -> Path:
    """The archive of a job whose author makes links, beside that of another job."""
    commands.push(Storage(f"file://{tmp_path}/store/theirs/job/uid"), source, 7)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/file").touch()
    own = Storage(f"file://{tmp_path}/store/mallory/job/uid")
    commands.push(own, tmp_path / "empty")  # whole without any object
    own.put(f"{layout.LEADS}/{9999999999}", b"")  # so that all objects are of older worlds
    return tmp_path / "store/mallory/job/uid"


def list_files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


def test_a_prune_deletes_nothing_that_a_link_of_the_archive_leads_to(
    links: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever prunes the archive of somebody else may have more rights than that."""
    theirs = tmp_path / "store/theirs"
    before = list_files(theirs)
    (links / layout.OBJECTS).symlink_to(theirs / "job/uid" / layout.OBJECTS)
    assert cli.main(["archive", "prune", f"file://{links}", "--keep", "1", "--yes"]) == 1
    told = capsys.readouterr()
    assert list_files(theirs) == before
    assert f"{links / layout.OBJECTS} is a link" in told.err
    assert "the folder that it leads to" in told.err


@pytest.mark.parametrize("place", [layout.SAVES, layout.OBJECTS, "", ".."])
@pytest.mark.parametrize("command", ["list", "pull", "push", "prune"])
def test_commands_reach_nothing_through_a_link_of_an_archive(
    command: str, place: str, links: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its author could else let others read what he cannot, or write there."""
    theirs, link = tmp_path / "store/theirs/job/uid", Path(os.path.normpath(links / place))
    before = list_files(tmp_path / "store/theirs")
    if link.exists():
        shutil.rmtree(link)
    link.symlink_to(Path(os.path.normpath(theirs / place)))
    more = {"pull": [str(tmp_path / "target")], "push": [str(source)], "prune": ["--keep", "1", "--yes"]}
    code = cli.main(["archive", command, f"file://{links}", *more.get(command, ())])
    told = capsys.readouterr()
    assert list_files(tmp_path / "store/theirs") == before
    assert "step 7" not in told.out
    assert not (tmp_path / "target/model.pt").exists()
    if place != layout.OBJECTS and (command, place) != ("push", layout.SAVES):  # where it does not look
        assert (code, f"{link} is a link" in told.err) == (1, True)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_object_that_is_no_file_is_told(
    kind: str, source: Path, storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.push(storage, source)
    place = find_object(tmp_path)
    beside = place.rename(tmp_path / "beside")
    place.symlink_to(beside) if kind == "link" else os.mkfifo(place)
    assert cli.main(["archive", "pull", storage.url, str(tmp_path / "target")]) == 1
    assert f"{place} is {'a link' if kind == 'link' else 'no file'}" in capsys.readouterr().err
    assert not (tmp_path / "target").exists()


def test_of_an_object_no_more_is_read_than_its_manifest_says(source: Path, storage: Storage, tmp_path: Path) -> None:
    """A hole of a terabyte takes no place on the disk of who makes it."""
    commands.push(storage, source)
    objects = (tmp_path / "store/ns/job/uid" / layout.OBJECTS).iterdir()
    os.truncate(min(objects, key=lambda path: path.stat().st_size), 2**28)
    tracemalloc.start()
    try:
        commands.pull(Storage(storage.url, None, COMMAND), tmp_path / "target")
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()
    assert (tmp_path / "target/step-7/part").read_bytes() == b"small"


VALUES = 1 << 21  # empty objects, which take 64 bytes each


def make_manifest(text: bytes, number: int = 9) -> tuple[str, bytes]:
    data = gzip.compress(text, 1)
    return f"{layout.SAVES}/{layout.name_save((9, number), data)}", data


MANY_VALUES = make_manifest(b'{"junk": [' + b"{}," * VALUES + b"{}]}")
HOLE = make_manifest(b"a")[0], None
NOTE = f"{layout.GARBAGE}/0000000009-1"


@pytest.mark.parametrize(
    ("command", "name", "data"),
    [
        pytest.param("list", *MANY_VALUES, id="list, a manifest of many values"),
        pytest.param("pull", *MANY_VALUES, id="pull, a manifest of many values"),
        pytest.param("prune", *MANY_VALUES, id="prune, a manifest of many values"),
        pytest.param("list", *HOLE, id="list, a manifest with a hole"),
        pytest.param("prune", NOTE, b"[" + b"{}," * VALUES + b"{}]", id="a note of many values"),
        pytest.param("prune", NOTE, None, id="a note with a hole"),
        pytest.param("prune", NOTE, b"[" * 100_000, id="a note of many levels"),
    ],
)
def test_what_somebody_else_writes_into_an_archive_fills_no_memory(
    command: str,
    name: str,
    data: bytes | None,
    storage: Storage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is packed, or a hole: a terabyte takes no place on the disk of who makes it."""
    monkeypatch.setattr(layout, "MOST_MANIFEST", 1 << 24)
    monkeypatch.setattr(layout, "MOST_VALUES", 1 << 20, raising=False)
    write_saves(storage, 1, (10,))
    storage.put(name, data or b"")
    if data is None:
        os.truncate(tmp_path / "store/ns/job/uid" / name, 2**28)
    told = {"list": [], "pull": [str(tmp_path / "target")], "prune": ["--keep", "1", "--yes"]}[command]
    tracemalloc.start()
    try:
        code = cli.main(["archive", command, storage.url, *told])
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert code == int(command == "prune"), "it says what cannot be read"
    assert command != "prune" or name.rpartition("/")[2] in capsys.readouterr().err
    assert find_steps(storage) == [10], "nothing goes"


@pytest.mark.parametrize(
    ("where", "limit", "said"), [(commands, "_MOST_NAMED", "in saves/ yourself"), (reading, "_MOST_TOLD", "garbage/")]
)
def test_a_prune_keeps_no_more_in_mind_than_an_archive_has(
    where: object,
    limit: str,
    said: str,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Somebody else may write any number of manifests, and of notes."""
    write_saves(storage, 1, (10, 20, 30))
    told = frozenset(Object((1, 0), ((digest_of(bytes([index])), 1),)).name for index in range(20))
    storage.put(NOTE, Doomed(objects=told).dump())
    command = ["archive", "prune", storage.url, "--keep", "1", "--yes"]
    with monkeypatch.context() as patched:
        patched.setattr(where, limit, 17)
        assert cli.main(command) == 1
    assert said in capsys.readouterr().err
    assert find_steps(storage) == [30, 20, 10], "nothing goes"
    assert cli.main(command) == 0
    assert find_steps(storage) == [30]


def test_saves_are_listed_one_after_the_other(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There may be any number of them, and each may name millions of chunks."""
    write_saves(storage, 1, range(20))
    read, known, most = reading.read_save, list[weakref.ref[Save]](), [0]

    def count(storage: Storage, name: str) -> Save:
        save = read(storage, name)
        known.append(weakref.ref(save))
        most[0] = max(most[0], sum(one() is not None for one in known))
        return save

    monkeypatch.setattr(reading, "read_save", count)
    assert cli.main(["archive", "list", storage.url]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 20
    assert most[0] <= 2


@pytest.mark.parametrize("folder", [layout.LEADS, layout.OBJECTS, layout.SAVES])
def test_a_prune_beside_a_push_takes_nothing_of_it(
    folder: str, source: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Storage.put

    def prune_and_put(self: Storage, name: str, data: bytes) -> None:
        if name.startswith(folder):
            monkeypatch.setattr(Storage, "put", put)
            commands.prune(Storage(storage.url), 1, dry_run=False)
        put(self, name, data)

    monkeypatch.setattr(Storage, "put", prune_and_put)
    commands.push(storage, source, 7)
    commands.prune(storage, 1, dry_run=False)
    assert commands.pull(storage, tmp_path / "target").step == 7
    assert {path: (tmp_path / "target" / path).read_bytes() for path in FILES} == FILES


def test_of_two_pushes_at_once_whoever_comes_later_is_told(
    source: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that the folder is empty."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.pt").write_bytes(b"other")
    put = Storage.put

    def put_later(self: Storage, name: str, data: bytes) -> None:
        monkeypatch.setattr(Storage, "put", put)
        commands.push(Storage(storage.url), tmp_path / "other", 8)
        put(self, name, data)

    monkeypatch.setattr(Storage, "put", put_later)
    with pytest.raises(commands.CommandError, match="at the same time"):
        commands.push(storage, source, 7)
    assert commands.pull(storage, tmp_path / "target").step == 8
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["model.pt"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../beside"])
def test_a_link_out_of_the_folder_is_not_sent(target: str, source: Path, storage: Storage) -> None:
    (source / "out").symlink_to(target)
    with pytest.raises(commands.CommandError, match="cannot be archived"):
        commands.push(storage, source)
    assert not reading.find_saves(storage)


def test_a_file_that_changes_is_not_sent(
    source: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put = Storage.put

    def change(self: Storage, name: str, data: bytes) -> None:
        (source / "step-7/part").write_bytes(b"SMALL")
        (source / "model.pt").write_bytes(bytes(CHUNK_BYTES))
        put(self, name, data)

    monkeypatch.setattr(Storage, "put", change)
    assert cli.main(["archive", "push", storage.url, str(source)]) == 1
    assert "is not in this" in capsys.readouterr().err
    assert not reading.find_saves(storage)


def test_a_save_that_does_not_fit_is_not_begun(
    source: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest of a megabyte can name one chunk so often that it fills any disk."""
    commands.push(storage, source)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=CHUNK_BYTES))
    assert cli.main(["archive", "pull", storage.url, str(tmp_path / "pulled")]) == 1
    size = sum(map(len, FILES.values()))
    assert f"{tmp_path} has {CHUNK_BYTES} bytes left, and the save {size}: name a folder" in capsys.readouterr().err
    assert not list(tmp_path.glob("*pulled*"))


def test_holes_need_no_room(source: Path, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (source / "sparse").open("wb") as out:
        out.truncate(100 * CHUNK_BYTES)
        out.seek(50 * CHUNK_BYTES)
        out.write(b"data")
    commands.push(storage, source)
    usage, needed = shutil.disk_usage(tmp_path), sum(map(len, FILES.values())) + CHUNK_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
    with pytest.raises(commands.CommandError, match=f"the save {needed}:"):
        commands.pull(storage, tmp_path / "pulled")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed))
    commands.pull(storage, tmp_path / "pulled")
    pulled = tmp_path / "pulled" / "sparse"
    assert pulled.read_bytes() == (source / "sparse").read_bytes()
    assert pulled.stat().st_blocks * 512 < 2 * CHUNK_BYTES


def put_manifest(storage: Storage, number: int, said: Mapping[str, object]) -> None:
    data = gzip.compress(json.dumps(said).encode())
    storage.put(f"{layout.SAVES}/{layout.name_save((0, number), data)}", data)


def test_what_an_archive_of_somebody_else_says_commands_no_terminal(storage: Storage) -> None:
    """In a process of its own, whose log nobody else shows."""
    evil = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\u202e\x9b2J\u3164\ufe00\U000e0100"
    record = {"generation": 0, "number": 1, "shared": False, "files": {}}
    good = {"version": 1, "job": "j", "step": 7, "time": evil, "objects": [], "record": record}
    put_manifest(storage, 1, good)
    put_manifest(storage, 2, {**good, "version": evil * 1000})
    put_manifest(storage, 3, {**good, "record": {**record, "number": 3, "files": {f"a{evil}": ["wrong"]}}})
    command = [sys.executable, "-m", "elasticjob", "archive", "list", storage.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.startswith("step 7, 0 files, 0 bytes, ") and len(done.stdout.splitlines()) == 1
    assert "is of version" in done.stderr and "no file" in done.stderr
    for text in (done.stdout, done.stderr):
        assert all(letter.isprintable() for letter in text.replace("\n", "")) and len(text) < 5000
        assert not set("\u3164\ufe00\U000e0100") & set(text), "nobody sees these"


def test_no_character_of_an_archive_is_shown_that_the_operator_hides() -> None:
    shown = {chr(code) for code in range(sys.maxunicode + 1) if commands._printable(chr(code)) == chr(code)}
    assert {letter for letter in shown if printable(letter) != letter} == set()


def test_a_command_names_its_own_option_where_the_keys_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["archive", "list", "s3://bucket/job", "--credentials", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "--credentials" in told and "AWS_ACCESS_KEY_ID" in told and "credentialsSecret" not in told


def write_saves(storage: Storage, generation: int, steps: Sequence[int], keep: int = 9) -> None:
    """A file that all saves share, and one for each, by an agent that deletes nothing."""
    chunks = {digest_of(data): data for data in (b"shared", *(str(step).encode() for step in steps))}
    sender = Sender(storage, chunks.get, float("inf"), has_hurry=True)
    leader = Leader(storage, "uid", generation, keep, lambda: "now")

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        for objects in shares.values():
            sender.send(objects, lambda: False)

    for number, step in enumerate(steps, 1):
        names = {"shared": b"shared", "own": str(step).encode()}
        files = {path: File(len(data), 0o600, (digest_of(data),)) for path, data in names.items()}
        leader.save(Record(generation, number, files), step, lambda missing: dict.fromkeys(missing, (0,)), send)


def find_steps(storage: Storage) -> list[int | None]:
    return [save.step for _, save in reading.find_saves(storage)]


def test_old_saves_are_shown_and_then_deleted(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By history: the order is that of worlds and saves, whatever the steps are called."""
    write_saves(storage, 1, (10, 20))
    write_saves(storage, 2, (15, 5))
    storage.put(f"{layout.OBJECTS}/{Object((1, 0), (('a' * 64, 1),)).name}", b"1")  # of a save that was cut off
    assert cli.main(["archive", "prune", storage.url, "--keep", "2"]) == 0
    said = capsys.readouterr().out
    assert [line.partition(",")[0] for line in said.splitlines()] == [
        "keeps step 5", "keeps step 15", "would delete step 20", "would delete step 10",
        "would delete 2 saves", "add --yes to delete them",
    ]  # fmt: skip
    assert find_steps(storage) == [5, 15, 20, 10], "nothing is deleted unless it is asked for"
    assert cli.main(["archive", "prune", storage.url, "--keep", "2", "--yes"]) == 0
    assert find_steps(storage) == [5, 15]
    for step in (5, 15):
        commands.pull(storage, tmp_path / str(step), step)
        assert (tmp_path / str(step) / "shared").read_bytes() == b"shared", "what they share with older ones stays"
    assert len(storage.list(layout.OBJECTS)) == 3
    assert not storage.list(layout.GARBAGE)


@pytest.mark.parametrize("command", [["list"], ["prune", "--keep", "1", "--yes"]])
def test_a_place_without_a_save_is_told(
    command: Sequence[str], storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be mistyped, or the folder of a job that has another one for each of its lives."""
    write_saves(storage, 1, (10,))
    place = storage.url.rpartition("/")[0]
    assert cli.main(["archive", command[0], place, *command[1:]]) == 0
    assert f"{place} holds no save" in capsys.readouterr().err
    assert cli.main(["archive", command[0], storage.url, *command[1:]]) == 0
    assert not capsys.readouterr().err


def test_a_place_where_no_save_can_be_read_is_not_called_empty(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    write_saves(storage, 1, (10,))
    storage.put(f"{layout.SAVES}/{reading.find_saves(storage)[0][0]}", b"cut")
    assert cli.main(["archive", "list", storage.url]) == 0
    said = capsys.readouterr().err
    assert "cannot be used" in said
    assert "holds no save" not in said


def test_the_last_good_save_stays(storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where newer ones are not whole, and where nothing else is asked for."""
    write_saves(storage, 1, (10, 20, 30))
    saves = reading.find_saves(storage)
    for _, save in saves[:2]:
        own = save.record.files["own"].chunks[0]
        storage.delete(f"{layout.OBJECTS}/{layout.locate(save.objects)[own].object.name}")
    assert cli.main(["archive", "prune", storage.url, "--keep", "1", "--yes"]) == 0
    assert 10 in find_steps(storage)
    assert cli.main(["archive", "prune", storage.url, "--keep", "0", "--yes"]) == 1
    assert "--keep 0" in capsys.readouterr().err
    assert 10 in find_steps(storage)


def test_a_manifest_that_cannot_be_read_stops_deleting(storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    write_saves(storage, 1, (10, 20, 30))
    storage.put(f"{layout.SAVES}/{reading.find_saves(storage)[1][0]}", b"cut")
    before = storage.list(layout.SAVES), storage.list(layout.OBJECTS)
    assert cli.main(["archive", "prune", storage.url, "--keep", "1", "--yes"]) == 1
    assert "nothing is deleted" in capsys.readouterr().err
    assert (storage.list(layout.SAVES), storage.list(layout.OBJECTS)) == before


@pytest.mark.parametrize("note", ["0000000001-3", f"0000000001{layout.PRUNES}{'a' * 32}"])
def test_a_manifest_that_cannot_be_read_stops_nothing_if_it_goes_anyway(note: str, storage: Storage) -> None:
    """An agent, or a prune that has ended too early, was about to delete it."""
    write_saves(storage, 1, (10, 20, 30))
    oldest = reading.find_saves(storage)[-1][0]
    storage.put(f"{layout.SAVES}/{oldest}", b"cut")
    storage.put(f"{layout.GARBAGE}/{note}", Doomed(frozenset({oldest})).dump())
    for _ in range(2):
        assert cli.main(["archive", "prune", storage.url, "--keep", "1", "--yes"]) == 0
        assert find_steps(storage) == [30]
    assert oldest not in storage.list(layout.SAVES)
    assert {name for name in storage.list(layout.GARBAGE) if layout.PRUNES in name} == set()


@pytest.mark.parametrize("requests", range(8))
def test_a_prune_that_ends_between_two_requests_is_finished_by_the_next(
    requests: int, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_saves(storage, 1, (10, 20, 30))
    done, delete = [0], Storage.delete

    def end(self: Storage, name: str) -> None:
        if done[0] == requests:
            raise StoreError("the process ends")
        done[0] += 1
        delete(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "delete", end)
        cli.main(["archive", "prune", storage.url, "--keep", "1", "--yes"])
    assert find_steps(storage)[0] == 30
    commands.prune(storage, 1, dry_run=False)
    assert find_steps(storage) == [30]
    assert commands.pull(storage, tmp_path / "target").step == 30
    assert len(storage.list(layout.OBJECTS)) == 2
    assert not storage.list(layout.GARBAGE)


def test_what_an_agent_sends_now_stays_and_is_no_orphan(storage: Storage) -> None:
    """An object that no manifest names yet, of the newest world: its save is not complete."""
    write_saves(storage, 3, (10, 20))
    name = Object((3, 0), (("a" * 64, 1),)).name
    storage.put(f"{layout.OBJECTS}/{name}", b"1")
    commands.prune(storage, 1, dry_run=False)
    assert name in storage.list(layout.OBJECTS)
    assert find_steps(storage) == [20]


def test_a_listing_shows_what_is_left_where_a_file_goes_meanwhile(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent, or another prune, deletes at any moment: an archive that looks empty then has lost its saves."""
    storage = Storage(f"file://{tmp_path}/store/team/job/uid", access=COMMAND)
    commands.push(storage, source, 7)
    going = tmp_path / "store/team/job/uid" / layout.SAVES / "going"
    going.touch()
    size_of = folders._size_of

    def delete_first(entry: os.DirEntry[str]) -> int:
        going.unlink(missing_ok=True)
        return size_of(entry)

    monkeypatch.setattr(folders, "_size_of", delete_first)
    assert len(storage.list(layout.SAVES)) == 1
    assert [save.step for _, save in reading.find_saves(storage)] == [7]
