"""Pods with an archive: real files, sockets and a real directory as the store; their workers are what a test says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticjob import env
from elasticjob.archive import layout, reading
from elasticjob.archive.storage import Storage
from elasticjob.peers.directory import Workers
from elasticjob.peers.records import CHUNK_BYTES
from worker.peers import gang as gangs
from worker.peers.gang import FakePod, Gang, wait_for

pytestmark = pytest.mark.timeout(240)

LARGE = os.urandom(CHUNK_BYTES + 1000)


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    yield from gangs.make(tmp_path)


class Job:
    """A job whose pods share a directory beside their own."""

    def __init__(self, gang: Gang, uid: str, origin: tuple[str, int | None] | None = None, every: float = 0.1) -> None:
        self.gang, self.url = gang, f"file://{gang.folder}/store/{uid}"
        self.settings = env.Archive(self.url, uid, every, 2, None, origin, 1e9)

    def pod(self) -> FakePod:
        return self.gang.pod(archive=self.settings)

    def await_saves(self, number: int) -> None:
        wait_for(lambda: len(self.saves()) == number, f"{number} saves are archived")

    def saves(self) -> list[tuple[int | None, int]]:
        return [(save.step, len(save.record.files)) for _, save in reading.find_saves(Storage(self.url))]


def await_step(pod: FakePod, step: int) -> None:
    wait_for(lambda: pod.keeper._steps and pod.keeper._steps[-1][1] == step, "the step is noted")


def lose(*pods: FakePod) -> None:
    for pod in pods:
        pod.keeper.close()


def test_a_checkpoint_survives_all_pods_at_any_size(gang: Gang) -> None:
    job = Job(gang, "a")
    first, second = job.pod(), job.pod()
    gang.enter(first, second)
    first.step = second.step = 7
    wait_for(lambda: first.keeper._steps, "the step is noted")
    (first.path / "step-7").mkdir()
    (first.path / "step-7" / "model.bin").write_bytes(LARGE)
    (second.path / "part.bin").write_bytes(b"of the second pod")
    (first.path / "latest").symlink_to("step-7")
    wait_for(lambda: job.saves() and job.saves()[0][1] == 3, "all of it is archived")
    wait_for(lambda: first.archive.saves, "it is told")
    assert first.archive.saves[0].step == 7
    assert first.archive.saves[0].bytes == len(LARGE) + len(b"of the second pod")
    lose(first, second)
    others = [job.pod(), job.pod(), job.pod()]
    assert gang.enter(*others) == [True] * 3
    for pod in others:
        assert pod.read()["step-7/model.bin"] == LARGE
        assert pod.read()["part.bin"] == b"of the second pod"
        assert (pod.path / "latest").readlink() == Path("step-7")
    gang.await_kept(others[0], 1) if others[0].kept[-1] != (1, 2) else None


def test_each_object_is_sent_by_one_pod_and_never_twice(gang: Gang) -> None:
    job = Job(gang, "a")
    pods = [job.pod(), job.pod(), job.pod()]
    gang.enter(*pods)
    for rank, pod in enumerate(pods):
        (pod.path / "step-1").mkdir()
        (pod.path / "step-1" / f"{rank}.bin").write_bytes(bytes([rank]) * 3000)
        (pod.path / "step-1" / f"large-{rank}.bin").write_bytes(bytes([rank]) + LARGE)
    wait_for(job.saves, "it is archived")
    senders = [pod.keeper._last_tier._sender for pod in pods]  # type: ignore[union-attr]
    total = 3 * (3000 + CHUNK_BYTES) + 1001  # the ends of the large files are the same
    assert sum(sender.bytes for sender in senders) == total
    assert all(sender.bytes for sender in senders), "each sends what it has written"
    for pod in pods:
        (pod.path / "step-1" / f"{pods.index(pod)}.bin").write_bytes(bytes([pods.index(pod)]) * 700)
    wait_for(lambda: len(job.saves()) == 2, "the next one is archived")
    assert sum(sender.bytes for sender in senders) == total + 3 * 700, "what has changed"


def test_another_job_begins_from_a_step_of_it(gang: Gang) -> None:
    job = Job(gang, "a")
    pod = job.pod()
    gang.enter(pod)
    for step in (1, 2):
        pod.step = step
        await_step(pod, step)
        (pod.path / "model.pt").write_bytes(b"PK" + bytes([step]) * 50)
        job.await_saves(step)
    fork = Job(gang, "b", (job.url, 1))
    other = fork.pod()
    gang.enter(other)
    assert other.read() == {"model.pt": b"PK" + bytes([1]) * 50}
    wait_for(fork.saves, "the fork archives in a folder of its own")
    assert [step for step, _ in job.saves()] == [2, 1], "and nothing in that of the other"


@pytest.mark.parametrize("salt", range(5))
def test_another_job_begins_from_its_newest_save(gang: Gang, salt: int) -> None:
    """Whatever the names of its saves are, which are digests of what is in them."""
    job = Job(gang, "a")
    pod = job.pod()
    gang.enter(pod)
    for step in (1, 2, 3):
        saved = bytes([salt, step]) * 50
        (pod.path / "model.pt").write_bytes(saved)
        gang.await_kept(pod, step, copies=0)
        wait_for(lambda: pod.keeper.record and pod.keeper.record.name == newest_of(job), "it is archived")
    other = Job(gang, "b", (job.url, None)).pod()
    gang.enter(other)
    assert other.read() == {"model.pt": saved}


def newest_of(job: Job) -> str:
    return next((save.record.name for _, save in reading.find_saves(Storage(job.url))), "")


def test_where_a_job_began_never_wins_over_what_it_has_made_since(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own archive is empty, because the store refuses, and a lost pod may have had something newer."""
    job = Job(gang, "a")
    pod = job.pod()
    gang.enter(pod)
    (pod.path / "model.pt").write_bytes(b"where it began")
    wait_for(job.saves, "it is archived")
    lose(pod)

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("elasticjob.archive.folders.Folder.pipe_file", fail)
    fork = Job(gang, "b", (job.url, None))
    first, second = fork.pod(), fork.pod()
    gang.enter(first, second)
    assert second.read() == {"model.pt": b"where it began"}
    (first.path / "model.pt").write_bytes(b"what it has made")
    wait_for(lambda: first.kept[-1][0] > 1 and first.kept[-1][1] == 1, "the other pod has a copy")
    lose(first)
    gang.enter(second, fork.pod())
    assert second.read() == {"model.pt": b"what it has made"}


def test_a_job_does_not_begin_anew_where_there_is_no_such_save(gang: Gang) -> None:
    job = Job(gang, "a", (f"file://{gang.folder}/store/none", None))
    pod = job.pod()
    over = threading.Event()
    entered: list[bool] = []
    thread = threading.Thread(target=lambda: entered.extend(gang.enter(pod, interrupted=over.is_set)), daemon=True)
    thread.start()
    wait_for(lambda: pod.archive.reason == "NothingToRestore", "the pod says why it waits")
    assert "checkpoints.from.archive" in pod.archive.message
    over.set()
    thread.join(gangs.PATIENCE)
    assert entered == [False]


def test_what_is_saved_last_is_archived_before_all_pods_go(gang: Gang) -> None:
    job = Job(gang, "a", every=3600)
    first, second = job.pod(), job.pod()
    gang.enter(first, second)
    (first.path / "a.pt").write_bytes(b"early")
    wait_for(job.saves, "the first one is archived at once")
    (first.path / "a.pt").write_bytes(b"last")
    first.workers = second.workers = Workers.DONE
    threads = [threading.Thread(target=pod.keeper.flush, args=(gangs.PATIENCE, 30.0)) for pod in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(gangs.PATIENCE)
        assert not thread.is_alive()
    lose(first, second)
    third = job.pod()
    gang.enter(third)
    assert third.read() == {"a.pt": b"last"}


def test_what_could_not_be_archived_in_time_is_told(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(gang, "a", every=3600)
    pod = job.pod()
    gang.enter(pod)
    (pod.path / "a.pt").write_bytes(b"last")
    gang.await_kept(pod, 1, copies=0)
    wait_for(job.saves, "it is archived")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("elasticjob.archive.folders.Folder.pipe_file", fail)
    (pod.path / "a.pt").write_bytes(b"the very last")
    pod.workers = Workers.DONE
    pod.keeper.flush(gangs.PATIENCE, 5.0)
    assert pod.archive.reason == "NotInTime"
    assert "the disk is full" in pod.archive.message


def test_a_damaged_save_is_passed_over(gang: Gang) -> None:
    job = Job(gang, "a")
    pod = job.pod()
    gang.enter(pod)
    for number in (1, 2):
        (pod.path / "a.pt").write_bytes(bytes([number]) * (2 << 20))
        job.await_saves(number)
    lose(pod)
    newest = max((gang.folder / "store" / "a" / "objects").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    other = job.pod()
    gang.enter(other)
    assert other.read() == {"a.pt": bytes([1]) * (2 << 20)}


@pytest.mark.parametrize(
    "path", ["x" * 300, "/".join(["d" * 250] * 20)], ids=["a name over 255 bytes", "a path over 4,096 bytes"]
)
def test_a_save_that_no_pod_can_have_is_passed_over(gang: Gang, path: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was made on another file system, or by somebody else."""
    job = Job(gang, "a")
    pod = job.pod()
    gang.enter(pod)
    (pod.path / "a.pt").write_bytes(b"1")
    job.await_saves(1)
    lose(pod)
    storage = Storage(job.url)
    ((_, save),) = reading.find_saves(storage)
    files = {**save.record.files, path: save.record.files["a.pt"]}
    data = replace(save, record=replace(save.record, number=save.record.number + 1, files=files)).dump()
    newer = layout.name_save((save.order[0], save.order[1] + 1), data)
    storage.put(f"{layout.SAVES}/{newer}", data)
    fork = Job(gang, "b", (job.url, None))
    others = [fork.pod(), fork.pod()]
    assert gang.enter(*others) == [True, True]
    assert others[0].read() == others[1].read() == {"a.pt": b"1"}
    assert path[:80] in caplog.text, "the name is told"
    assert newer in storage.list(layout.SAVES), "and the save is still there"


def test_what_peers_have_is_not_read_from_the_archive(gang: Gang) -> None:
    job = Job(gang, "a")
    first, second = job.pod(), job.pod()
    gang.enter(first, second)
    (first.path / "a.pt").write_bytes(b"1")
    wait_for(job.saves, "it is archived")
    for path in (gang.folder / "store").rglob("*-*"):
        path.unlink()
    gang.enter(first, second)
    assert first.read() == second.read() == {"a.pt": b"1"}


def test_the_parts_of_a_sharded_model_come_back_together_at_any_size(gang: Gang) -> None:
    """`torch.distributed.checkpoint`: each pod writes a part, and rank 0 last what names them."""
    job = Job(gang, "a")
    first, second = job.pod(), job.pod()
    gang.enter(first, second)
    parts = {f"step-5/__{rank}_0.distcp": bytes([rank]) * 100 for rank in range(2)} | {"step-5/.metadata": b"parts"}
    for path, data in parts.items():
        pod = second if "__1" in path else first
        (pod.path / path).parent.mkdir(exist_ok=True)
        (pod.path / path).write_bytes(data)
    job.await_saves(1)
    lose(first, second)
    for pods in ([job.pod()], [job.pod() for _ in range(3)]):
        assert gang.enter(*pods) == [True] * len(pods)
        assert [pod.read() for pod in pods] == [parts] * len(pods)
        lose(*pods)


@pytest.mark.parametrize("mtime_ns", [-1, 2**63], ids=["before 1970", "after 2262"])
def test_a_file_of_a_strange_time_is_archived(gang: Gang, mtime_ns: int) -> None:
    """A clock was wrong, or the file comes from an archive that says so."""
    job = Job(gang, "a")
    pod, other = job.pod(), job.pod()
    gang.enter(pod, other)
    (pod.path / "a.pt").write_bytes(b"1")
    os.utime(pod.path / "a.pt", ns=(mtime_ns, mtime_ns))
    job.await_saves(1)
    gang.await_kept(pod, 1, copies=1)
    lose(pod, other)
    after = job.pod()
    assert gang.enter(after) == [True]
    assert after.read() == {"a.pt": b"1"}


def test_an_agent_without_the_extra_says_so(gang: Gang) -> None:
    pytest.importorskip("fsspec")
    if _is_there("gcsfs"):
        pytest.skip("gcsfs is installed")
    pod = gang.pod(archive=env.Archive("gs://bucket/job", "a"))
    (pod.path / "a.pt").write_bytes(b"1")
    gang.enter(pod)
    wait_for(lambda: pod.archive.reason == "ExtraMissing", "it is told")
    assert "elasticjob[gcs]" in pod.archive.message


def _is_there(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_a_missing_secret_is_told_and_stops_nothing(gang: Gang) -> None:
    job = Job(gang, "a")
    settings = env.Archive("s3://bucket/job", "a", credentials=gang.folder / "no-secret")
    pod = gang.pod(archive=settings)
    assert gang.enter(pod) == [True]
    wait_for(lambda: pod.archive.reason == "StoreRefused", "it is told")
    assert "checkpoints.archive.credentialsSecret" in pod.archive.message
    (pod.path / "a.pt").write_bytes(b"1")
    gang.await_kept(pod, 1, copies=0)
    assert job.saves() == []


def test_a_world_that_has_saved_nothing_changes_without_an_answer_of_the_store(gang: Gang) -> None:
    """A second pod comes a moment after the first. Whoever knows of no world before may be after one that has saved."""
    settings = env.Archive("s3://bucket/job", "a", credentials=gang.folder / "no-secret")
    first, second, later = (gang.pod(archive=settings) for _ in range(3))
    assert gang.enter(first) == [True]
    assert gang.enter(first, second) == [True, True]
    lose(second)
    for pod in (first, later):
        ends = time.monotonic() + 1
        assert gang.enter(pod, interrupted=lambda: time.monotonic() > ends) == [False]  # noqa: B023 # ends with it


def test_a_save_that_nobody_could_read_is_not_written(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count as the newest one, and those before it would go."""
    monkeypatch.setattr(layout, "MOST_MANIFEST", 2000)
    job = Job(gang, "a")
    pod = job.pod()
    gang.enter(pod)
    (pod.path / "model.pt").write_bytes(b"first")
    job.await_saves(1)
    for number in range(30):
        (pod.path / f"part-{number}.pt").write_bytes(bytes([number]))
    wait_for(lambda: "30" in pod.archive.message or "31" in pod.archive.message, "it is told")
    assert pod.archive.reason == "TooLarge"
    assert job.saves() == [(None, 1)]
    for path in pod.path.glob("part-*"):
        path.unlink()
    (pod.path / "model.pt").write_bytes(b"second")
    wait_for(lambda: len(job.saves()) == 2 and not pod.archive.reason, "the next one is archived")
