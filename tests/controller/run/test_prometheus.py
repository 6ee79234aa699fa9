"""Prometheus itself scrapes the operator's port, and answers what the dashboard asks."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from chart_fixture import CHART
from elasticjob_devcluster.system.addresses import free_port
from elasticjob_operator import api
from elasticjob_operator.run import metrics
from elasticjob_operator.run.http import HttpServer
from elasticjob_operator.times import format_time

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: prometheus)")
LABELS = {"namespace": "ml", "job": "digits"}


def training(now: float) -> api.Status:
    progress = api.ProgressStatus(
        step=40,
        total_steps=100,
        step_seconds=0.25,
        samples_per_second=256.0,
        tokens_per_second=131072.0,
        checkpoints=[api.SavedStatus(tier=tier, time=format_time(now - 60)) for tier in ("File", "Memory", "Copies")],
        metrics=[api.Metric(name=name, value=0.5) for name in ("loss", 'a "b"\\', *(f"m{one}" for one in range(9)))],
        last_update_time=format_time(now),
    )
    world = api.RendezvousStatus(generation=3, world_size=2, formed_time=format_time(now - 90))
    return api.Status(phase=api.Phase.RUNNING, rendezvous=world, progress=progress)


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """A Prometheus that scrapes this port of this machine; its address."""
    assert PROMETHEUS is not None
    scrape = {"job_name": "operator", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML, too
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        started = subprocess.Popen([PROMETHEUS, *flags, f"--web.listen-address={address}"], stderr=log)
        try:
            yield f"http://{address}"
        finally:
            started.kill()
            started.wait()


@asynccontextmanager
async def operator() -> AsyncIterator[tuple[metrics.Metrics, int]]:
    collected = metrics.Metrics(version="test")
    server = HttpServer(collected, lambda: "", clock=time.time)
    try:
        yield collected, await server.start("127.0.0.1", 0)
    finally:
        await server.stop()


async def ask(session: aiohttp.ClientSession, url: str, query: str) -> list[tuple[dict[str, str], float]] | None:
    """The samples; None while nobody answers. A query that Prometheus does not understand fails the test."""
    try:
        async with session.get(f"{url}/api/v1/query", params={"query": query}) as response:
            said: dict[str, Any] = await response.json() if response.status != 503 else {}
    except aiohttp.ClientConnectionError:
        return None
    assert said.get("status") in (None, "success"), said
    return [(one["metric"], float(one["value"][1])) for one in said.get("data", {}).get("result", [])]


async def await_samples(session: aiohttp.ClientSession, url: str, query: str) -> list[tuple[dict[str, str], float]]:
    while True:
        if found := await ask(session, url, query):
            return found
        await asyncio.sleep(0.2)


def of_jobs() -> list[str]:
    """What the dashboard asks about jobs, as Grafana sends it for all of them."""
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [re.sub(r"\$(namespace|job)", ".*", one) for one in asked if "$job" in one]


async def test_prometheus_answers_what_the_dashboard_asks(tmp_path: Path) -> None:
    async with operator() as (collected, port), aiohttp.ClientSession() as session:
        collected.update_job(("ml", "digits"), training(time.time()))
        with prometheus(tmp_path, port) as url:
            [(labels, step)] = await await_samples(session, url, "elasticjob_step")
            assert (labels.items() >= LABELS.items(), step) == (True, 40)
            assert len(of_jobs()) > 10
            known = {name for query in of_jobs() for name in re.findall(r"elasticjob_\w+", query)}
            answered: dict[str, object] = {}
            for query in of_jobs():
                answered |= {query: found} if (found := await ask(session, url, query)) else {}
            told = {"step", "step_seconds", "samples_per_second", "checkpoint_age_seconds", "reported_metric"}
            assert {f"elasticjob_{name}" for name in told} <= known
            assert all(any(name in query for query in answered) for name in told)
            ages = await ask(session, url, "elasticjob_checkpoint_age_seconds")
            assert {one["tier"] for one, _ in ages or ()} == {"File", "Memory", "Copies"}
            assert all(age >= 60 for _, age in ages or ())
            names = await ask(session, url, "count by (job) (elasticjob_reported_metric)")
            assert names == [({"job": "digits"}, metrics.MOST_NAMES)]
            assert await ask(session, url, "elasticjob_reported_metrics_left_out")
            collected.forget_job(("ml", "digits"))
            await await_samples(session, url, 'up == 1 unless on() elasticjob_step{job="digits"}')
            assert not await ask(session, url, '{__name__=~"elasticjob_.*",job="digits"}')
