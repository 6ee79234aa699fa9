"""What the statuses of jobs without pods keep in a dashboard has a limit; a page of such a job shows all of it."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import tracemalloc
from typing import Any

import pytest

from controller.kube.test_status_room import make_job
from dashboard.conftest import visiting
from dashboard.fake_api import FakeApi
from elasticjob_operator.client import Change, Client, Job
from elasticjob_operator.client.model import brief, summarize
from elasticjob_operator.dashboard import board as boards
from elasticjob_operator.dashboard.board import Board
from elasticjob_operator.dashboard.server import Dashboard
from elasticjob_operator.kube import status_room

pytestmark = pytest.mark.timeout(100)
MIB = 2**20


def read(number: int, namespace: str = "greedy", end: str = "Failed") -> Job:
    return Job.parse(json.loads(json.dumps(make_job(number, namespace, end))))


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST_KEPT_BYTES", 8 * MIB)


def measure(count: int, work: Any) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        kept = [work(number) for number in range(count)]
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == count
    return taken


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize("end", ["Failed", "Degraded"])
def test_the_statuses_of_one_namespace_keep_a_bounded_memory_of_a_dashboard(end: str) -> None:
    board = Board()

    def put(number: int) -> None:
        job = summarize(read(number, end=end))
        board.known[job.uid] = job
        board.apply(Change("ADDED", job), time.time())

    put(100)
    taken = measure(30, put)
    assert taken < 7 * MIB, f"{taken / MIB:.0f} MiB"
    other = summarize(read(0, "other"))
    board.known[other.uid] = other
    board.apply(Change("ADDED", other), time.time())
    assert board.known[other.uid].status.timeline, "another namespace has its share"
    for number in range(30):
        board.apply(Change("DELETED", board.known.pop(f"greedy-j{number}")), time.time())
    put(50)
    assert board.known["greedy-j50"].status.timeline, "the room of those that are gone is free again"


def test_a_table_of_many_jobs_keeps_little_of_each() -> None:
    brief(read(0))
    taken = measure(20, lambda number: brief(read(number)))
    assert taken < 20 * 80_000, f"{taken / 20_000:.0f} KB of each"


@pytest.mark.usefixtures("small_room")
async def test_a_page_shows_all_of_a_job_of_which_little_is_kept(
    api: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MOST_KEPT_BYTES", 0)
    raw = make_job(0, "default")
    raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    api.put(raw)
    dashboard = Dashboard(client, all_namespaces=True)
    async with dashboard.serve("127.0.0.1", 0) as address, visiting() as visitor:
        async with asyncio.timeout(60):
            while dashboard.board.find("default", "j0") is None:
                await dashboard.board.wait(dashboard.board.version, 60)
        known = dashboard.board.find("default", "j0")
        assert known is not None and not known.status.timeline
        await visitor.get(address)
        async with visitor.get(f"{address.partition('?')[0]}jobs/default/j0") as answer:
            page = await answer.text()
    assert "traceback 0 x" in page
    assert "i9 0 x" in page, "an incident"


def test_a_dashboard_has_the_room_of_the_operator() -> None:
    """So one row of the documented limits is enough."""
    for name in ("KEPT_BYTES", "KEPT_JOBS", "MOST_KEPT_BYTES"):
        assert getattr(boards, name) == getattr(status_room, name)
