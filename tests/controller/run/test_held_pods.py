"""Deleted pods that somebody's finalizer keeps: who keeps them is told, and they are asked for less and less often."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import names
from elasticjob_operator.kube.client import MOST_OBJECT_BYTES
from elasticjob_operator.run.controller import Controller
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options
from elasticjob_operator.times import format_time

pytestmark = pytest.mark.timeout(120)

NOW = 1_800_000_000.0
KEY = ("t", "j")
KEEPER = "example.com/keep"
STEP_SECONDS = 5.0


def make_job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "j", "namespace": "t", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"replicas": 1, "template": template, "network": {"policy": False}, **spec},
    }


def make_held(index: int, deleted: float) -> dict[str, Any]:
    """A pod that is deleted, and that only a finalizer keeps."""
    labels = {
        names.LABEL_APP: names.LABEL_APP_VALUE,
        names.LABEL_JOB: "j",
        names.LABEL_JOB_UID: "u",
        names.LABEL_INDEX: str(index),
    }
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "j", "uid": "u", "controller": True}
    metadata: dict[str, Any] = {"name": names.pod_name("j", index), "namespace": "t", "uid": f"p{index}"}
    metadata |= {"labels": labels, "ownerReferences": [owner], "resourceVersion": "1", "finalizers": [KEEPER]}
    metadata |= {"deletionTimestamp": format_time(deleted), "deletionGracePeriodSeconds": 0}
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": [{"name": "w"}]}, "status": {}}


@dataclass
class Watched:
    """A controller by a clock that the test moves, and an API server that knows one job and its held pods."""

    stored: dict[str, Any]
    pods: dict[str, dict[str, Any]]
    taken: dict[str, dict[str, Any]] = field(default_factory=dict)  # pods that nobody has told of
    now: float = NOW
    reads: Counter[str] = field(default_factory=Counter)  # of each pod
    controller: Controller = field(init=False)
    passes: int = 0
    errors: int = 0
    made: int = 0  # objects
    tries: int = 0  # to make a pod whose name is taken

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        if request.method == "GET" and name in self.pods:
            self.reads[name] += 1
            return web.json_response(self.pods[name])
        if "/elasticjobs/" in request.path:
            if request.method == "PATCH":
                self.stored.update({k: v for k, v in (await request.json()).items() if k == "status"})
            return web.json_response(self.stored)
        if name in self.taken:
            return web.json_response(self.taken[name])
        body = await request.json()
        if body["metadata"].get("name") in self.taken:
            self.tries += 1
            return web.json_response({"kind": "Status", "reason": "AlreadyExists", "code": 409}, status=409)
        self.made += 1
        return web.json_response({**body, "metadata": {**body["metadata"], "uid": f"m{self.made}"}}, status=201)

    @asynccontextmanager
    async def running(self, directory: Path) -> AsyncIterator[Watched]:
        async with answering(self.answer, directory) as api:
            parts = Operator(Options(), api)
            parts.cache.put_job(self.stored)
            for pod in self.pods.values():
                parts.cache.put_pod(pod)
            api.leadership.lend(math.inf)
            self.controller = Controller(
                *(api, parts.cache, parts.hub, parts.applier, parts.controller.config),
                clock=lambda: self.now,
                observer=self._count,
                on_error=self._count_error,
            )
            self.controller.start()
            yield self
            await self.controller.stop()

    def _count(self, *plan: object) -> None:
        self.passes += 1

    def _count_error(self) -> None:
        self.errors += 1

    async def step(self, seconds: float = STEP_SECONDS) -> None:
        """The job has a pass, so many seconds after the last one."""
        before, self.now = self.passes, self.now + seconds
        self.controller.wake(KEY)
        async with asyncio.timeout(20):
            while self.passes == before:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)  # what the pass does at its end

    @property
    def warning(self) -> dict[str, Any]:
        conditions = self.stored.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "Warning"), {})


def hold(count: int, deleted: float, **spec: Any) -> Watched:
    pods = {names.pod_name("j", index): make_held(index, deleted) for index in range(count)}
    return Watched(make_job(**spec), pods)


SUSPENDED = {"runPolicy": {"suspend": True}}
NATIVE = {"rendezvous": {"backend": "c10d"}}


async def test_a_held_pod_is_read_less_and_less_often(tmp_path: Path) -> None:
    async with hold(1, NOW - 60, **SUSPENDED).running(tmp_path) as watched:
        for _ in range(40):
            await watched.step()
    assert 2 <= watched.reads["j-worker-0"] <= 8, "in more than three minutes"


async def test_many_held_pods_cost_few_requests(tmp_path: Path) -> None:
    """A tenant may keep as many as a job may have; others share the API server with it."""
    async with hold(200, NOW - 60, **SUSPENDED).running(tmp_path) as watched:
        for _ in range(2):  # when the second one is seen, the first one has read all that it reads
            await watched.step()
        assert watched.reads.total() <= 100
        for _ in range(10):
            await watched.step()
    assert len(watched.reads) == 200, "each is read once, in turn"


async def test_a_name_that_a_pod_keeps_is_tried_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may keep the names of the pods of all jobs, by pods that no watch tells of."""
    held = make_held(0, NOW)
    held["metadata"] |= {"labels": {}, "ownerReferences": []}
    watched, pauses = hold(0, NOW), list[float]()
    watched.taken[names.pod_name("j", 0)] = held
    async with watched.running(tmp_path):
        monkeypatch.setattr(watched.controller, "_wake_later", lambda key, loop, delay: pauses.append(delay))
        await watched.step()
        while watched.now < NOW + 600:
            await watched.step(max(pauses[-1], 1.0))
    assert 10 < watched.tries < 40, "in ten minutes"


@pytest.mark.parametrize("spec", [SUSPENDED, NATIVE, {}], ids=["suspended", "no-other-name", "replaced"])
async def test_it_is_said_who_holds_a_pod(tmp_path: Path, spec: dict[str, Any]) -> None:
    async with hold(2, NOW - 60, **spec).running(tmp_path) as watched:
        await watched.step()
        assert watched.warning["status"] == "True"
        assert watched.warning["reason"] == "PodHeld"
        message = watched.warning["message"]
        assert "j-worker-0" in message
        assert "2 pods" in message
        assert KEEPER in message
        assert "metadata.finalizers" in message


async def test_nothing_is_said_as_long_as_it_may_be_taken_off_as_usual(tmp_path: Path) -> None:
    async with hold(1, NOW, **SUSPENDED).running(tmp_path) as watched:
        await watched.step()
        assert not watched.warning
        for _ in range(4):
            await watched.step()
        assert watched.warning["reason"] == "PodHeld", "later on"


async def test_two_pods_that_are_kept_since_the_same_second_may_have_the_same_index(tmp_path: Path) -> None:
    """The later one of a name may be seen before the end of the earlier one."""
    watched = hold(1, NOW - 60, **SUSPENDED)
    later = make_held(0, NOW - 60)
    later["metadata"]["uid"] = "later"
    watched.pods["later"] = later
    async with watched.running(tmp_path):
        await watched.step()
        assert watched.warning["reason"] == "PodHeld"


async def test_a_held_pod_that_is_too_large_to_be_read_counts_as_held(tmp_path: Path) -> None:
    """Its author may have made it so; the API server writes some characters as six."""
    watched = hold(1, NOW - 60, **SUSPENDED)
    async with watched.running(tmp_path):
        watched.pods["j-worker-0"]["metadata"]["annotations"] = {"x": "x" * MOST_OBJECT_BYTES}
        for _ in range(3):
            await watched.step()
        assert watched.warning["reason"] == "PodHeld"
        assert watched.errors == 0
        assert watched.reads["j-worker-0"]
