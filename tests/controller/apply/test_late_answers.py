"""Answers to writes that arrive when a list of later has told that what they made is gone, or while it is compared.

The watch was away when it was deleted, so no event tells that: what the answer brought back would stay for ever.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.integrations.kueue.test_integration import admitted
from controller.integrations.kueue.test_quota import SETTINGS, SPEC
from controller.integrations.kueue.test_writing import JOB
from controller.kube.test_cache import KEY, raw_child, raw_job, raw_pod
from elasticjob_operator import api, turn
from elasticjob_operator.api import names
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.apply import Applier
from elasticjob_operator.integrations.kueue.asking import Create
from elasticjob_operator.integrations.kueue.store import Store
from elasticjob_operator.integrations.kueue.writing import Writer
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.jobwatch import JobWatch
from elasticjob_operator.model.observe import observe_job
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan.values import Child, Kind, NewPod, Plan

pytestmark = pytest.mark.timeout(60)
JOBS = f"/apis/{names.API_VERSION}/{names.PLURAL}"


class Hub:
    def direct(self, job: Any, directives: Any) -> None:
        pass


@dataclass
class Server:
    """Has made everything at version 41. Between a write and its answer comes a list, which has nothing."""

    listing: Callable[[], Awaitable[None]] | None
    version: str = "41"  # of what is written
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == JOBS:
            return web.json_response({"metadata": {"resourceVersion": "42"}, "items": []})
        self.asked.append(request.method)
        body = await request.json() if request.can_read_body else {}
        if request.method in ("POST", "PATCH") and not request.path.endswith("/events") and self.listing is not None:
            listing, self.listing = self.listing, None
            await listing()
        made = {"namespace": KEY[0], "name": KEY[1], "uid": "made", **body.get("metadata", {})}
        return web.json_response({**body, "metadata": {**made, "resourceVersion": self.version}})


class Listing:
    """A list that ends when it begins; or, if it `is_held`, once others have had the loop and `end` was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]], *, is_held: bool) -> None:
        monkeypatch.setattr(turn, "one_by_one", self._one_by_one)
        self._work, self._is_held = work, is_held
        self._pauses, self._may_go_on = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Future[None] | None = None

    async def _one_by_one(self, items: Iterable[Any]) -> AsyncIterator[Any]:
        for item in items:
            yield item
            self._pauses.set()
            await self._may_go_on.wait()

    async def begin(self) -> None:
        self._task = asyncio.ensure_future(self._work())
        if self._is_held:
            await self._pauses.wait()
        else:
            await self.end()

    async def end(self) -> None:
        self._may_go_on.set()
        if self._task is not None:
            await self._task


WHEN = pytest.mark.parametrize("is_held", [pytest.param(False, id="after it"), pytest.param(True, id="in the middle")])
LISTS: dict[str, Callable[[Cache], Awaitable[None]]] = {
    "pod": lambda cache: cache.replace_pods([], "42"),
    "NetworkPolicy": lambda cache: cache.replace_children("NetworkPolicy", [], "42"),
}


@pytest.mark.parametrize(("version", "is_there"), [("41", False), ("43", True)])
@pytest.mark.parametrize("what", LISTS)
@WHEN
async def test_what_was_made_and_is_gone_is_not_brought_back(
    is_held: bool, what: str, version: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = list[Any]()
    cache = Cache(woken.append)
    cache.put_job(raw_job())
    await cache.know_jobs()
    if what == "pod":
        cache.put_pod(raw_pod(1))
    else:
        cache.put_child(what, raw_child())
    job = observe_job(raw_job())
    listing = Listing(monkeypatch, lambda: LISTS[what](cache), is_held=is_held)
    server = Server(listing.begin, version)
    policy = Child(Kind.NETWORK_POLICY, names.network_policy_name(job.name))
    plan = Plan(job.status, create=(NewPod(0),)) if what == "pod" else Plan(job.status, ensure=(policy,))
    async with answering(server.answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, cache, Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        woken.clear()
        await applier.apply(job, "1", plan, 0.0)
        await listing.end()
        assert bool(cache.pods(KEY) or cache.children(job)) == is_there
        assert KEY in woken, "it is made again"
        await applier.apply(job, "1", plan, 0.0)
        assert cache.pods(KEY) or cache.children(job), "what a later answer has is there"
        await applier.close()


@pytest.mark.parametrize(("version", "is_there"), [("41", False), ("43", True)])
@WHEN
async def test_a_job_that_is_gone_is_not_brought_back(
    is_held: bool, version: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its share of its pool, and be told as it was, until something is written to it."""
    cache = Cache(lambda key: None)
    raw = raw_job()
    cache.put_job(raw)
    job = cache.jobs[KEY][0]
    server = Server(None, version)
    async with answering(server.answer, tmp_path) as connected:
        watch = JobWatch(connected, cache, "me", (), asyncio.Event(), Intake())
        listing = Listing(monkeypatch, watch.catch_up, is_held=is_held)
        server.listing = listing.begin
        connected.leadership.lend(math.inf)
        applier = Applier(connected, cache, Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        await applier.apply(job, "1", Plan(revise(job.status, phase=api.Phase.PENDING)), 0.0)
        await listing.end()
        assert (KEY in cache.jobs) == is_there
        await applier.close()


@pytest.mark.parametrize(("version", "is_there"), [("41", False), ("43", True)])
@WHEN
async def test_a_workload_that_is_gone_is_not_brought_back(
    is_held: bool, version: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job would train with quota that others have by then."""
    woken = list[Any]()
    store = Store(woken.append)
    raw = admitted()
    other = {**raw["metadata"], "name": "other", "uid": "other", "resourceVersion": "30"}
    store.put_workload({**raw, "metadata": other})
    listing = Listing(monkeypatch, lambda: store.replace_workloads([], "42"), is_held=is_held)

    async def answer(request: web.Request) -> web.StreamResponse:
        await listing.begin()
        return web.json_response({**raw, "metadata": {**raw["metadata"], "resourceVersion": version}})

    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        await Writer(connected, store).ask(JOB, SPEC, Create(0, 2), "gpus", SETTINGS)
        await listing.end()
        assert bool(store.keys()) == is_there
        assert woken
