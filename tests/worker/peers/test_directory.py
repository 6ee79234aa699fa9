"""What one look at a checkpoint directory finds to be finished."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticjob.peers import directory, folder
from elasticjob.peers.chunks import ChunkStore
from elasticjob.peers.directory import Directory, View, Workers
from elasticjob.peers.records import CHUNK_BYTES, File


class Clock:
    """A monotonic clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(directory, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


class Seen:
    """A directory, and what looks at it find."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock = path / "files", clock
        self.path.mkdir()
        self._directory = Directory(self.path, ChunkStore(path / "copies", self.path, None))

    def look(self, at: float, workers: Workers = Workers.RUN, *, same: bool = True) -> View:
        self.clock.now = at
        return self._directory.look(None, workers, [os.getpid()], lambda: same)


@pytest.fixture
def seen(tmp_path: Path, clock: Clock) -> Seen:
    return Seen(tmp_path, clock)


def test_what_is_read_while_a_worker_dies_is_not_finished(seen: Seen) -> None:
    (seen.path / "a.bin").write_bytes(b"half of it")
    assert not seen.look(0, Workers.DONE, same=False).written
    assert not seen.look(1, Workers.BROKEN).written
    assert set(seen.look(2, Workers.DONE).written) == {"a.bin"}


@pytest.mark.parametrize("workers", [Workers.RUN, Workers.BROKEN])
def test_a_file_that_is_finished_within_a_look_holds_up_its_save(
    workers: Workers, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_open = folder.find_open
    with (seen.path / "optimizer.bin").open("wb", buffering=0) as file:
        file.write(b"half ")
        (seen.path / "model.bin").write_bytes(b"all")
        assert not seen.look(0).written
        assert not seen.look(2).written

        def finish(root: Path, pids: list[int]) -> dict[str, bool]:
            if not file.closed:
                file.write(b"of it")
                file.close()
            return find_open(root, pids)

        monkeypatch.setattr(folder, "find_open", finish)
        assert not seen.look(4).written
    monkeypatch.setattr(folder, "find_open", find_open)
    assert not seen.look(4.1, workers).written
    assert not seen.look(6, Workers.BROKEN).written
    assert set(seen.look(6).written) == {"model.bin", "optimizer.bin"}


@pytest.mark.parametrize("workers", [Workers.RUN, Workers.BROKEN])
def test_a_file_that_changes_while_it_is_read_holds_up_its_save(
    workers: Workers, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model.bin", "optimizer.bin"):
        (seen.path / name).write_bytes(b"1")
    assert not seen.look(0).written
    read_file = folder.read_file

    def change(path: Path, root: Path) -> File | None:
        found = read_file(path, root)
        if path.name == "optimizer.bin":
            path.write_bytes(b"of the next save")
        return found

    monkeypatch.setattr(folder, "read_file", change)
    assert not seen.look(2).written
    monkeypatch.setattr(folder, "read_file", read_file)
    assert not seen.look(2.1, workers).written


def test_a_log_beside_checkpoints_does_not_hold_them_up(seen: Seen) -> None:
    """Many scripts have one folder for each run, with its log and its checkpoints, as Hydra makes them."""
    (seen.path / "run").mkdir()
    (seen.path / "run" / "step-1.bin").write_bytes(b"all")
    with (seen.path / "run" / "train.log").open("a", buffering=1) as log:
        for second in range(20):
            log.write(f"step {second}\n")
            found = seen.look(second, Workers.RUN)
        assert set(found.written) == {"run/step-1.bin"}
        (seen.path / "run" / "step-2.bin").write_bytes(b"half of it")
        assert not seen.look(20).written, "a save is under way"
        log.write("saved\n")
        assert set(seen.look(22).written) == {"run/step-1.bin", "run/step-2.bin"}
    assert set(seen.look(23, Workers.DONE).written) == {"run/step-1.bin", "run/step-2.bin"}
    (seen.path / "run" / "train.log").unlink()
    (seen.path / "run" / "train.log").write_bytes(b"another file")
    assert "run/train.log" in seen.look(24, Workers.DONE).written


def test_a_checkpoint_that_another_file_holds_up_is_told(seen: Seen) -> None:
    """Here a log that was not opened to append to. It may also be a save that takes long, so patience is needed."""
    (seen.path / "run").mkdir()
    (seen.path / "run" / "step-1.bin").write_bytes(b"all")
    with (seen.path / "run" / "metrics.csv").open("w", buffering=1) as log:
        for second in range(0, 320, 10):
            log.write(f"{second}\n")
            os.utime(log.fileno(), ns=(0, int(2e18) + second))
            found = seen.look(second)
            assert bool(found.held) is (second >= 300)
    assert found.held == "'run/step-1.bin', beside which 'run/metrics.csv' is always being written"
    seen.look(330)
    assert not seen.look(340).held, "the script has closed it"


def test_a_file_that_fails_to_be_read_is_not_said_to_be_held_up_by_a_save(seen: Seen) -> None:
    """What is cut off is never finished, and no log has to do with that."""
    (seen.path / "run").mkdir()
    (seen.path / "run" / "bad.pt").write_bytes(b"")
    for second in range(0, 700, 5):
        if second % 100 == 50:
            (seen.path / "run" / f"step-{second}.bin").write_bytes(b"all")
        assert not seen.look(second).held


def test_what_is_told_of_several_logs_does_not_change_with_each_line(seen: Seen) -> None:
    """Each change is sent to the hub, and written to the status."""
    (seen.path / "run").mkdir()
    (seen.path / "run" / "step-1.bin").write_bytes(b"all")
    told = set()
    with (seen.path / "run" / "a.csv").open("w") as one, (seen.path / "run" / "b.csv").open("w") as other:
        for number in range(80):
            log = (one, other)[number % 2]
            log.write(f"{number}\n")
            log.flush()
            os.utime(log.fileno(), ns=(0, int(2e18) + number))
            if number % 10 == 9:
                (seen.path / "run" / f"step-{number}.bin").write_bytes(b"all")
            told.add(seen.look(5 * number).held)
    assert told == {"", "'run/step-1.bin', beside which 'run/a.csv' is always being written"}


def test_a_log_of_which_lines_come_seldom_is_told_all_the_time(seen: Seen) -> None:
    """Such as one for each epoch. It holds up the others as long as it is open."""
    (seen.path / "run").mkdir()
    (seen.path / "run" / "step-1.bin").write_bytes(b"all")
    told = list[str]()
    with (seen.path / "run" / "epochs.csv").open("w") as log:
        for second in range(0, 1500, 10):
            if second % 500 == 100:
                log.write(f"{second}\n")
                log.flush()
            told.append(seen.look(second).held)
    assert set(told[:30]) == {""}
    assert set(told[31:]) == {"'run/step-1.bin', beside which 'run/epochs.csv' is always being written"}


def test_a_file_that_was_finished_and_is_held_open_is_told(seen: Seen) -> None:
    """A database, or a mapped file, from which the script reads."""
    (seen.path / "run").mkdir()
    (seen.path / "run" / "index.db").write_bytes(b"all")
    seen.look(0)
    assert set(seen.look(10).written) == {"run/index.db"}
    told = set()
    with (seen.path / "run" / "index.db").open("r+b"):
        (seen.path / "run" / "step-1.bin").write_bytes(b"all")
        for second in range(20, 1000, 10):
            told.add(seen.look(second).held)
    assert told == {"", "'run/step-1.bin', beside which 'run/index.db' is always being written"}


def test_files_without_an_end_are_told_too(seen: Seen) -> None:
    (seen.path / "run").mkdir()
    (seen.path / "run" / "step-1.bin").write_bytes(b"all")
    told = set()
    for number in range(80):
        (seen.path / "run" / f"frame-{number:02}.png").write_bytes(b"all")
        told.add(seen.look(5 * number).held)
    assert told == {"", "'run/frame-00.png', beside which new files are always being written"}


@pytest.mark.parametrize("renamed", [False, True])
def test_a_checkpoint_that_is_overwritten_too_often_to_be_copied_is_told(renamed: bool, seen: Seen) -> None:
    """Such as `last.pt` after each step. One save less often is copied, and nothing is told any more."""
    for second in range(0, 320, 10):
        if renamed:
            (seen.path / "last.pt.tmp").write_bytes(b"all of it")
            (seen.path / "last.pt.tmp").rename(seen.path / "last.pt")
        else:
            (seen.path / "last.pt").write_bytes(b"all of it")
        os.utime(seen.path / "last.pt", ns=(0, int(2e18) + second))
        found = seen.look(second)
        assert not found.written
        assert bool(found.held) is (second >= 300)
    assert found.held == "'last.pt', which never rests for a second between two writes"
    found = seen.look(330)
    assert set(found.written) == {"last.pt"}
    assert not found.held


def test_a_log_that_only_grows_is_not_said_to_be_overwritten(seen: Seen) -> None:
    with (seen.path / "metrics.csv").open("w") as log:
        for second in range(0, 1000, 10):
            log.write("x" * 100)
            log.flush()
            assert not seen.look(second).held


def test_a_log_is_told_and_not_what_is_overwritten_now_and_then_beside_it(seen: Seen) -> None:
    (seen.path / "run").mkdir()
    told = set()
    with (seen.path / "run" / "log.csv").open("w") as log:
        for second in range(0, 1500, 10):
            log.write("x" * 100)
            log.flush()
            if second % 60 == 0:
                (seen.path / "run" / "metrics.json").write_bytes(b"all")
                os.utime(seen.path / "run" / "metrics.json", ns=(0, int(2e18) + second))
            told.add(seen.look(second).held)
    assert told == {"", "'run/metrics.json', beside which 'run/log.csv' is always being written"}


def test_a_log_that_was_cut_once_is_not_said_to_be_overwritten(seen: Seen) -> None:
    with (seen.path / "metrics.csv").open("w") as log:
        for second in range(0, 1000, 10):
            if second == 30:
                log.seek(0)
                log.truncate()
            log.write("x" * 100)
            log.flush()
            assert not seen.look(second).held


@pytest.mark.parametrize("mode", ["wb", "r+b"])
def test_a_long_save_beside_a_log_is_not_taken_for_one(mode: str, seen: Seen) -> None:
    (seen.path / "run").mkdir()
    (seen.path / "run" / "step-1.bin").write_bytes(b"")
    with (seen.path / "run" / "step-1.bin").open(mode, buffering=0) as file:
        for second in range(100):
            file.write(b"more")
            assert not seen.look(second).written
    seen.look(100)
    assert set(seen.look(102).written) == {"run/step-1.bin"}


def test_a_short_save_that_is_appended_to_is_no_log(seen: Seen) -> None:
    """It was open before, in another save: that is not for ten seconds."""
    latest = seen.path / "latest.bin"
    for number in range(3):
        (seen.path / "optimizer.bin").write_bytes(b"all of it" * (number + 1))
        latest.unlink(missing_ok=True)
        with latest.open("ab", buffering=0) as file:
            for tenth in range(10):
                file.write(b"more" * (number + 1))
                assert not seen.look(60 * number + tenth / 10).written
        for tenth in range(10, 40):
            found = seen.look(60 * number + tenth / 10)
        assert set(found.written) == {"latest.bin", "optimizer.bin"}


def test_a_file_that_is_cut_off_holds_up_its_save(seen: Seen) -> None:
    (seen.path / "model.pt").write_bytes(b"")
    (seen.path / "optimizer.pt").write_bytes(b"all")
    assert not seen.look(0).written
    assert not seen.look(2).written
    assert not seen.look(3, Workers.DONE).written


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.timeout(20)  # opening a pipe waits until somebody writes to it
@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(path.parent.parent),
        lambda path: path.symlink_to("/dev/zero"),
        make_pipe,
        lambda path: path.symlink_to(make_pipe(path.parent.parent / "pipe")),
        make_socket,
    ],
    ids=["link out", "link to a device", "pipe", "link to a pipe", "socket"],
)
def test_what_cannot_be_copied_holds_nothing_up(make: Callable[[Path], object], seen: Seen) -> None:
    make(seen.path / "last.pt")
    (seen.path / "model.pt").write_bytes(b"all")
    assert not seen.look(0).written
    view = seen.look(2)
    assert set(view.written) == {"model.pt"}
    assert view.left_out == {"last.pt"}


@pytest.mark.parametrize("name", ["last.pt", "last.safetensors"])
def test_a_link_is_whole_whatever_it_points_to(name: str, seen: Seen) -> None:
    (seen.path / name).symlink_to("deleted")
    (seen.path / "model.pt").write_bytes(b"all")
    assert not seen.look(0).written
    assert set(seen.look(2).written) == {name, "model.pt"}


def test_what_the_script_s_own_files_have_is_not_fetched(seen: Seen) -> None:
    """Such as the frozen part of a model, which is in each of its checkpoints."""
    (seen.path / "step-1.bin").write_bytes(b"frozen" * CHUNK_BYTES)
    mine = seen.look(0, Workers.DONE).written["step-1.bin"]
    absent = File(mine.size + 1, 0o600, (*mine.chunks, "0" * 64))
    assert seen._directory.find_fetched({"step-2.bin": absent}) == ["0" * 64]
    (seen.path / "step-1.bin").unlink()
    assert seen._directory.find_fetched({"step-2.bin": absent}) == [*dict.fromkeys(mine.chunks), "0" * 64]
