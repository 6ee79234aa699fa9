"""A pod may have news many times a second. Its job's status tells the newest, but is not written each time."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.run.test_controller_agents import job_of, pod_of
from elasticjob_operator.api import names, wire
from elasticjob_operator.hub import auth
from elasticjob_operator.hub.agents import AgentEntry
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)
NEWS = 150
MOST_WRITES = 80
JOBS, NEWS_OF_EACH = 60, 20


def merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


def state_of(number: int) -> wire.AgentState:
    """What a pod says whose archive has another problem each time."""
    archive = wire.Archive(reason="StoreUnreachable", message=f"try {number}")
    kept = wire.Checkpoint(number=1, copies=number % 3, archive=archive)
    return wire.AgentState(phase=wire.AgentPhase.RUNNING, generation=2, checkpoint=kept)


def greet(operator: Operator, job: str, pod: str) -> AgentEntry:
    """Connect the agent of the pod with this UID."""
    entries = operator.hub._registry
    identity = auth.Identity("t", names.pod_name(job, 0), pod, job)
    link = entries.admit(identity, 10.0)
    assert not isinstance(link, auth.Refusal)
    taken = entries.enter(link, identity, wire.Hello(agent="a", state=state_of(0)))
    assert taken is not None
    entries.settle(link, identity, stays=True)
    return taken


async def test_news_of_a_pod_are_not_all_written(tmp_path: Path) -> None:
    stored = copy.deepcopy(job_of("u"))
    stored["spec"]["checkpoints"] = {"path": "/c", "archive": {"to": "s3://bucket/x"}}
    writes: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/status"):
            writes.append((await request.json())["status"])
            merge(stored["status"], writes[-1])
            stored["metadata"]["resourceVersion"] = str(5 + len(writes))
        if "/elasticjobs/" in request.path:
            return web.json_response(stored)
        return web.json_response(await request.json()) if request.method == "POST" else web.Response(status=404)

    def is_told(text: str) -> bool:
        return any(one.get("message") == text for one in stored["status"].get("conditions", ()))

    async with answering(answer, tmp_path) as api:
        operator = Operator(Options(), api)
        operator.cache.put_job(stored)
        operator.cache.put_pod(pod_of("u"))
        api.leadership.lend(math.inf)
        taken = greet(operator, "j", "pod-of-u")
        operator.controller.start()
        for number in range(1, NEWS):
            operator.hub._registry.receive(taken, wire.State(state=state_of(number)), 100)
            operator.controller.wake(("t", "j"))
            before = len(writes)
            for _ in range(10):  # as many as come
                await asyncio.sleep(0.01)
                if len(writes) > before:
                    break
        many = len(writes)
        async with asyncio.timeout(20):
            while not is_told(f"try {NEWS - 1}"):  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.05)
        await operator.controller.stop()
    assert 1 < many < MOST_WRITES


def put_numbered_job(operator: Operator, number: int) -> dict[str, Any]:
    """One of many jobs of a namespace, with its pod."""
    name, uid = f"j{number}", f"u{number}"
    job, pod = copy.deepcopy(job_of(uid)), pod_of(uid)
    job["metadata"]["name"] = name
    job["spec"]["checkpoints"] = {"path": "/c", "archive": {"to": "s3://bucket/x"}}
    job["status"]["rendezvous"]["members"][0]["pod"] = pod["metadata"]["name"] = names.pod_name(name, 0)
    pod["metadata"]["labels"][names.LABEL_JOB] = pod["metadata"]["ownerReferences"][0]["name"] = name
    operator.cache.put_job(job)
    operator.cache.put_pod(pod)
    return job


async def test_news_of_the_jobs_of_a_namespace_are_not_all_written(tmp_path: Path) -> None:
    """Each job alone has a bound, and a namespace has as many jobs as it likes."""
    stored: dict[str, dict[str, Any]] = {}
    writes = Counter[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/elasticjobs/" in request.path:
            name = request.path.partition("/elasticjobs/")[2].partition("/")[0]
            if request.path.endswith("/status"):
                writes[name] += 1
                merge(stored[name]["status"], (await request.json())["status"])
                stored[name]["metadata"]["resourceVersion"] = str(5 + writes[name])
            return web.json_response(stored[name])
        return web.json_response(await request.json()) if request.method == "POST" else web.Response(status=404)

    async with answering(answer, tmp_path) as api:
        operator = Operator(Options(), api)
        for number in range(JOBS):
            stored[f"j{number}"] = copy.deepcopy(put_numbered_job(operator, number))
        api.leadership.lend(math.inf)
        agents = {f"j{number}": greet(operator, f"j{number}", f"pod-of-u{number}") for number in range(JOBS)}
        passes = Counter[str]()
        operator.controller.observer = lambda job, made, seconds: passes.update([job.name])
        operator.controller.start()
        began = time.monotonic()
        for number in range(1, NEWS_OF_EACH):
            before = passes.copy()
            for agent in agents.values():
                operator.hub._registry.receive(agent, wire.State(state=state_of(number)), 100)
            async with asyncio.timeout(40):
                while not all(passes[name] > before[name] for name in agents):  # noqa: ASYNC110 - nobody sets an event
                    await asyncio.sleep(0.01)
        took = time.monotonic() - began
        await operator.controller.stop()
    assert len(writes) == JOBS, "each has told something"
    allowed = JOBS * (2 + took / 10) + 120 + 5 * took  # of all; the first write of a job decides something
    assert writes.total() < allowed, f"{writes.total()} of {JOBS * NEWS_OF_EACH} news are written in {took:.0f} s"
