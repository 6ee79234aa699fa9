"""What is read from and written to a checkpoint directory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from pathlib import Path

import pytest

from elasticjob.peers import folder, records
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.records import CHUNK_BYTES
from worker.peers import gang as gangs


def make_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"x" * 10_000)


def make_safetensors(path: Path) -> None:
    head = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(32))


@pytest.mark.parametrize(("name", "make"), [("a.pt", make_zip), ("a.safetensors", make_safetensors)])
def test_a_file_that_is_cut_off_is_recognised(name: str, make: object, tmp_path: Path) -> None:
    path = tmp_path / name
    make(path)  # type: ignore[operator]
    assert not folder.is_cut_off(path)
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 4, 0):
        path.write_bytes(whole[:size])
        assert folder.is_cut_off(path), size


def test_a_head_that_is_nested_too_deep_is_damaged(tmp_path: Path) -> None:
    path, head = tmp_path / "a.safetensors", b"[" * 100_000
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    assert folder.is_cut_off(path)


@pytest.mark.parametrize("content", [b"", b"plain text", b"PK is no beginning", bytes(100)])
def test_other_formats_do_not_tell(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert not folder.is_cut_off(path)


def test_what_is_open_for_writing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b.pt").write_bytes(b"x")
    log = tmp_path / "a" / "log"
    with (tmp_path / "a" / "1").open("wb"), (tmp_path / "b.pt").open("rb"), log.open("a"):
        assert folder.find_open(tmp_path, [os.getpid()]) == {"a/1": False, "a/log": True}
        with log.open("r+b"):
            assert folder.find_open(tmp_path, [os.getpid()])["a/log"] is False, "not all of them only append"
    assert folder.find_open(tmp_path, [os.getpid()]) == {}
    assert folder.find_open(tmp_path, [2**22 + 1]) == {}, "it has ended"


def test_a_file_is_restored_whole_or_not_at_all(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    data = os.urandom(CHUNK_BYTES + 1)
    (source / "a").write_bytes(data)
    os.utime(source / "a", ns=(5, 5))
    file = folder.read_file(source / "a", source)
    assert file is not None
    chunks = dict(zip(file.chunks, folder.read_chunks(source / "a"), strict=True))
    with pytest.raises(KeyError):
        folder.restore(target, "x/a", file, {file.chunks[0]: chunks[file.chunks[0]]}.__getitem__)
    assert folder.scan(target) == {}
    folder.restore(target, "x/a", file, chunks.__getitem__)
    assert (target / "x" / "a").read_bytes() == data
    assert (target / "x" / "a").stat().st_mtime_ns == 5
    folder.remove_all_but(target, {})
    assert list(target.iterdir()) == []


def test_a_link_out_of_the_directory_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "up").symlink_to("../x")
    (tmp_path / "in").symlink_to("step-1")
    assert folder.read_file(tmp_path / "out", tmp_path) is None
    assert folder.read_file(tmp_path / "up", tmp_path) is None
    (tmp_path / "loop").symlink_to("loop")
    assert folder.read_file(tmp_path / "loop", tmp_path) is None
    inside = folder.read_file(tmp_path / "in", tmp_path)
    assert inside is not None
    assert inside.link == "step-1"


@pytest.mark.timeout(20)  # opening a pipe waits until somebody writes to it
def test_a_pipe_in_the_place_of_a_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pt")
    assert folder.read_chunk(tmp_path / "model.pt", 0) == b""


def record(root: Path) -> dict[str, records.File]:
    found = {path: folder.read_file(root / path, root) for path in folder.scan(root)}
    return {path: file for path, file in found.items() if file is not None}


@pytest.mark.parametrize("instead", ["a link", "a link to nothing", "a file"])
def test_a_folder_is_restored_where_the_script_has_put_something_else(tmp_path: Path, instead: str) -> None:
    root = tmp_path / "files"
    for name in ("best/deep", "step-2/deep"):
        (root / name).mkdir(parents=True)
        (root / name / "model.bin").write_bytes(name.encode())
    recorded = record(root)
    chunks = {digest_of(name.encode()): name.encode() for name in ("best/deep", "step-2/deep")}
    shutil.rmtree(root / "best")
    if instead == "a file":
        (root / "best").write_bytes(b"")
    else:
        (root / "best").symlink_to("step-2" if instead == "a link" else "step-3")
    folder.restore(root, "best/deep/model.bin", recorded["best/deep/model.bin"], chunks.__getitem__)
    assert (root / "best/deep/model.bin").read_bytes() == b"best/deep"
    assert (root / "step-2/deep/model.bin").read_bytes() == b"step-2/deep", "nothing is written through a link"


@pytest.mark.parametrize("levels", [2, 1500])
def test_a_file_is_restored_in_the_place_of_a_folder(tmp_path: Path, levels: int) -> None:
    root = tmp_path / "files"
    root.mkdir()
    (root / "best").write_bytes(b"a model")
    recorded = record(root)
    (root / "best").unlink()
    (root / "best").mkdir()
    try:
        (gangs.make_levels(root / "best", levels) / "part.bin").write_bytes(b"a part")
        (root / "best" / "here").symlink_to(tmp_path)
        folder.restore(root, "best", recorded["best"], {digest_of(b"a model"): b"a model"}.__getitem__)
        assert (root / "best").read_bytes() == b"a model" and tmp_path.is_dir()
    finally:
        gangs.remove_levels(root / "best", levels)


def test_a_link_to_a_full_path_inside_is_recorded_like_a_relative_one(tmp_path: Path) -> None:
    root = tmp_path / "files"
    (root / "step-1").mkdir(parents=True)
    (tmp_path / "same").symlink_to(root)
    for name, target in (
        ("latest", root / "step-1"),
        ("by-another-name", tmp_path / "same" / "step-1"),
        ("out", tmp_path),
        ("itself", root / "itself"),
        ("root", root),
    ):
        (root / name).symlink_to(target)
    assert {path: file.link for path, file in record(root).items()} == {"latest": "step-1"}
    assert {path: file.link for path, file in record(tmp_path / "same").items()} == {
        "by-another-name": "step-1",
        "latest": "step-1",
    }
