"""The events of a pod that waits: whoever may write events in its namespace may write megabytes into them."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import NOW, make_job, make_pod
from elasticjob_operator.run.quiet_pods import QuietPods

pytestmark = pytest.mark.timeout(60)
EVENT = b'{"type":"Warning","message":"' + b"x" * 65_536 + b'"}'
EVENTS = 240  # less than a response may have


async def test_large_events_are_not_read_to_their_end(tmp_path: Path) -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        for number in range(EVENTS):
            await response.write((b'{"items":[' if not number else b",") + EVENT)
            sent += len(EVENT)
            await asyncio.sleep(0)
        await response.write(b"]}")
        return response

    pod = make_pod(0, "Pending", created=NOW - 900, scheduled=NOW - 900, waiting="ContainerCreating")
    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        quiet = QuietPods()
        await quiet.look(api, make_job(), [pod], ("node0",), NOW)
    assert quiet.said == {pod.uid: (False, "")}, "and the job goes on without them"
    assert sent < EVENTS * len(EVENT) / 2


async def test_a_pod_without_a_node_is_looked_at_before_others_remove_it(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []})

    young: dict[str, Any] = {"created": NOW - 1, "scheduled": NOW - 1, "waiting": "ContainerCreating"}
    for nodes, seconds in (((), 4), (("node0",), 14)):
        async with answering(answer, tmp_path) as api:
            _, again = await QuietPods().look(api, make_job(), [make_pod(0, "Pending", **young)], nodes, NOW)
        assert again == NOW + seconds
