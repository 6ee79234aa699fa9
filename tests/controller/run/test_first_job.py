"""The operator asks for one job to learn whether jobs are served: that one may be anything."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.run.cluster import await_crd


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(json.dumps({"metadata": {"labels": {f"l{i}": "" for i in range(80_000)}}}), id="very many labels"),
        pytest.param('{"spec":' + "[" * 9000 + "]" * 9000 + "}", id="deep"),
    ],
)
async def test_jobs_are_served_whatever_the_first_one_is(job: str, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f'{{"metadata":{{}},"items":[{job}]}}', content_type="application/json")

    async with answering(answer, tmp_path) as api, asyncio.timeout(10):
        await await_crd(api, ())
