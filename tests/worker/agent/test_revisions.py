"""Later revisions of a job's code: what is mounted, unpacked and run. The operator's side writes it as a user does."""

from __future__ import annotations

import base64
import errno
import itertools
import json
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticjob import env
from elasticjob.agent import revisions
from elasticjob.agent.revisions import Place, RevisionError, Revisions
from elasticjob.protocol import wire
from elasticjob_operator.api import names
from elasticjob_operator.launch import update
from elasticjob_operator.launch.bundle import Bundle, File

FILES = (
    File("data/words.bin", b"\xff\x00", executable=True),
    File("requirements.txt", b"x"),
    File("train.py", b"print(1)\n"),
)
SENT = update.Revision(Bundle(FILES, "requirements.txt"), ("--lr", "0.1"), {"COLOUR": "red"})


def mount(
    folder: Path, revision: update.Revision | None, change: Callable[[dict[str, Any]], None] = lambda _: None
) -> None:
    """As a kubelet does: a folder is filled, and a link switched."""
    filled = folder / f"..{len(list(folder.glob('..[0-9]*')))}"
    filled.mkdir(parents=True)
    if revision is not None:
        config_map = update.build_update("x", revision)
        change(config_map)
        for key, text in config_map["data"].items():
            (filled / key).write_text(text)
        for key, text in config_map["binaryData"].items():
            (filled / key).write_bytes(base64.b64decode(text))
    (folder / "..new").symlink_to(filled.name)
    (folder / "..new").rename(folder / "..data")
    for file in filled.iterdir():
        link = folder / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(f"..data/{file.name}")


def test_both_sides_name_the_same_places_and_digest(tmp_path: Path) -> None:
    assert (names.CODE_PATH, names.UPDATES_PATH, names.UPDATE_INDEX) == (
        env.CODE_PATH,
        env.UPDATES_PATH,
        revisions.INDEX,
    )
    mount(tmp_path / "a", SENT)
    found = revisions.read(tmp_path / "a")
    assert found is not None
    assert (found.digest, found.arguments, found.variables) == (SENT.digest, ("--lr", "0.1"), (("COLOUR", "red"),))
    assert [(f.path, f.content, f.executable) for f in found.files] == [
        (f.path, f.content, f.executable) for f in FILES
    ]


def test_a_mount_without_a_revision_has_none(tmp_path: Path) -> None:
    mount(tmp_path / "a", None)
    assert revisions.read(tmp_path / "a") is None


def other_content(config_map: dict[str, Any]) -> None:
    key = next(key for key in config_map["data"] if key.endswith("train.py"))
    config_map["data"][key] = "print(2)\n"


def other_path(config_map: dict[str, Any]) -> None:
    index = json.loads(config_map["data"][names.UPDATE_INDEX])
    index["files"][0]["path"] = "../../escape"
    told = zip(index["files"], FILES, strict=True)
    found = tuple(revisions.File(one["path"], file.content, one["executable"]) for one, file in told)
    index["digest"] = revisions.compute_digest(index, found)
    config_map["data"][names.UPDATE_INDEX] = json.dumps(index)


def no_index(config_map: dict[str, Any]) -> None:
    config_map["data"][names.UPDATE_INDEX] = "[]"


@pytest.mark.parametrize(
    ("change", "said"),
    [(other_content, "not those of its digest"), (other_path, "leads out of its folder"), (no_index, "cannot be read")],
)
def test_what_is_not_what_was_sent_is_not_run(
    change: Callable[[dict[str, Any]], None], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mount(tmp_path / "a", SENT, change)
    with pytest.raises(RevisionError, match=said):
        revisions.read(tmp_path / "a")
    assert Revisions(tmp_path).look() == ()
    assert said in caplog.text and "update the job once more" in caplog.text


def test_a_change_is_noticed_and_what_nobody_needs_is_removed(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mount(mounted / "a", None)
    mount(mounted / "b", None)
    codes = Revisions(mounted)
    assert codes.can_come and codes.look() == ()
    mount(mounted / "a", SENT)
    assert codes.look() == (SENT.digest,)
    place = codes.enter(wire.Code(1, SENT.digest))
    assert place is not None and (place.folder / "train.py").read_text() == "print(1)\n"
    assert (place.folder / "data/words.bin").stat().st_mode & 0o777 == 0o755
    second, third = replace(SENT, variables={}), replace(SENT, arguments=None)
    mount(mounted / "b", second)
    mount(mounted / "a", third)
    assert codes.look() == tuple(sorted((second.digest, third.digest)))
    assert place.folder.is_dir(), "workers run it"
    assert codes.enter(wire.Code(1, SENT.digest), patience=0.0) == place, "and may be started again"
    other = codes.enter(wire.Code(2, third.digest))
    codes.look()
    assert other is not None and other.folder.is_dir() and not place.folder.is_dir()
    assert codes.enter(wire.Code(3)) is None and codes.enter(None) is None
    with pytest.raises(RevisionError, match="revision 4 did not reach this pod"):
        codes.enter(wire.Code(4, "0" * 64), patience=0.0)
    codes.close()
    assert not other.folder.exists()


def test_a_revision_that_finds_no_room_is_unpacked_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mount(tmp_path / "a", SENT)
    codes, write = Revisions(tmp_path), Path.write_bytes

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    assert codes.look() == codes.look() == ()
    assert caplog.text.count("No space left on device") == 1, "it is told once"
    monkeypatch.setattr(Path, "write_bytes", write)
    assert codes.look() == (SENT.digest,)
    for number in (1, 2):
        monkeypatch.setattr(Path, "write_bytes", write)
        mount(tmp_path / "a", replace(SENT, variables={"NUMBER": str(number)}))
        monkeypatch.setattr(Path, "write_bytes", fail)
        assert codes.look() == codes.look() == ()
    assert caplog.text.count("No space left on device") == 3, "each revision is told once"
    codes.close()


def test_no_room_for_any_folder_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mount(tmp_path / "a", SENT)
    names = map(str, itertools.count())

    def fail(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", f"/tmp/elasticjob-code-{next(names)}")

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    codes = Revisions(tmp_path)
    assert codes.look() == codes.look() == ()
    assert caplog.text.count("No space left on device") == 1


@pytest.mark.parametrize("paths", [("a" * 300,), ("a", "a/b"), ("a/b", "a"), ("\0",)])
def test_files_that_can_be_nowhere_are_told_once_and_not_tried_again(
    paths: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    revision = revisions.Revision("0" * 64, tuple(revisions.File(path, b"") for path in paths))
    tries = []

    def read(folder: Path) -> revisions.Revision:
        tries.append(folder)
        return revision

    monkeypatch.setattr(revisions, "read", read)
    mount(tmp_path / "a", SENT)
    codes = Revisions(tmp_path)
    assert codes.look() == codes.look() == ()
    assert len(tries) == 1 and caplog.text.count("update the job once more") == 1
    codes.close()


def test_a_pod_without_mounts_has_no_place_for_updates(tmp_path: Path) -> None:
    codes = Revisions(tmp_path / "nothing")
    assert not codes.can_come and codes.look() == ()


def test_changes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "LOOK_EVERY", 0.01)
    mount(tmp_path / "a", None)
    told: list[tuple[str, ...]] = []
    both = threading.Event()

    def take(found: tuple[str, ...]) -> None:
        told.append(found)
        if len(told) == 2:
            both.set()
        else:
            mount(tmp_path / "a", SENT)  # before the thread has looked for the first time

    Revisions(tmp_path).start(take)
    assert both.wait(30)
    assert told == [(), (SENT.digest,)]


@pytest.mark.parametrize(
    ("command", "arguments", "becomes"),
    [
        ("python -u C/train.py --epochs 1", None, "python -u F/train.py --epochs 1"),
        ("python -u C/train.py --epochs 1", ("--epochs", "2", "C/conf"), "python -u F/train.py --epochs 2 F/conf"),
        ("python -u -m train --config=C/a.yaml", None, "python -u -m train --config=F/a.yaml"),
        ("python -u -m train a", (), "python -u -m train"),
        ("C/run.sh a", ("b",), "F/run.sh b"),
        ("python -u Cx/train.py", None, "python -u Cx/train.py"),
        ("python -u C/train.py /dataC/x /dataC", None, "python -u F/train.py /dataC/x /dataC"),
        ("python -u C/train.py -IC/include -xLC/x", None, "python -u F/train.py -IF/include -xLC/x"),
        ("python -u C/train.py --roots=C,C/b 'C'", None, "python -u F/train.py --roots=F,F/b 'F'"),
    ],
)
def test_workers_run_the_folder_in_place_of_what_the_pod_was_created_with(
    command: str, arguments: tuple[str, ...] | None, becomes: str
) -> None:
    def spell(text: str) -> str:
        return text.replace("C", env.CODE_PATH).replace("F", "/tmp/new")

    given = None if arguments is None else tuple(map(spell, arguments))
    variables = (("A", "2"), ("CONFIG", spell("C/new.yaml")), ("RANK", "0"), ("ELASTICJOB_CODE_REVISION", "7"))
    revision = revisions.Revision("0", arguments=given, variables=variables)
    place = Place(revision, Path("/tmp/new"))
    environ = {"PYTHONPATH": spell("/x:C:C/lib"), "A": "1", "B": "1", "RANK": "1"}
    words, changed, cwd = place.redirect(tuple(spell(command).split()), environ, env.CODE_PATH)
    assert " ".join(words) == spell(becomes)
    expected = {"PYTHONPATH": "/x:/tmp/new:/tmp/new/lib", "A": "2", "B": "1", "CONFIG": "/tmp/new/new.yaml"}
    assert changed == {**expected, "RANK": "1"}, "those of the update too, but for what each worker has of its own"
    assert cwd == "/tmp/new"
    assert place.redirect(("x",), {}, "/elsewhere")[2] == "/elsewhere"


@pytest.mark.parametrize(
    ("had", "becomes"),
    [
        ("/opt/elasticjob/packages/site-packages:C:/opt/elasticjob/runtime", "F/lib:/y:PACKAGES:F:RUNTIME"),
        ("/y", "F/lib:/y"),
        ("", "F/lib:/y"),
        (None, "F/lib:/y"),
    ],
)
def test_a_search_path_of_an_update_comes_before_that_of_the_pod(had: str | None, becomes: str) -> None:
    """In which are the runtime and the packages that were installed: workers would not find them."""
    place = Place(revisions.Revision("0", variables=(("PYTHONPATH", f"{env.CODE_PATH}/lib:/y"),)), Path("/tmp/new"))
    environ = {} if had is None else {"PYTHONPATH": had.replace("C", env.CODE_PATH)}
    known = {
        "F": "/tmp/new",
        "PACKAGES": "/opt/elasticjob/packages/site-packages",
        "RUNTIME": "/opt/elasticjob/runtime",
    }
    words = [part.partition("/") for part in becomes.split(":")]
    expected = ":".join(f"{known.get(head, head)}{slash}{rest}" for head, slash, rest in words)
    assert place.find_variables(environ) == {"PYTHONPATH": expected}
    assert place.redirect(("x",), environ, "/")[1] == {"PYTHONPATH": expected}
