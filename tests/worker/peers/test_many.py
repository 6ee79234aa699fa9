"""As many pods as a job may have: hundreds of keepers with real sockets, and the largest job in a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticjob.peers import choice, directory, entering, keeper, records
from elasticjob.peers.choice import Holding, Peer
from elasticjob.peers.entering import Gathering, Joined
from elasticjob.peers.lead import Lead
from elasticjob.peers.records import File, Report
from worker.peers.gang import Gang, wait_for

_LARGEST = 5000  # pods of one job, as documented


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gang]:
    monkeypatch.setattr(directory, "QUIET", 0.4)
    monkeypatch.setattr(keeper, "_LOOK_SECONDS", 2.0)
    gang = Gang(tmp_path)
    yield gang
    gang.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [160, pytest.param(300, marks=pytest.mark.long)])
def test_a_world_of_many_pods_starts_and_records_what_one_of_them_writes(gang: Gang, size: int) -> None:
    pods = [gang.pod() for _ in range(size)]
    assert gang.enter(*pods) == [True] * size
    (pods[-1].path / "model.pt").write_bytes(b"weights")
    gang.await_kept(pods[0], 1)
    wait_for(lambda: len(pods[0].keeper._server._members) < size // 4, "nobody keeps a connection to rank 0")
    lost = pods.pop()
    lost.keeper.close()
    assert gang.enter(*pods) == [True] * len(pods)
    assert {pod.read()["model.pt"] for pod in pods} == {b"weights"}


def test_holdings_of_many_files_fit_into_what_a_pod_tells() -> None:
    joined = Joined([Holding("a", (1, 2), 300_000, (1 << 300_000) - 1)] * 2, Report(), (1, 2))
    assert len(joined.dump()) > 64 << 10, "more than a header may have"
    gathering = Gathering(3)
    assert gathering.join({"generation": 3, "rank": 0}, joined.dump()) == {}
    assert gathering.take(1) == {0: joined}


def _file(rank: int) -> File:
    return File(10, 0o644, (f"{rank:064x}",))


@pytest.mark.timeout(120)
def test_the_largest_job_in_a_model() -> None:
    """Each pod has written its part of one folder: all of them are told, recorded, and found again."""
    gathering, reports = Gathering(1), []
    for rank in range(_LARGEST):
        reports.append(Report({f"step-1/{rank:05d}.pt": _file(rank)}, copies=1))
        gathering.join({"generation": 1, "rank": rank}, Joined([], reports[rank], (1, _LARGEST)).dump())
    joined = gathering.take(_LARGEST)
    assert joined is not None
    lead = Lead(1, _LARGEST, replicas=1)
    for round_ in (0, 1):
        for rank, report in enumerate(reports):
            lead.take(rank, report, round_)
        record = lead.make_record(None)
    assert record is not None
    assert len(record.files) == _LARGEST
    assert lead.find_silent() == []
    holdings = choice.add_fresh(
        {rank: [] for rank in joined}, None, record, {r: one.report for r, one in joined.items()}
    )
    assert all(held[0].have == 1 << rank for rank, held in holdings.items())
    chosen = choice.choose_record(holdings)
    assert chosen is not None
    assert chosen.name == record.name
    masks = choice.find_masks(record.name, holdings)
    assert [choice.find_holders(index, masks, me=0) for index in (1, _LARGEST - 1)] == [[1], [_LARGEST - 1]]
    after = records.Record(1, 2, {**record.files, "new": _file(_LARGEST)})
    again = choice.add_fresh(
        holdings, record, after, {**dict.fromkeys(joined, Report()), 7: Report({"new": _file(_LARGEST)})}
    )
    assert sum(held[-1].have.bit_count() for held in again.values()) == _LARGEST + 1


def test_each_pod_of_the_largest_job_has_another_pod_for_its_copies() -> None:
    peers = [Peer(rank, "10.0.0.1", 1, f"node-{rank}") for rank in range(_LARGEST)]
    assert [choice.order_holders(me, peers)[0].rank for me in (0, 1, _LARGEST - 1)] == [1, 2, 0]


@pytest.mark.parametrize(("size", "seconds"), [(1, 1.0), (200, 1.0), (_LARGEST, 25.0)])
def test_rank_0_gets_only_so_many_reports_a_second(size: int, seconds: float) -> None:
    assert keeper.find_interval(size) == seconds


class CountingStore:
    """A store that counts what is asked of it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked: dict[int, int] = {}
        self.lock = threading.Lock()

    def count(self, number: int) -> None:
        with self.lock:
            me = threading.get_ident()
            self.asked[me] = self.asked.get(me, 0) + number

    def set(self, key: str, value: bytes, /) -> None:
        self.values[key] = value

    def get(self, key: str, /) -> bytes:
        self.count(1)
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        return self.values.keys() >= set(keys)


def test_only_rank_0_asks_the_store_for_all(gang: Gang) -> None:
    pods, store = [gang.pod() for _ in range(12)], CountingStore()
    threads = [
        threading.Thread(target=pod.keeper.enter, args=(store, entering.Place(1, rank, 12), lambda: False), daemon=True)
        for rank, pod in enumerate(pods)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(store.asked.values()) == [3] * 11 + [27]
