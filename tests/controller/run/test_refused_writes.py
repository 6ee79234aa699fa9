"""Pods that the API server refuses are tried again, but few of them: others share that server."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import names
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)

QUOTA = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "exceeded quota: q"}
HOOK = {"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500, "message": "webhook x failed"}
SECONDS = 4.0  # by which the first, quick tries are over; later ones are more than that apart


def make_job(replicas: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    policy = {"minReplicas": 1, "maxReplicas": replicas}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "j", "namespace": "t", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"replicas": replicas, "elasticPolicy": policy, "template": template, "network": {"policy": False}},
    }


@pytest.mark.parametrize("refusal", [pytest.param(QUOTA, id="quota"), pytest.param(HOOK, id="webhook")])
@pytest.mark.parametrize("replicas", [1, 3, 64])
async def test_few_pods_are_refused(tmp_path: Path, refusal: dict[str, Any], replicas: int) -> None:
    tries: list[float] = []
    stored = make_job(replicas)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods") and request.method == "POST":
            tries.append(time.monotonic())
            return web.json_response(refusal, status=refusal["code"])
        if "/elasticjobs/" in request.path and request.method == "PATCH":
            stored.update({k: v for k, v in (await request.json()).items() if k == "status"})
        return web.json_response(stored) if "/elasticjobs/" in request.path else web.Response(status=404)

    async with answering(answer, tmp_path) as api:
        operator = Operator(Options(), api)
        operator.cache.put_job(stored)
        api.leadership.lend(math.inf)
        operator.controller.start()
        while not tries or tries[-1] < tries[0] + SECONDS:  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)
        await operator.controller.stop()
    quick = [at for at in tries if at < tries[0] + SECONDS]
    assert len(quick) <= 8
