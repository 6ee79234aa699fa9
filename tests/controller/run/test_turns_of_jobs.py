"""Many jobs that need a pass at the same time do not occupy the event loop in one piece."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import names
from elasticjob_operator.apply.apply import Outcome
from elasticjob_operator.model.served import Served
from elasticjob_operator.run.controller import Controller
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)
JOBS = 300


def job_of(number: int) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": f"j{number}", "namespace": "t", "uid": f"u{number}", "resourceVersion": "5"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "w", "image": "i"}]}}},
    }


class Nothing:
    """Carries out no plan, so that only the passes compute."""

    def __init__(self, recorder: Any) -> None:
        self.served, self.recorder = Served(), recorder

    async def apply(self, *plan: object) -> Outcome:
        return Outcome()


async def test_others_have_the_loop_while_many_jobs_are_planned(tmp_path: Path) -> None:
    """The loop sends heartbeats and renews the Lease in between, however many jobs a tenant wakes at once."""
    turn, planned = 0, list[int]()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []})

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    async with answering(answer, tmp_path) as api:
        parts = Operator(Options(), api)
        for number in range(JOBS):
            parts.cache.put_job(job_of(number))
        api.leadership.lend(math.inf)
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(
            *(api, parts.cache, parts.hub, applier, parts.controller.config),
            parallel=2 * JOBS + 2,
            find_pool_decision=lambda key: planned.append(turn),
        )
        asyncio.get_running_loop().call_soon(count)
        controller.start()
        async with asyncio.timeout(50):
            while len(planned) < JOBS:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        await controller.stop()
    assert max(Counter(planned).values()) < JOBS / 2, "for 10 ms at a time"
