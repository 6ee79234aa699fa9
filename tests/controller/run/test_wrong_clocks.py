"""A machine whose clock is not that of the API server and of the leader before: no deadline passes by that."""

from __future__ import annotations

import asyncio
import math
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.run.test_held_pods import make_job
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options
from elasticjob_operator.times import format_time, parse_time

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("ahead", [600.0, 3600.0, -600.0, -3600.0])
@pytest.mark.parametrize("deadline", ["startupDeadlineSeconds", "activeDeadlineSeconds"])
async def test_a_new_leader_goes_by_the_clock_of_the_api_server(tmp_path: Path, ahead: float, deadline: str) -> None:
    stored = make_job(runPolicy={deadline: 300})
    stored["status"] = {"phase": "Pending", "startTime": format_time(time.time() - ahead)}
    written = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"Date": formatdate(time.time() - ahead, usegmt=True)}
        if request.method == "GET":
            return web.json_response(stored, headers=headers)
        body: dict[str, Any] = await request.json()
        if request.method == "PATCH":
            stored["status"] |= body.get("status", {})
            written.set()
            return web.json_response(stored, headers=headers)
        made = {**body, "metadata": {**body["metadata"], "uid": request.path}}
        return web.json_response(made, status=201, headers=headers)

    async with answering(answer, tmp_path) as api:
        parts = Operator(Options(), api)
        await api.request("GET", "/version")
        parts.cache.put_job(stored)
        api.leadership.lend(math.inf)
        parts.controller.start()
        await asyncio.wait_for(written.wait(), 20)
        await parts.controller.stop()
    status = stored["status"]
    assert status["phase"] == "Pending", status
    now = time.time() - ahead
    assert all(abs((parse_time(one["lastTransitionTime"]) or 0.0) - now) < 100 for one in status["conditions"])
