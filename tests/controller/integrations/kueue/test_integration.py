"""The integration against a small server: what a pass is told while Kueue is there, away, or may not be seen."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import NOW, TEMPLATE, make_job, make_pod, make_spec
from controller.counted_work import count_calls
from controller.integrations.kueue.test_quota import JOB, SETTINGS, condition, write
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.integrations.kueue import following, manifests, names
from elasticjob_operator.integrations.kueue.integration import Kueue
from elasticjob_operator.integrations.kueue.store import Store
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.plan.plan import Plan

pytestmark = pytest.mark.timeout(60)
QUEUED = make_job(JOB.spec, labels={names.LABEL_QUEUE: "gpus"})
PODS = (make_pod(0), make_pod(1))
WORKLOADS = f"/apis/{names.API_VERSION}/workloads"


def admitted() -> dict[str, Any]:
    assignment = {"name": names.POD_SET, "flavors": {}, "count": 2}
    return write(
        conditions=[condition("QuotaReserved"), condition("Admitted")],
        admission={"clusterQueue": "team", "podSetAssignments": [assignment]},
    )


class Server:
    """Serves Kueue's lists as far as `refusals` (path → status) lets it; watches stay open until `cut` is set."""

    def __init__(self, *workloads: dict[str, Any]) -> None:
        self.items = list(workloads)
        self.refusals: dict[str, int] = {}
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.slow = asyncio.Event()  # lists of Workloads are answered when it is set
        self.slow.set()
        self.cut = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.put_nowait(f"{request.method} {request.path}")
        if request.path in self.refusals:
            status = self.refusals[request.path]
            return web.json_response({"reason": "Refused", "message": "no", "code": status}, status=status)
        if request.path == "/apis":
            return web.json_response({"groups": [{"versions": [{"groupVersion": names.API_VERSION}]}]})
        if "watch" in request.query:
            out = web.StreamResponse(headers={"Content-Type": "application/json"})
            await out.prepare(request)
            await self.cut.wait()
            return out
        if request.path != WORKLOADS:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "50"}})
        await self.slow.wait()
        return web.json_response({"items": self.items, "metadata": {"resourceVersion": "50"}})


class Watched:
    """The integration, and the quota of the job whenever a pass would have been told of it."""

    kueue: Kueue

    def __init__(self) -> None:
        self.told: list[Quota | None] = []
        self.news = asyncio.Event()

    def note(self, key: JobKey | None = None) -> None:
        self.told.append(self.look())
        self.news.set()

    async def wait_for(self, reason: str) -> None:
        while (quota := self.look()) is None or quota.reason != reason:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 30)

    def look(self, job: Job = QUEUED) -> Quota | None:
        return self.kueue.see(job, PODS)


@contextlib.asynccontextmanager
async def integrated(server: Server, directory: Path) -> AsyncIterator[Watched]:
    async with answering(server.answer, directory) as api:
        api.leadership.lend(math.inf)
        found = Watched()
        kueue = Kueue(api, (), Intake(), wake=found.note, wake_all=found.note, settings=lambda: SETTINGS)
        found.kueue = kueue
        task = asyncio.create_task(kueue.follower.run())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(server: Server, request: str) -> None:
    while await asyncio.wait_for(server.asked.get(), 30) != request:
        pass


async def test_a_job_that_runs_is_not_suspended_before_the_workloads_are_read(tmp_path: Path) -> None:
    server = Server(admitted())
    server.slow.clear()
    async with integrated(server, tmp_path) as watched:
        await until(server, f"GET {WORKLOADS}")
        quota = watched.look()
        assert quota is not None and quota.is_admitted and quota.reason == "KueueNotServed"
        assert [quota.covers(i) for i in range(3)] == [True, True, False], "the pods that are there"
        assert list(quota.open_indices(9)) == [], "and no new ones"
        server.slow.set()
        await asyncio.wait_for(watched.kueue.follower.has_looked.wait(), 30)
        quota = watched.look()
        assert quota is not None and (quota.reason, quota.pods) == ("Admitted", 2)
        assert all(told is not None and told.is_admitted for told in watched.told)


@pytest.mark.parametrize("refused", [WORKLOADS, f"/apis/{names.API_VERSION}/resourceflavors"])
async def test_what_may_not_be_seen_is_no_reason_to_suspend(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)
    server = Server(admitted())
    server.refusals[refused] = 403
    async with integrated(server, tmp_path) as watched:
        for _ in range(3):  # looks
            await until(server, f"GET {refused}")
        await asyncio.wait_for(watched.kueue.follower.has_looked.wait(), 30)
        quota = watched.look()
        assert quota is not None
        assert "cannot be seen: install the operator's chart with integrations.kueue=true" in quota.message
        assert all(told is not None and told.is_admitted for told in watched.told)
        del server.refusals[refused]
        await until(server, "GET /apis")
        await watched.wait_for("Admitted")


async def test_a_job_without_pods_waits_for_kueue_to_come_back(tmp_path: Path) -> None:
    server = Server()
    server.refusals["/apis"] = 503
    async with integrated(server, tmp_path) as watched:
        await until(server, "GET /apis")
        quota = watched.kueue.see(QUEUED, ())
        assert quota is not None and (quota.is_admitted, quota.reason) == (False, "KueueNotServed")
        assert watched.kueue.see(make_job(JOB.spec), ()) is None, "a job without a queue has no such limit"


@pytest.mark.parametrize(
    ("listed_at", "left"),
    [
        pytest.param("9", 0, id="deleted while nobody watched, and no other is left"),
        pytest.param("6", 1, id="made after the list was taken"),
    ],
)
def test_workloads_that_a_list_lacks(listed_at: str, left: int) -> None:
    store = Store(lambda key: None)
    store.put_workload(admitted())
    asyncio.run(store.replace_workloads([], listed_at))
    assert len(store.workloads(QUEUED)) == left


async def test_a_workload_that_is_not_found_is_forgotten(tmp_path: Path) -> None:
    server = Server(admitted())
    async with integrated(server, tmp_path) as watched:
        await watched.wait_for("Admitted")
        assert list(watched.kueue.keys()) == [QUEUED.key]
        server.refusals[f"/apis/{names.API_VERSION}/namespaces/default/workloads/digits-job-uid-0"] = 404
        await watched.kueue.settle(QUEUED, (), Plan(QUEUED.status, asks=0), NOW)
        assert list(watched.kueue.keys()) == []


def pending(**status: Any) -> dict[str, Any]:
    said = [condition("QuotaReserved", "False", "Pending", "no room")]
    return write(conditions=said, **status)


async def test_what_was_refused_is_told_until_it_is_not_wanted_any_more(tmp_path: Path) -> None:
    server = Server(admitted())
    async with integrated(server, tmp_path) as watched:
        kueue, store = watched.kueue, watched.kueue.store
        await watched.wait_for("Admitted")
        server.refusals[f"/apis/{names.API_VERSION}/namespaces/default/workloads"] = 422
        await kueue.settle(QUEUED, PODS, Plan(QUEUED.status, asks=3), NOW)
        quota = watched.look()
        assert quota is not None and quota.is_admitted
        assert "no quota can be asked for" in quota.message, "an increment that was refused is told"
        waits = pending()
        waits["metadata"]["resourceVersion"] = "8"
        store.put_workload(waits)
        quota = watched.look()
        assert quota is not None and quota.reason == "Pending", "the base says what it waits for"
        store.put_workload({**admitted(), "metadata": {**admitted()["metadata"], "resourceVersion": "9"}})
        await kueue.settle(QUEUED, PODS, Plan(QUEUED.status, asks=2), NOW)
        quota = watched.look()
        assert quota is not None and quota.message == "ClusterQueue team has admitted 2 pods"


@pytest.mark.parametrize(
    ("labels", "asked", "told"),
    [
        pytest.param(
            {},
            "/apis/scheduling.k8s.io/v1/priorityclasses/a/b",
            "there is no PriorityClass a/b, which spec.template.spec.priorityClassName names",
            id="of the pods",
        ),
        pytest.param(
            {names.LABEL_PRIORITY: "low"},
            f"/apis/{names.API_VERSION}/workloadpriorityclasses/low",
            f"there is no WorkloadPriorityClass low, which metadata.labels[{names.LABEL_PRIORITY}] names",
            id="of the job",
        ),
    ],
)
async def test_a_priority_class_that_is_not_there_is_named(
    labels: dict[str, str], asked: str, told: str, tmp_path: Path
) -> None:
    """The API server does not say which, where it takes the name for a path."""
    server = Server()
    template = {"spec": {**TEMPLATE["spec"], "priorityClassName": "a/b"}}
    job = make_job(make_spec(template=template), labels={**QUEUED.labels, **labels})
    server.refusals[asked] = 404
    async with integrated(server, tmp_path) as watched:
        await asyncio.wait_for(watched.kueue.follower.has_looked.wait(), 30)
        await watched.kueue.settle(job, (), Plan(job.status, asks=2), NOW)
        quota = watched.kueue.see(job, ())
    assert quota is not None and quota.reason == "WorkloadRefused"
    assert told in quota.message


@pytest.mark.parametrize("count", [2_000, 20_000])
async def test_a_job_has_no_more_workloads_than_it_may_ask_for(count: int, tmp_path: Path) -> None:
    """Whoever may write Workloads makes thousands in the name of one job. They cost little, and most of them go."""
    async with integrated(Server(), tmp_path) as watched:
        await watched.wait_for("Pending")
        watched.kueue.store = Store(lambda key: None)
        for first in range(count):
            raw = write(first, 2)
            raw["metadata"] |= {"uid": f"w{first}", "name": manifests.workload_name(QUEUED, first)}
            watched.kueue.store.put_workload(raw)
        calls = count_calls(watched.look)
    assert calls < 50_000, calls
