"""What scripts save last is archived before all pods of a job go, whatever else is under way."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob import env
from elasticjob.archive import reading
from elasticjob.archive.archive import Archive
from elasticjob.archive.storage import Storage
from elasticjob.archive.writing import GoneError, Leader
from elasticjob.peers.directory import Workers
from elasticjob.peers.records import CHUNK_BYTES, Record
from worker.peers import gang as gangs
from worker.peers.gang import FakePod, Gang, knows_that_all_leave, wait_for

pytestmark = pytest.mark.timeout(240)

MIB = 1 << 20


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    yield from gangs.make(tmp_path)


def find_archive(gang: Gang, rate: float = 1e9) -> env.Archive:
    """Of saves that are due after an hour, but for the first."""
    return env.Archive(f"file://{gang.folder}/store/uid", "uid", 3600.0, 2, None, None, rate)


def begin(gang: Gang, archive: env.Archive, rate: float = 1e9, size: int = 2) -> list[FakePod]:
    """A world of so many pods that has archived a first save."""
    pods = [gang.pod(archive=archive, rate=rate) for _ in range(size)]
    gang.enter(*pods)
    (pods[0].path / "model.pt").write_bytes(b"first")
    wait_for(lambda: reading.find_saves(Storage(archive.url)), "the first one is archived at once")
    return pods


def end(pods: list[FakePod], seconds: float, archive_seconds: float, **flush: bool) -> None:
    """All workers have exited, and each pod goes once its agent has done what it can."""
    threads = [
        threading.Thread(target=end_one, args=(pod, seconds, archive_seconds), kwargs=flush, daemon=True)
        for pod in pods
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(gangs.PATIENCE)
        assert not thread.is_alive()


def end_one(pod: FakePod, seconds: float, archive_seconds: float, ended: Workers = Workers.DONE, **flush: bool) -> None:
    pod.workers = ended
    pod.keeper.flush(seconds, archive_seconds, **flush)
    pod.keeper.close()


def read_archived(gang: Gang, archive: env.Archive) -> dict[str, bytes]:
    """What a pod that comes later begins with."""
    pod = gang.pod(archive=archive)
    gang.enter(pod)
    return pod.read()


@pytest.mark.parametrize("writer", [0, 1])
def test_copies_in_pods_that_all_go_hold_nothing_up(gang: Gang, writer: int) -> None:
    """The rate that training has to be spared from would take longer than the time that is left."""
    archive = find_archive(gang)
    pods = begin(gang, archive, rate=MIB / 4)
    last = os.urandom(2 * CHUNK_BYTES)
    (pods[writer].path / "last.pt").write_bytes(last)
    end(pods, 1.0, 20.0)
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": last}


def begin_to_send(gang: Gang, archive: env.Archive) -> tuple[list[FakePod], bytes]:
    """Two pods, of which the second has begun to send what it has saved, and that."""
    pods = [gang.pod(archive=archive) for _ in range(2)]
    gang.enter(*pods)
    first = os.urandom(4 * CHUNK_BYTES)
    (pods[1].path / "first.pt").write_bytes(first)
    objects = gang.folder / "store" / "uid" / "objects"
    wait_for(lambda: objects.is_dir() and any(objects.iterdir()), "rank 1 has begun to send it")
    return pods, first


def test_a_save_that_is_being_sent_is_sent_as_fast_as_possible(gang: Gang) -> None:
    """It was begun while the pods trained: the rate would take longer than the time that is left."""
    archive = find_archive(gang, rate=MIB / 4)
    pods, first = begin_to_send(gang, archive)
    (pods[0].path / "last.pt").write_bytes(b"last")
    end(pods, 1.0, 30.0)
    assert read_archived(gang, archive) == {"first.pt": first, "last.pt": b"last"}


def test_copies_of_what_was_saved_last_are_made_as_fast_as_possible(gang: Gang) -> None:
    """Nobody trains. Only the pod that has written it goes."""
    archive = find_archive(gang)
    pods = begin(gang, archive, rate=MIB / 4)
    last = os.urandom(3 * CHUNK_BYTES)
    (pods[0].path / "last.pt").write_bytes(last)
    end_one(pods[0], 20.0, 0.0)
    gang.enter(pods[1], gang.pod(archive=archive))
    assert pods[1].read() == {"model.pt": b"first", "last.pt": last}


def test_pods_that_are_all_told_to_end_archive_what_was_saved_last(gang: Gang) -> None:
    """Each of them only knows of itself: their node is drained, say."""
    archive = find_archive(gang)
    pods = begin(gang, archive)
    for rank, pod in enumerate(pods):
        (pod.path / f"last-{rank}.pt").write_bytes(bytes([rank]) * 1000)
        pod.is_leaving = True
    wait_for(lambda: knows_that_all_leave(pods[0].keeper), "rank 0 knows it")
    end(pods, 10.0, 20.0, do_all_leave=False)
    lasts = {f"last-{rank}.pt": bytes([rank]) * 1000 for rank in range(2)}
    assert read_archived(gang, archive) == {"model.pt": b"first", **lasts}


def test_copies_in_pods_that_are_all_told_to_end_hold_nothing_up(gang: Gang) -> None:
    """They are under way when the pods hear of it."""
    archive = find_archive(gang)
    pods = begin(gang, archive, rate=MIB / 4)
    last = os.urandom(4 * CHUNK_BYTES)
    (pods[0].path / "last.pt").write_bytes(last)
    wait_for(lambda: len(pods[1].chunks) > 1, "some of it has been copied")
    for pod in pods:
        pod.is_leaving = True
    lead = pods[0].keeper._world.lead  # type: ignore[union-attr]
    wait_for(lambda: lead and 1 in lead._endings and lead._endings[1].is_leaving, "rank 0 has heard of rank 1")
    end(pods, 10.0, 20.0, do_all_leave=False)
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": last}


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_pod_that_goes_alone_archives_nothing(gang: Gang, leaver: int) -> None:
    """The other one has a copy, and goes on with it."""
    archive = find_archive(gang)
    pods = begin(gang, archive)
    (pods[leaver].path / "last.pt").write_bytes(b"last")
    pods[leaver].is_leaving = True
    end_one(pods[leaver], 20.0, 1000.0, do_all_leave=False)
    assert len(reading.find_saves(Storage(archive.url))) == 1
    gang.enter(pods[1 - leaver], gang.pod(archive=archive))
    assert pods[1 - leaver].read() == {"model.pt": b"first", "last.pt": b"last"}


@pytest.mark.parametrize("ended", [Workers.DONE, Workers.BROKEN])
def test_rank_0_waits_for_what_another_pod_still_saves(gang: Gang, ended: Workers) -> None:
    archive = find_archive(gang)
    first, second = begin(gang, archive)
    thread = threading.Thread(target=end_one, args=(first, 10.0, 100.0), kwargs={"ended": ended}, daemon=True)
    thread.start()
    world = first.keeper._world
    wait_for(lambda: world and world.is_ending, "its own workers have exited")
    (second.path / "last.pt").write_bytes(b"last")
    end_one(second, 10.0, 100.0)
    thread.join(gangs.PATIENCE)
    assert not thread.is_alive()
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": b"last"}


def test_the_others_stay_until_rank_0_has_archived_what_it_still_saves(gang: Gang) -> None:
    """They have nothing to save, and nothing is recorded without them."""
    archive = find_archive(gang)
    first, second = begin(gang, archive)
    wait_for(lambda: second.keeper.record is not None, "rank 1 has the first record")
    thread = threading.Thread(target=end_one, args=(second, 10.0, 100.0), daemon=True)
    thread.start()
    thread.join(2.0)  # it may go
    (first.path / "last.pt").write_bytes(b"last")
    end_one(first, 10.0, 20.0)
    thread.join(gangs.PATIENCE)
    assert not thread.is_alive()
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": b"last"}


def test_what_could_not_be_read_in_time_is_told(gang: Gang) -> None:
    """The other pod never says that its workers have ended."""
    archive = find_archive(gang)
    first = begin(gang, archive)[0]
    first.workers = Workers.DONE
    first.keeper.flush(0.2, 0.4)
    assert first.archive.reason == "NotInTime"
    assert "before what the scripts have saved last was read" in first.archive.message


def leave_a_world(pod: FakePod) -> None:
    """It is over, and this pod waits for the next one."""
    pod.workers = Workers.DONE
    pod.keeper.flush(1000.0)


def end_waiting(pod: FakePod, **flush: bool) -> None:
    """This pod, which waits for a world, is told to end."""
    pod.is_leaving = True
    pod.keeper.flush(10.0, 30.0, waits=True, **flush)
    pod.keeper.close()


def test_the_last_pod_archives_what_one_that_went_before_has_left_it(gang: Gang) -> None:
    """There was no world between the two: the node of both is drained, say."""
    archive = find_archive(gang)
    pods = begin(gang, archive)
    (pods[0].path / "last.pt").write_bytes(b"last")
    pods[0].is_leaving = True
    thread = threading.Thread(target=leave_a_world, args=(pods[1],), daemon=True)
    thread.start()
    end_one(pods[0], 20.0, 1000.0, do_all_leave=False)
    thread.join(gangs.PATIENCE)
    end_waiting(pods[1], do_all_leave=False)
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": b"last"}


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_rank_0_archives_what_it_has_saved_after_another_pod_had_gone(gang: Gang, size: int) -> None:
    archive = find_archive(gang)
    pods = begin(gang, archive, size=size)
    (pods[1].path / "other.pt").write_bytes(b"of a pod that goes")
    pods[1].is_leaving = True
    end_one(pods[1], 20.0, 1000.0, do_all_leave=False)
    (pods[0].path / "last.pt").write_bytes(b"last")
    for pod in (pods[0], *pods[2:]):
        leave_a_world(pod)  # it does not wait for who has gone
    for pod in (*pods[2:], pods[0]):
        end_waiting(pod, do_all_leave=False)
    saved = {"model.pt": b"first", "other.pt": b"of a pod that goes", "last.pt": b"last"}
    assert read_archived(gang, archive) == saved


@pytest.mark.parametrize("lost", [0, 1])
def test_the_last_pod_archives_what_it_holds_where_another_one_was_lost(gang: Gang, lost: int) -> None:
    """Without a word; then the job, which has too few pods for a world, is suspended."""
    archive = find_archive(gang)
    pods = begin(gang, archive)
    (pods[0].path / "last.pt").write_bytes(b"last")
    gang.await_kept(pods[0], 2)
    pods[lost].keeper.close()
    pods[1 - lost].workers = Workers.BROKEN
    end_waiting(pods[1 - lost])
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": b"last"}


def test_a_pod_that_is_told_to_end_on_its_way_into_a_world_archives_what_it_holds(gang: Gang) -> None:
    archive = find_archive(gang)
    pods = begin(gang, archive)
    (pods[0].path / "last.pt").write_bytes(b"last")
    gang.await_kept(pods[0], 2)
    pods[0].keeper.close()
    pods[1].workers = Workers.DONE
    assert gang.enter(pods[1], gang.pod(archive=archive), interrupted=lambda: True) == [False, False]
    end_waiting(pods[1], do_all_leave=False)
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": b"last"}


@pytest.mark.parametrize("lost", [0, pytest.param(2, marks=pytest.mark.long)])
def test_pods_that_wait_archive_what_no_one_of_them_has_whole(gang: Gang, lost: int) -> None:
    """Each has written a part; one was lost without a word, and others have its copies. Then the job is suspended."""
    archive = find_archive(gang)
    pods = begin(gang, archive, size=3)
    for rank, pod in enumerate(pods):
        (pod.path / "step-1").mkdir()
        (pod.path / f"step-1/{rank}.bin").write_bytes(bytes([rank]) * 1000)
    gang.await_kept(pods[0], 2)
    wait_for(lambda: all(pod.keeper.record.number == 2 for pod in pods if pod.keeper.record), "all have the record")
    pods[lost].keeper.close()
    threads = []
    for pod in pods[:lost] + pods[lost + 1 :]:
        pod.workers = Workers.BROKEN
        threads.append(threading.Thread(target=end_waiting, args=(pod,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(gangs.PATIENCE)
        assert not thread.is_alive()
    parts = {f"step-1/{rank}.bin": bytes([rank]) * 1000 for rank in range(3)}
    assert read_archived(gang, archive) == {"model.pt": b"first", **parts}


def test_what_was_deleted_is_not_archived_again_by_a_pod_that_still_has_a_part(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pod deletes a folder, and the parts of all go; a part lies in another pod until there is a world again."""
    archive = find_archive(gang)
    pods = begin(gang, archive)
    for step in (1, 2):
        for rank, pod in enumerate(pods):
            (pod.path / f"step-{step}").mkdir()
            (pod.path / f"step-{step}/{rank}.bin").write_bytes(bytes([step, rank]) * 1000)
        gang.await_kept(pods[0], 1 + step)
    shutil.rmtree(pods[0].path / "step-1")
    gang.await_kept(pods[0], 4)
    wait_for(lambda: pods[1].keeper.record and pods[1].keeper.record.number == 4, "rank 1 has the record")
    pods[0].keeper.close()
    pods[1].workers = Workers.DONE
    made: list[Record] = []
    monkeypatch.setattr(pods[1].keeper, "_save", made.append)
    await_saved = Archive.await_saved

    def look_and_await(self: Archive, *args: Any, **kwargs: Any) -> bool:
        for _ in range(3):
            pods[1].keeper._turn()  # as its thread does, while the store takes its time
        return await_saved(self, *args, **kwargs)

    monkeypatch.setattr(Archive, "await_saved", look_and_await)
    end_waiting(pods[1])
    newest = reading.find_saves(Storage(archive.url))[0][1]
    assert sorted(newest.record.files) == ["model.pt", "step-2/0.bin", "step-2/1.bin"]
    assert not made


def test_nobody_waits_for_what_a_pod_that_has_gone_was_sending(gang: Gang) -> None:
    """Rank 0 has a copy of it."""
    archive = find_archive(gang, rate=MIB / 4)
    pods, first = begin_to_send(gang, archive)
    pods[1].is_leaving = True
    end_one(pods[1], 20.0, 1000.0, do_all_leave=False)
    leave_a_world(pods[0])
    end_waiting(pods[0], do_all_leave=False)
    assert read_archived(gang, archive) == {"first.pt": first}


def await_request(pod: FakePod, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The answers that this pod, as rank 0, gives to pods that wait for a world and are told to end."""
    answers: list[dict[str, Any]] = []
    take_leave = pod.keeper._take_leave

    def take(header: dict[str, Any]) -> dict[str, Any]:
        answer = take_leave(header)
        if header.get("waits") is True:
            answers.append(answer)
        return answer

    monkeypatch.setattr(pod.keeper, "_take_leave", take)
    return answers


def test_a_pod_that_waits_is_told_to_end_before_rank_0_leaves_the_world(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes with it is archived once rank 0 notices that the world is over."""
    archive = find_archive(gang)
    pods = begin(gang, archive)
    (pods[0].path / "last.pt").write_bytes(b"last")
    gang.await_kept(pods[0], 2)
    answers = await_request(pods[0], monkeypatch)
    pods[1].workers = Workers.DONE
    thread = threading.Thread(target=end_waiting, args=(pods[1],), kwargs={"do_all_leave": False}, daemon=True)
    thread.start()
    wait_for(lambda: answers, "rank 0 is asked")
    leave_a_world(pods[0])
    thread.join(gangs.PATIENCE)
    assert not thread.is_alive()
    assert read_archived(gang, archive) == {"model.pt": b"first", "last.pt": b"last"}


def test_a_pod_that_goes_hurries_no_world_that_begins_without_it(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 enters the next one at the moment when it is asked: there, somebody trains."""
    archive = find_archive(gang)
    pods = begin(gang, archive)
    tier = pods[0].keeper._last_tier
    assert isinstance(tier, Archive)
    hurry = tier.hurry

    def enter_and_hurry(*args: Any) -> None:
        gang.enter(pods[0], gang.pod(archive=archive))
        hurry(*args)

    monkeypatch.setattr(tier, "hurry", enter_and_hurry)
    answers = await_request(pods[0], monkeypatch)
    leave_a_world(pods[0])
    pods[1].workers = Workers.DONE
    end_waiting(pods[1], do_all_leave=False)
    assert answers
    assert tier._world
    assert (tier._world.members.generation, tier._world.is_hurry) == (2, False)


def test_nobody_waits_for_what_cannot_be_archived_any_more(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = find_archive(gang)
    (pod,) = begin(gang, archive, size=1)
    tier = pod.keeper._last_tier
    assert isinstance(tier, Archive)

    def fail(*_: object) -> None:
        wait_for(lambda: tier._changed._waiters, "the pod waits for it")  # type: ignore[attr-defined]
        raise GoneError("the script has saved again")

    (pod.path / "last.pt").write_bytes(b"last")
    gang.await_kept(pod, 2, copies=0)
    monkeypatch.setattr(Leader, "save", fail)
    end([pod], 10.0, 1000.0)
    assert pod.archive.reason == "NotInTime"
