"""Jobs as large, as deep and as many as the API server stores them, before the page of everybody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dashboard.conftest import job
from dashboard.fake_api import FakeApi, served
from elasticjob_operator.client import Client
from elasticjob_operator.dashboard.server import Dashboard

pytestmark = pytest.mark.timeout(300)

PATIENCE = 120.0
LARGE = 1_000_000


def swell(raw: dict[str, Any]) -> dict[str, Any]:
    """Everything that its author may write, large."""
    raw["metadata"]["annotations"] = {"note": "x" * LARGE}
    raw["metadata"]["labels"] = {f"l{i}": "x" for i in range(1000)}
    raw["spec"]["template"]["metadata"] = {"annotations": {"note": "x" * LARGE}}
    raw["spec"]["template"]["odd"] = [[]] * 10_000
    raw["spec"]["elasticPolicy"]["metrics"] = [{"type": "x" * LARGE}]
    return raw


async def test_the_board_keeps_little_of_a_large_job(api: FakeApi, client: Client) -> None:
    large = [swell(job("digits")), swell(job("fits")), swell(job("invalid")), swell(job("watched"))]
    large[1]["spec"]["elasticPolicy"].pop("metrics")
    large[2]["spec"]["template"]["spec"] = {"containers": "x" * LARGE}
    for one in large[:3]:
        api.put(one)
    dashboard = Dashboard(client, all_namespaces=True)
    async with dashboard.serve("127.0.0.1", 0):
        async with asyncio.timeout(PATIENCE):
            while len(dashboard.board.known) < 3:
                await dashboard.board.wait(dashboard.board.version, PATIENCE)
            api.put(large[3])
            while len(dashboard.board.known) < 4:
                await dashboard.board.wait(dashboard.board.version, PATIENCE)
    for known in dashboard.board.known.values():
        assert len(json.dumps(known.raw)) < 1000, known.name


async def test_a_job_as_deep_as_a_server_stores_it_hides_no_other_from_a_page_in_the_cluster(
    api: FakeApi, tmp_path: Path
) -> None:
    deep = json.dumps(job("deep")).replace('"template": {', '"template": {"odd": ' + "[" * 9000 + "]" * 9000 + ", ", 1)
    api.texts.append(deep)
    command = ("-m", "elasticjob_operator.dashboard", "--host=127.0.0.1", "--port=0", "--allowed-host=page.test")
    async with served(api, tmp_path) as kubeconfig:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, env=os.environ | {"KUBECONFIG": kubeconfig}
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                address = (await process.stdout.readline()).decode().split()[1]
                async with (
                    aiohttp.ClientSession(headers={"Host": "page.test"}) as visitor,
                    visitor.get(address) as answer,
                ):
                    page = await answer.text()
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()
    assert ">digits</a>" in page and ">deep</a>" in page, page
