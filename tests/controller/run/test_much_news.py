"""A pod may have news many times a second. Its job's status tells the newest, but is not written each time."""

from __future__ import annotations

import asyncio
import copy
import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.run.test_controller_agents import POD, job_of, pod_of
from elasticjob_operator.api import wire
from elasticjob_operator.hub import auth
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)
NEWS = 150
MOST_WRITES = 80


def merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


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
        entries = operator.hub._registry
        identity = auth.Identity("t", POD, "pod-of-u", "j")
        link = entries.admit(identity, 10.0)
        assert not isinstance(link, auth.Refusal)

        def state_of(number: int) -> wire.AgentState:
            archive = wire.Archive(reason="StoreUnreachable", message=f"try {number}")
            kept = wire.Checkpoint(number=1, copies=number % 3, archive=archive)
            return wire.AgentState(phase=wire.AgentPhase.RUNNING, generation=2, checkpoint=kept)

        taken = entries.enter(link, identity, wire.Hello(agent="a", state=state_of(0)))
        assert taken is not None
        entries.settle(link, identity, stays=True)
        operator.controller.start()
        for number in range(1, NEWS):
            entries.receive(taken, wire.State(state=state_of(number)), 100)
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
