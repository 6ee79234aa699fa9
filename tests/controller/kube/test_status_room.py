"""What the statuses of jobs keep in memory that have no pods has a limit, of which one namespace gets half."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import math
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.kube.test_job_room import merge, see
from elasticjob_operator.api import names
from elasticjob_operator.kube import status_room
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(100)
MIB = 2**20
TIME = "2026-01-01T00:00:00.000Z"
KEY = ("greedy", "j0")
KEPT = ("timeline", "failures", "lastFailure", "preflight", "nodeFaults")


def make_status(number: int, end: str = "Failed") -> dict[str, Any]:
    """One that has as much in it as pods may say: 160 KB as JSON, and 700 KB of memory (measured)."""

    def say(what: str, count: int) -> str:
        return f"{what} {number} ".ljust(count, "x")

    def fail(rank: int) -> dict[str, Any]:
        where = {"pod": f"j-worker-{rank}", "node": f"node-{rank}", "generation": 50, "rank": rank}
        return {**where, "time": TIME, "exitCode": 1, "reason": "Error", "message": say(f"m{rank}", 100)}

    kinds = {"Running": "False", "Degraded": "False", "CheckpointCopied": "True", "Admitted": "True", end: "True"}
    conditions = [
        {"type": kind, "status": is_true, "reason": "Why", "message": say(kind, 4096), "lastTransitionTime": TIME}
        | {"observedGeneration": 1}
        for kind, is_true in kinds.items()
    ]
    reports = [
        {"time": TIME, "step": n, "metrics": {"loss": n / 7, "accuracy": n / 9, "lr": n / 11}} for n in range(60)
    ]
    return {
        "phase": "Pending" if end == "Degraded" else end,
        "conditions": conditions,
        "startTime": TIME,
        **({"completionTime": TIME} if end == "Failed" else {}),
        "observedGeneration": 1,
        "rendezvous": {"generation": 50, "worldSize": 0, "processes": 0, "members": [], "succeeded": [], "lost": []},
        "restarts": {"user": 3, "total": 40, "counted": [f"{number}-{n}" for n in range(32)]},
        "lastFailure": {**fail(0), "traceback": say("traceback", 16_000), "logTail": say("log", 4_000)},
        "failures": [{**fail(rank), "traceback": say("t", 200), "logTail": say("l", 40)} for rank in range(32)],
        "timeline": [
            {"generation": n + 1, "time": TIME, "size": 8, "cause": "WorkerFailed", "who": say(f"w{n}", 160)}
            for n in range(50)
        ],
        "progress": {
            "step": 10,
            "metrics": [{"name": say(f"{n}", 64), "value": n / 3} for n in range(32)],
            "history": {"everySeconds": 10, "reports": reports},
        },
        "incidents": [
            {
                "rule": f"r{n}",
                "count": 3,
                "message": say(f"i{n}", 1024),
                "best": [{"size": k, "value": k / 3} for k in range(16)],
            }
            for n in range(16)
        ],
        "nodeFaults": [{"node": f"n{n}".ljust(253, "x"), "count": 1, "lastTime": TIME} for n in range(20)],
        "preflight": [{"node": f"n{n}", "passed": False, "message": say(f"p{n}", 256)} for n in range(32)],
    }


def make_job(number: int, namespace: str = "greedy", end: str = "Failed", **spec: Any) -> dict[str, Any]:
    name = f"j{number}"
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "5"}
    template = {"spec": {"containers": [{"name": "node", "image": "train:1", "command": ["torchrun"]}]}}
    spec = {
        "replicas": 1,
        "template": template,
        **({} if end == "Failed" else {"runPolicy": {"suspend": True}}),
        **spec,
    }
    return {"metadata": {**metadata, "generation": 1}, "spec": spec, "status": make_status(number, end)}


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_room, "MOST_KEPT_BYTES", 8 * MIB)


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize("end", ["Failed", "Suspended", "Degraded"])
def test_the_statuses_of_one_namespace_keep_a_bounded_memory(end: str) -> None:
    """Whoever makes jobs that say much would take all that the operator has, once they have no pods any more.

    They may end, be suspended, or get none any more, for a quota.
    """
    cache = Cache(lambda key: None)
    asyncio.run(cache.know_jobs())
    cache.put_job(json.loads(json.dumps(make_job(0, "warm", end))))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(30):
            cache.put_job(json.loads(json.dumps(make_job(number, end=end))))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 7 * MIB, f"{taken / MIB:.0f} MiB, of 18 in all"
    cache.put_job(make_job(0, "other", end))
    assert len(cache.jobs["other", "j0"][0].status.timeline) == 50, "another namespace has its share"


class Server:
    """An API server with one job, one pod of it if there is one, and nothing else."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.asked: list[str] = []
        self.written: dict[str, Any] = {}
        self.deleted = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = "jobs" if names.PLURAL in request.path else request.path.rpartition("/")[2]
        self.asked.append(f"{request.method} {kind}")
        if request.method == "DELETE" and kind == "jobs":
            self.deleted.set()
        elif request.method == "PATCH" and kind == "jobs":
            body = await request.json()
            self.written |= body["status"]
            merge(self.job["status"], body["status"])
            self.job["metadata"]["resourceVersion"] = str(int(self.job["metadata"]["resourceVersion"]) + 1)
        elif request.method == "POST":
            made = await request.json()
            made["metadata"] |= {"uid": "made", "resourceVersion": "7", "namespace": "greedy"}
            return web.json_response(made)
        return web.json_response(self.job)

    def change(self, **spec: Any) -> dict[str, Any]:
        """Somebody changes the job."""
        self.job["spec"] |= spec
        version = int(self.job["metadata"]["resourceVersion"]) + 1
        self.job["metadata"] |= {"resourceVersion": str(version), "generation": self.job["metadata"]["generation"] + 1}
        return copy.deepcopy(self.job)


def fill(cache: Cache) -> None:
    for number in range(1, 30):
        cache.put_job(make_job(number, managedBy="example.com/other"))


def make_pod(phase: str = "Running", job: str = "j0") -> dict[str, Any]:
    uid = f"greedy-{job}"
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": uid, "controller": True}
    labels = {
        names.LABEL_APP: names.LABEL_APP_VALUE,
        names.LABEL_JOB: job,
        names.LABEL_JOB_UID: uid,
        names.LABEL_INDEX: "0",
    }
    metadata: dict[str, Any] = {"name": names.pod_name(job, 0), "namespace": "greedy", "labels": labels}
    metadata |= {"uid": phase, "resourceVersion": "6", "ownerReferences": [owner]}
    containers = [{"name": "node", "image": "train:1"}]
    return {"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": phase}}


async def rest(operator: Operator) -> None:
    """Until no pass is under way or due."""
    await see(lambda: not any(loop.running or loop.dirty for loop in operator.controller._loops.values()))


@contextlib.asynccontextmanager
async def operate(server: Server, folder: Path) -> AsyncIterator[Operator]:
    """An operator whose room is full when it hears of the server's job."""
    async with answering(server.answer, folder) as api:
        operator = Operator(Options(), api)
        await operator.cache.know_jobs()
        fill(operator.cache)
        operator.cache.put_job(copy.deepcopy(server.job))
        api.leadership.lend(math.inf)
        operator.controller.start()
        await rest(operator)
        yield operator
        await operator.controller.stop()


@pytest.mark.usefixtures("small_room")
async def test_what_is_written_of_such_a_job_loses_nothing_of_the_rest(tmp_path: Path) -> None:
    server = Server(make_job(0))
    async with operate(server, tmp_path) as operator:
        before = copy.deepcopy(server.job["status"])
        server.written.clear()
        server.asked.clear()
        operator.controller.wake(KEY)
        await rest(operator)
        assert server.asked == [], "nothing has to be written, and nothing is read"
        operator.cache.put_pod(make_pod())
        await see(lambda: server.written.get("replicas") == 1)
        operator.cache.drop_pod("Running")
        await see(lambda: server.written.get("replicas") == 0)
        await rest(operator)
        assert server.written.keys() & {"conditions", *KEPT} == set()
        for name in ("conditions", *KEPT):
            assert server.job["status"][name] == before[name], name
        server.asked.clear()
        for _ in range(4):
            operator.cache.put_pod(make_pod("Succeeded"))
            operator.controller.wake(KEY)
            await rest(operator)
        assert server.asked == ["GET jobs"], "its pods may be changed as often as somebody likes"
        operator.cache.drop_pod("Succeeded")
        operator.cache.put_job(server.change(runPolicy={"ttlSecondsAfterFinished": 1}))
        await asyncio.wait_for(server.deleted.wait(), 20)


@pytest.mark.usefixtures("small_room")
async def test_such_a_job_goes_on_where_it_was(tmp_path: Path) -> None:
    server = Server(make_job(0, end="Suspended"))
    async with operate(server, tmp_path) as operator:
        before = copy.deepcopy(server.job["status"])
        operator.cache.put_job(server.change(runPolicy={"suspend": False}))
        await see(lambda: "POST pods" in server.asked and server.job["status"]["replicas"] == 1)
        await rest(operator)
        for name in KEPT:
            assert server.job["status"][name] == before[name], name
        assert server.job["status"]["rendezvous"]["generation"] == 50
        assert server.job["status"]["restarts"]["total"] == 40


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize(
    "goes", [pytest.param("deleted", id="deleted"), pytest.param("anew", id="made anew under its name")]
)
def test_the_room_of_a_job_that_goes_is_free_again(goes: str) -> None:
    def count(cache: Cache) -> int:
        return sum(1 for job, _ in cache.jobs.values() if job.status.timeline)

    cache = Cache(lambda key: None)
    asyncio.run(cache.know_jobs())
    fill(cache)
    most = count(cache)
    assert 3 < most < 29
    for number in range(1, 30):
        key = ("greedy", f"j{number}")
        if goes == "deleted":
            cache.end_job(key, f"greedy-j{number}", "5")
        else:
            new = make_job(number)
            new["metadata"] |= {"uid": f"new-{number}", "resourceVersion": "9"}
            cache.put_job({**new, "status": {}})
    assert count(cache) == 0
    for number in range(100, 129):
        cache.put_job(make_job(number))
    assert count(cache) == most


def test_a_job_that_is_read_without_its_status_is_not_taken_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is that has too many values: its status would be written anew, as that of a job that never ran."""
    monkeypatch.setattr(status_room, "MOST_KEPT_BYTES", 0)
    cache = Cache(lambda key: None)
    raw = make_job(0)
    cache.put_job(raw)
    assert cache.jobs[KEY][0].is_short
    assert cache.complete(raw) is not None
    assert cache.complete({name: value for name, value in raw.items() if name != "status"}) is None


def test_a_job_of_many_members_is_kept_short_at_once() -> None:
    """It takes 10 MB, and to measure that takes long."""
    raw = make_job(0)
    raw["status"]["rendezvous"]["members"] = [
        {"pod": f"p{n}", "uid": f"u{n}", "node": f"n{n}", "rank": n, "nproc": 8} for n in range(5_000)
    ]
    raw["status"]["rendezvous"]["store"] = {"address": "10.0.0.1", "port": 1}
    cache = Cache(lambda key: None)
    cache.put_job(raw)
    assert len(cache.jobs[KEY][0].status.rendezvous.members) == 1, "that it has had a world is known"


async def test_what_a_rule_compares_with_is_read_before_a_pass_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, the pods of a job may be known later than the job is."""
    monkeypatch.setattr(status_room, "MOST_KEPT_BYTES", 0)
    rule = {"name": "Sinks", "when": {"metric": {"name": "loss", "fallsPercent": 10}}}
    raw = make_job(0, end="Degraded", health={"rules": [rule]})
    raw["status"]["incidents"] = [{"rule": "Sinks", "metric": "loss", "best": [{"size": 1, "value": 0.5}]}]
    world = {"worldSize": 1, "processes": 1, "members": [{"pod": "j0-worker-0", "uid": "Running", "rank": 0}]}
    raw["status"]["rendezvous"] |= {**world, "store": {"address": "10.0.0.1", "port": 1}}
    server = Server(raw)
    async with answering(server.answer, tmp_path) as api:
        operator = Operator(Options(), api)
        operator.cache.put_job(copy.deepcopy(server.job))
        assert operator.cache.jobs[KEY][0].is_short
        operator.cache.put_pod(make_pod())
        await operator.cache.know_jobs()
        api.leadership.lend(math.inf)
        operator.controller.start()
        await see(lambda: KEY in operator.controller._loops and operator.controller._loops[KEY].health)
        assert operator.controller._loops[KEY].health["Sinks"].best == 0.5
        await operator.controller.stop()


@pytest.mark.usefixtures("small_room")
def test_a_job_with_pods_is_kept_as_it_is() -> None:
    cache = Cache(lambda key: None)
    cache.put_pod(make_pod())
    fill(cache)
    cache.put_job(make_job(0))
    assert len(cache.jobs[KEY][0].status.timeline) == 50
    cache.drop_pod("Running")
    assert cache.jobs[KEY][0].status.timeline == []


def count_whole(cache: Cache) -> int:
    return sum(1 for job, _ in cache.jobs.values() if job.status.timeline)


@pytest.mark.usefixtures("small_room")
def test_after_a_restart_running_jobs_are_kept_as_they_are_though_their_pods_are_read_later() -> None:
    """Each would be read again by its first pass, at which the API server has the most to do."""
    cache = Cache(lambda key: None)
    for number in range(30):
        raw = make_job(number, end="Degraded")
        raw["status"]["replicas"] = 1
        cache.put_job(raw)
    for number in range(29):
        cache.put_pod(make_pod(f"pod-{number}", f"j{number}"))
    asyncio.run(cache.know_jobs())
    assert count_whole(cache) == 30
    for number in range(100, 130):
        cache.put_job(make_job(number))
    assert cache.jobs["greedy", "j129"][0].is_short, "the room is full"
    cache.put_pod(make_pod("pod-29", "j29"))
    cache.put_job(make_job(130))
    assert not cache.jobs["greedy", "j130"][0].is_short, "a job that gets pods has left the room"


@pytest.mark.usefixtures("small_room")
def test_after_a_restart_jobs_share_the_room_whose_pods_are_gone() -> None:
    cache = Cache(lambda key: None)
    for number in range(30):
        raw = make_job(number, end="Degraded")
        raw["status"]["replicas"] = 1
        cache.put_job(raw)
    asyncio.run(cache.know_jobs())
    assert 3 < count_whole(cache) < 29
