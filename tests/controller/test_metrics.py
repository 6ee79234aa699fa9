"""Metrics: read from statuses, counted between them, served as Prometheus reads them."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.hub_fixture import running_hub, seated
from elasticjob_operator import api, metrics
from elasticjob_operator.http import HttpServer
from elasticjob_operator.observe import format_time

JOB = ("default", "digits")
START = 1_000_000.0


def status(
    *,
    generation: int = 0,
    size: int = 0,
    reason: str | None = None,
    phase: str = "Running",
    training: bool = False,
    since: float | None = None,
    trained: float = 0,
    lost: float = 0,
    recovery: float | None = None,
    user: int = 0,
    infrastructure: int = 0,
) -> api.Status:
    return api.Status(
        phase=api.Phase(phase),
        rendezvous=api.RendezvousStatus(generation=generation, world_size=size, reason=reason),
        goodput=api.GoodputStatus(
            training=training,
            since=format_time(since) if since is not None else None,
            training_seconds=trained,
            lost_seconds=lost,
            last_recovery_seconds=recovery,
        ),
        restarts=api.RestartStatus(total=user, infrastructure=infrastructure),
    )


RUNNING = status(generation=1, size=3, reason="start", training=True, since=START)
BROKEN = status(generation=1, size=3, reason="start", phase="Rescaling", since=START + 60, trained=60)
AGAIN = status(
    generation=2,
    size=2,
    reason="lost",
    training=True,
    since=START + 61,
    trained=60,
    lost=1,
    recovery=1.0,
    infrastructure=1,
)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, AGAIN, metrics.Changes(), id="first sight counts nothing"),
        pytest.param(RUNNING, RUNNING, metrics.Changes(cause="start"), id="nothing new"),
        pytest.param(status(), RUNNING, metrics.Changes(1, "start"), id="the first world is no rescale"),
        pytest.param(RUNNING, BROKEN, metrics.Changes(cause="start"), id="training stops"),
        pytest.param(BROKEN, AGAIN, metrics.Changes(1, "lost", 1.0, (("infrastructure", 1),)), id="recovered"),
        pytest.param(
            AGAIN,
            status(generation=4, reason="failed", user=2),
            metrics.Changes(2, "failed", None, (("user", 2),)),
            id="two worlds in one look",
        ),
        pytest.param(AGAIN, status(), metrics.Changes(cause="other"), id="a job made anew counts nothing backwards"),
    ],
)
def test_what_happened_between_two_statuses(
    before: api.Status | None, after: api.Status, expected: metrics.Changes
) -> None:
    figures = metrics.read_status(before) if before is not None else None
    assert metrics.compute_changes(figures, metrics.read_status(after)) == expected


@pytest.mark.parametrize(
    ("given", "now", "expected"),
    [
        pytest.param(status(), START, (0, 0), id="never trained"),
        pytest.param(RUNNING, START + 10, (10, 0), id="training"),
        pytest.param(BROKEN, START + 63, (60, 3), id="broken"),
        pytest.param(AGAIN, START + 71, (70, 1), id="again"),
        pytest.param(RUNNING, START - 5, (0, 0), id="a clock that went back"),
    ],
)
def test_goodput_includes_the_present_stretch(given: api.Status, now: float, expected: tuple[float, float]) -> None:
    assert metrics.compute_goodput(metrics.read_status(given), now) == expected


@pytest.mark.parametrize("reason", ["digits-worker-3 has exited: code 137", "x" * 41, "", None, 'a"b'])
def test_free_text_does_not_become_a_label(reason: str | None) -> None:
    assert metrics.read_status(status(reason=reason)).cause == "other"


def scraped(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_figures_of_a_job_come_and_go_with_it() -> None:
    collected = metrics.Metrics(version="0.1.0")
    for one in (status(phase="Pending"), RUNNING, BROKEN, AGAIN):
        collected.update_job(JOB, one)
    collected.count_request("post", "pods", 201, 0.004)
    found = scraped(collected.expose(START + 71).decode())
    job = (("job", "digits"), ("namespace", "default"))
    assert found["elasticjob_jobs", (("phase", "Running"),)] == 1
    assert found["elasticjob_jobs", (("phase", "Failed"),)] == 0
    assert found["elasticjob_world_size", job] == 2
    assert found["elasticjob_generation", job] == 2
    assert found["elasticjob_goodput_ratio", job] == pytest.approx(70 / 71)
    assert found["elasticjob_generations_total", (("cause", "lost"),)] == 1
    assert found["elasticjob_rescale_seconds_sum", (("cause", "lost"),)] == 1.0
    assert found["elasticjob_restarts_total", (("cause", "infrastructure"),)] == 1
    code = (("code", "201"), ("resource", "pods"), ("verb", "post"))
    assert found["elasticjob_api_requests_total", code] == 1
    assert found["elasticjob_build_info", (("version", "0.1.0"),)] == 1
    collected.forget_job(JOB)
    after = scraped(collected.expose(START + 72).decode())
    assert ("elasticjob_world_size", job) not in after
    assert after["elasticjob_jobs", (("phase", "Running"),)] == 0


def test_two_registries_do_not_meet() -> None:
    metrics.Metrics()
    metrics.Metrics()


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_health_readiness_and_the_hubs_figures_are_served() -> None:
    collected = metrics.Metrics()
    missing = "waiting for the first list of pods"
    state: dict[str, Any] = {"missing": missing}
    server = HttpServer(collected, lambda: state["missing"], clock=lambda: START)
    async with running_hub() as running, seated(running):
        collected.watch_hub(running.hub)
        url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        try:
            assert await get(f"{url}/healthz") == (200, "ok\n")
            assert await get(f"{url}/readyz") == (503, missing + "\n")
            state["missing"] = ""
            assert await get(f"{url}/readyz") == (200, "ok\n")
            code, text = await get(f"{url}/metrics")
            found = scraped(text)
            assert code == 200
            assert found["elasticjob_hub_connections", ()] == 1
            assert found["elasticjob_hub_events_total", (("detail", ""), ("event", "connected"))] == 1
            assert (await get(f"{url}/nothing"))[0] == 404
        finally:
            await server.stop()
