"""Keepers of several pods in one process: real files, sockets and copies, without torch's processes."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticjob.peers import transport
from elasticjob.peers.directory import Workers
from elasticjob.peers.entering import Place
from elasticjob.peers.records import CHUNK_BYTES
from elasticjob.peers.transport import Link, PeerError
from worker.peers import gang as gangs
from worker.peers.gang import Gang, limit_names, make_deep

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    yield from gangs.make(tmp_path)


LARGE = os.urandom(CHUNK_BYTES + 1000)
LONG = "a-name-of-" + 190 * "x" + ".pt"


def test_a_checkpoint_survives_the_pod_that_wrote_it(gang: Gang) -> None:
    first, second, third = gang.pod(), gang.pod(), gang.pod()
    assert gang.enter(first, second, third) == [True] * 3
    (first.path / "step-1").mkdir()
    (first.path / "step-1" / "model.bin").write_bytes(LARGE)
    (first.path / "latest").symlink_to("step-1")
    (first.path / "half.tmp").write_bytes(b"being written")
    gang.await_kept(first, 1)
    assert len(second.chunks) == 2, "the next pod holds the copy"
    assert not third.chunks, "one copy was asked for"
    first.keeper.close()
    fourth = gang.pod()
    assert gang.enter(second, third, fourth) == [True] * 3
    for pod in (second, third, fourth):
        assert pod.read()["step-1/model.bin"] == LARGE
        assert (pod.path / "latest").readlink() == Path("step-1")
        assert set(pod.read()) == {"step-1/model.bin"}
    gang.await_kept(second, 1)
    assert third.chunks, "the copies are whole again"


def test_what_was_not_finished_is_not_restored_anywhere(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "a.pt").write_bytes(b"old")
    gang.await_kept(first, 1)
    first.workers = Workers.BROKEN  # killed while it writes: no file after this is finished
    (first.path / "a.pt").write_bytes(b"new and torn")
    (first.path / "b.pt").write_bytes(b"torn")
    gang.enter(first, second)
    assert first.read() == second.read() == {"a.pt": b"old"}


def test_what_was_saved_at_the_end_of_a_world_is_kept(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "a.pt").write_bytes(b"last")
    first.workers = second.workers = Workers.DONE
    first.keeper.flush(gangs.PATIENCE)
    first.keeper.close()
    third = gang.pod()
    gang.enter(second, third)
    assert third.read() == {"a.pt": b"last"}


def test_the_script_drops_old_checkpoints(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "1.pt").write_bytes(b"1")
    gang.await_kept(first, 1)
    (first.path / "2.pt").write_bytes(b"2")
    gang.await_kept(first, 2)
    (first.path / "1.pt").unlink()
    gang.await_kept(first, 3)
    gang.enter(second, gang.pod())
    assert second.read() == {"2.pt": b"2"}


def test_parts_of_all_pods_make_one_checkpoint(gang: Gang) -> None:
    pods = [gang.pod(), gang.pod(), gang.pod()]
    gang.enter(*pods)
    for rank, pod in enumerate(pods):
        (pod.path / "step-1").mkdir()
        (pod.path / "step-1" / f"{rank}.bin").write_bytes(bytes([rank]))
    gang.await_kept(pods[0], 1)
    pods[2].keeper.close()
    gang.enter(pods[0], pods[1])
    assert pods[0].read() == pods[1].read() == {f"step-1/{rank}.bin": bytes([rank]) for rank in range(3)}


def test_a_pod_that_has_not_heard_of_a_checkpoint_gives_its_part(gang: Gang) -> None:
    pods = [gang.pod(), gang.pod(), gang.pod()]
    gang.enter(*pods)
    for rank, pod in enumerate(pods):
        (pod.path / "step-1").mkdir()
        (pod.path / "step-1" / f"{rank}.bin").write_bytes(bytes([rank]))
    gang.await_kept(pods[0], 1, copies=1)
    for record in pods[2].records:  # as if rank 0 had been lost before this pod's next report
        record.unlink()
    pods[0].keeper.close()  # with the only other copy of rank 2's part
    newcomer = gang.pod()
    assert gang.enter(pods[1], pods[2], newcomer) == [True] * 3
    whole = {f"step-1/{rank}.bin": bytes([rank]) for rank in range(3)}
    assert [pod.read() for pod in (pods[1], pods[2], newcomer)] == [whole] * 3


def test_parts_of_many_pods_make_one_checkpoint_after_another(gang: Gang) -> None:
    pods = [gang.pod(), gang.pod(), gang.pod(), gang.pod()]
    gang.enter(*pods)
    for number in (1, 2):
        for rank, pod in enumerate(pods):
            (pod.path / f"step-{number}").mkdir()
            (pod.path / f"step-{number}" / f"{rank}.bin").write_bytes(bytes([number, rank]))
        gang.await_kept(pods[0], number)  # neither rank 0 nor the pod that holds its copies has the part of rank 2


def test_a_damaged_copy_is_never_offered(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "1.pt").write_bytes(b"first")
    gang.await_kept(first, 1)
    known = set(second.chunks)
    (first.path / "1.pt").unlink()
    (first.path / "2.pt").write_bytes(b"second")
    gang.await_kept(first, 2)
    (new,) = set(second.chunks) - known
    new.write_bytes(b"sEcond")
    first.keeper.close()
    third = gang.pod()
    gang.enter(second, third)
    assert second.read() == third.read() == {"1.pt": b"first"}, "the one before is whole"


def test_a_copy_that_nobody_has_is_not_told_while_the_script_saves_again(gang: Gang) -> None:
    first, full = gang.pod(), gang.pod(limit=100)
    gang.enter(first, full)
    (first.path / "1.pt").write_bytes(b"x" * 1000)
    gang.await_kept(first, 1, copies=0)
    first.pids = [os.getpid()]
    told = len(first.kept)
    with (first.path / "1.pt").open("wb", buffering=0) as file:
        file.write(b"y")
        gangs.wait_for(lambda: len(first.kept) > told + 2, "it is told again")
    assert set(first.kept[told:]) == {(1, 0)}


def test_the_copy_of_a_pod_without_room_for_its_own_may_not_be_lost(gang: Gang) -> None:
    first, second = gang.pod(limit=1800), gang.pod()
    gang.enter(first, second)
    (first.path / "1.pt").write_bytes(b"x" * 1000)
    gangs.wait_for(lambda: len([number for number, _ in first.kept if number]) > 4, "it is told again and again")
    assert max(copies for _, copies in first.kept) == 0
    assert second.chunks, "it holds what the script may overwrite"


def test_a_full_pod_holds_nothing_and_harms_nobody(gang: Gang) -> None:
    first, full, third = gang.pod(), gang.pod(limit=100), gang.pod()
    gang.enter(first, full, third)
    (first.path / "1.pt").write_bytes(b"x" * 1000)
    gang.await_kept(first, 1)
    assert not full.chunks
    assert third.chunks, "the next one holds it"
    third.keeper.close()
    (first.path / "2.pt").write_bytes(b"y" * 1000)
    gang.enter(first, full)
    assert first.kept[-1][0] == 1
    (first.path / "3.pt").write_bytes(b"z" * 1000)
    gang.await_kept(first, 2, copies=0)


def test_a_file_that_is_being_overwritten_survives_the_pod_that_holds_its_copy(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "a.pt").write_bytes(b"old")
    gang.await_kept(first, 1)
    first.workers = Workers.BROKEN
    (first.path / "a.pt").write_bytes(b"new and torn")
    second.keeper.close()
    third = gang.pod()
    gang.enter(first, third)
    assert first.read() == third.read() == {"a.pt": b"old"}


def test_files_of_one_save_are_recorded_together(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    first.pids.append(os.getpid())
    gang.enter(first, second)
    (first.path / "model.pt").write_bytes(b"1")
    (first.path / "optimizer.pt").write_bytes(b"1")
    gang.await_kept(first, 1)
    with (first.path / "optimizer.pt").open("wb") as file:
        file.write(b"2")
        (first.path / "model.pt").write_bytes(b"2")
        (second.path / "other.pt").write_bytes(b"of another pod")
        gang.await_kept(first, 2)  # the model has come to rest as well by now
        first.workers = Workers.BROKEN
    gang.enter(first, second)
    assert second.read() == {"model.pt": b"1", "optimizer.pt": b"1", "other.pt": b"of another pod"}


def test_a_deleted_folder_goes_with_the_parts_of_all_pods(gang: Gang) -> None:
    pods = [gang.pod(), gang.pod()]
    gang.enter(*pods)
    for number in (1, 2):
        for rank, pod in enumerate(pods):
            (pod.path / f"step-{number}").mkdir()
            (pod.path / f"step-{number}" / f"{rank}.bin").write_bytes(bytes([rank]))
        gang.await_kept(pods[0], number)
    shutil.rmtree(pods[0].path / "step-1")  # rank 0 alone deletes old ones, as on a shared volume
    gang.await_kept(pods[0], 3)
    gang.enter(*pods)
    assert set(pods[0].read()) == set(pods[1].read()) == {"step-2/0.bin", "step-2/1.bin"}


def test_a_pod_that_cannot_write_says_nothing_against_a_checkpoint(gang: Gang) -> None:
    first, broken = gang.pod(), gang.pod()
    gang.enter(first)
    (first.path / "a.pt").write_bytes(b"1")
    gang.await_kept(first, 1, copies=0)
    broken.path.rmdir()
    broken.path.write_bytes(b"no directory")
    over, store = threading.Event(), gangs.FakeStore()
    entered: list[bool] = []
    thread = threading.Thread(target=lambda: entered.append(first.keeper.enter(store, Place(2, 0, 2), over.is_set)))
    thread.start()
    with pytest.raises(OSError, match="files"):
        broken.keeper.enter(store, Place(2, 1, 2), over.is_set)
    over.set()  # it tells the hub, which ends this world
    thread.join(gangs.PATIENCE)
    assert entered == [False]
    assert first.read() == {"a.pt": b"1"}


def test_a_holder_that_cannot_be_reached_for_a_moment_is_asked_again(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first)
    (first.path / "a.pt").write_bytes(b"1")
    gang.await_kept(first, 1, copies=0)
    real, failures = transport.Link.call, [0]

    def call(link: Link, op: str, body: bytes = b"", /, **fields: object) -> object:
        if op in ("get", "record") and failures[0] < 4:
            failures[0] += 1
            raise ConnectionResetError
        return real(link, op, body, **fields)

    monkeypatch.setattr(transport.Link, "call", call)
    assert gang.enter(first, second) == [True, True]
    assert second.read() == {"a.pt": b"1"}
    assert failures == [4]


def test_copies_that_no_record_names_any_more_are_dropped(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    for number in range(1, 5):
        (first.path / "a.pt").write_bytes(bytes([number]))
        gang.await_kept(first, number)
    gangs.wait_for(lambda: len(second.chunks) <= 2 and len(first.chunks) <= 2, "the last two are kept")


def test_nothing_is_left_where_all_pods_were_lost(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "1.pt").write_bytes(b"1")
    gang.await_kept(first, 1)
    first.keeper.close()
    second.keeper.close()
    third, fourth = gang.pod(), gang.pod()
    gang.enter(third, fourth)
    assert third.kept == [(0, 0)]
    assert third.read() == {}


def test_an_interrupted_start_ends(gang: Gang) -> None:
    over = threading.Event()
    threading.Timer(0.2, over.set).start()
    assert not gang.pod().keeper.enter(gangs.FakeStore(), Place(1, 0, 2), over.is_set), "one of the two never comes"


def test_a_stranger_gets_nothing(gang: Gang) -> None:
    first = gang.pod()
    port = first.keeper._server.port
    with pytest.raises(PeerError):
        transport.connect("127.0.0.1", port, "another key")
    with pytest.raises(PeerError):
        transport.connect("127.0.0.1", port, "")
    link = transport.connect("127.0.0.1", port, "secret")
    with pytest.raises(PeerError, match="no digest"):
        link.call("get", digest="../records/1")
    with pytest.raises(PeerError, match="damaged"):
        link.call("put", b"other bytes", digest="0" * 64)
    link.close()


def test_a_changed_frame_is_refused() -> None:
    near, far = socket.socketpair()
    links: list[Link] = []
    serving = threading.Thread(target=lambda: links.append(Link(far, "secret", serves=True)))
    serving.start()
    client = Link(near, "secret", serves=False)
    serving.join(30)
    client.send({"op": "get"}, b"body")
    data = bytearray(far.recv(1000, socket.MSG_PEEK))
    assert links[0].receive() == ({"op": "get"}, b"body")
    near.sendall(data)
    with pytest.raises(PeerError, match="changed"):
        links[0].receive()  # the same frame again
    near.close()
    far.close()


def test_the_end_of_a_world_does_not_wait_for_what_is_never_copied(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "a.pt").write_bytes(b"saved")
    (first.path / "out").symlink_to("/etc")
    (first.path / "latest").symlink_to(first.path / "a.pt")
    for pod in (first, second):
        pod.workers = Workers.DONE
    gang.await_kept(first, 1)
    ended = threading.Event()

    def flush() -> None:
        first.keeper.flush(1000.0)
        ended.set()

    threading.Thread(target=flush, daemon=True).start()
    assert ended.wait(60)
    assert gang.enter(second, gang.pod()) == [True] * 2
    assert (second.path / "latest").readlink() == Path("a.pt")


def test_a_save_that_a_pod_cannot_have_is_passed_over(
    gang: Gang, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = gang.pod(), gang.pod()
    limit_names(monkeypatch, second.path, 143)
    gang.enter(first)
    (first.path / "a.pt").write_bytes(b"1")
    gang.await_kept(first, 1, copies=0)
    (first.path / LONG).write_bytes(b"2")
    gang.await_kept(first, 2, copies=0)
    assert gang.enter(first, second) == [True, True]
    assert first.read() == second.read() == {"a.pt": b"1"}
    assert LONG[:80] in caplog.text, "the name is told"
    (first.path / "b.pt").write_bytes(b"3")
    gang.await_kept(first, 2)
    assert gang.enter(second, first) == [True, True]
    assert first.read() == second.read() == {"a.pt": b"1", "b.pt": b"3"}


def test_a_job_does_not_begin_anew_where_a_pod_cannot_have_its_only_save(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = gang.pod(), gang.pod()
    limit_names(monkeypatch, second.path, 143)
    gang.enter(first)
    (first.path / LONG).write_bytes(b"1")
    gang.await_kept(first, 1, copies=0)
    over, store, entered = threading.Event(), gangs.FakeStore(), list[bool]()
    thread = threading.Thread(target=lambda: entered.append(second.keeper.enter(store, Place(2, 1, 2), over.is_set)))
    thread.start()
    patience = threading.Timer(gangs.PATIENCE, over.set)
    patience.start()
    with pytest.raises(PeerError, match=LONG[:80]):  # the pod of rank 0 tells the hub
        first.keeper.enter(store, Place(2, 0, 2), over.is_set)
    patience.cancel()
    over.set()
    thread.join(gangs.PATIENCE)
    assert entered == [False]
    assert first.read() == {LONG: b"1"}


def test_a_save_with_a_path_that_nobody_can_read_is_no_save(gang: Gang, caplog: pytest.LogCaptureFixture) -> None:
    first, second = gang.pod(), gang.pod()
    gang.enter(first, second)
    (first.path / "step-1").mkdir()
    (first.path / "step-1" / "model.bin").write_bytes(b"another part of the model")
    make_deep(first.path / "step-1")
    (first.path / "a.pt").write_bytes(b"1")
    gang.await_kept(first, 1)
    third = gang.pod()
    gang.enter(second, third)
    assert third.read() == {"a.pt": b"1"}, "and not a part of another save"
    assert "step-1" in caplog.text, "it is told"
    assert gang.enter(first, second) == [True, True], "nor does it keep its pod from other saves"
    shutil.rmtree(first.path / "step-1", ignore_errors=True)


def test_a_save_may_have_more_levels_than_python_calls_itself(gang: Gang) -> None:
    first, second = gang.pod(), gang.pod()
    third = gang.pod()
    levels = 1500
    try:
        gang.enter(first, second)
        deep = gangs.make_levels(first.path, levels) / "model.bin"
        deep.write_bytes(b"far down")
        gang.await_kept(first, 1)
        (third.path / "d").mkdir()
        (third.path / "d" / "old.bin").write_bytes(b"from before")
        gang.enter(second, third)
        assert (third.path / deep.relative_to(first.path)).read_bytes() == b"far down"
        assert not (third.path / "d" / "old.bin").exists()
        gang.close()
    finally:
        for pod in (first, second, third):
            gangs.remove_levels(pod.path, levels)
