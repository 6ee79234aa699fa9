"""Metrics: read from statuses, counted between them, served in the format of Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.counted_work import count_work
from controller.hub_fixture import eventually, running_hub, seated
from elasticjob_operator import api
from elasticjob_operator.history import moments
from elasticjob_operator.run import file_limits, loop_lag, metrics
from elasticjob_operator.run.http import HttpServer, parse_address
from elasticjob_operator.times import format_time

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
        pytest.param(None, AGAIN, {}, id="first sight counts nothing"),
        pytest.param(RUNNING, RUNNING, {}, id="nothing new"),
        pytest.param(status(), RUNNING, {"generations/start": 1}, id="the first world is no rescale"),
        pytest.param(RUNNING, BROKEN, {}, id="training stops"),
        pytest.param(
            BROKEN, AGAIN, {"generations/lost": 1, "rescale/lost": 1, "restarts/infrastructure": 1}, id="recovered"
        ),
        pytest.param(
            AGAIN,
            status(generation=4, reason="failed", user=2),
            {"generations/failed": 2, "restarts/user": 2},
            id="two worlds in one look",
        ),
        pytest.param(AGAIN, status(), {}, id="a job made anew counts nothing backwards"),
    ],
)
def test_what_happened_between_two_statuses_is_counted(
    before: api.Status | None, after: api.Status, expected: dict[str, float]
) -> None:
    counted = metrics.Metrics()
    if before is not None:
        counted.update_job(("default", "digits"), before)
    counted.update_job(("default", "digits"), after)
    names = {
        "elasticjob_generations_total": "generations",
        "elasticjob_rescale_seconds_sum": "rescale",
        "elasticjob_restarts_total": "restarts",
    }
    found = {
        f"{names[sample.name]}/{sample.labels['cause']}": sample.value
        for family in counted.registry.collect()
        for sample in family.samples
        if sample.name in names
    }
    assert found == expected


@pytest.mark.parametrize(
    ("given", "now", "expected"),
    [
        pytest.param(status(), START, (0, 0), id="never trained"),
        pytest.param(RUNNING, START + 10, (10, 0), id="training"),
        pytest.param(BROKEN, START + 63, (60, 3), id="broken"),
        pytest.param(AGAIN, START + 71, (70, 1), id="again"),
        pytest.param(RUNNING, START - 5, (0, 0), id="a clock that went back"),
        pytest.param(
            status(phase="Suspended", since=START, trained=60, lost=1), START + 9, (60, 1), id="suspended, pods end"
        ),
    ],
)
def test_goodput_includes_the_present_stretch(given: api.Status, now: float, expected: tuple[float, float]) -> None:
    assert moments.read(given).seconds_until(now) == expected


@pytest.mark.parametrize("reason", ["digits-worker-3 has exited: code 137", "x" * 41, "", None, 'a"b', "like-a-cause"])
def test_free_text_does_not_become_a_label(reason: str | None) -> None:
    counted = metrics.Metrics()
    counted.update_job(("default", "digits"), status())
    counted.update_job(("default", "digits"), status(generation=1, reason=reason))
    assert b'elasticjob_generations_total{cause="other"} 1.0' in counted.expose(START)


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


def test_a_slow_rank_has_a_series_as_long_as_it_is_slow() -> None:
    collected = metrics.Metrics()
    slow = api.StragglerStatus(rank=5, pod="digits-worker-2", node="n2", own_seconds=3, others_seconds=2)
    collected.update_job(JOB, RUNNING.model_copy(update={"stragglers": [slow]}))
    labels = {"job": "digits", "namespace": "default", "rank": "5", "worker": "digits-worker-2", "node": "n2"}
    key = ("elasticjob_straggler_slowdown_ratio", tuple(sorted(labels.items())))
    assert scraped(collected.expose(START).decode())[key] == 1.5
    collected.update_job(JOB, RUNNING)
    assert key not in scraped(collected.expose(START).decode())


def test_the_links_of_a_checked_node_have_series() -> None:
    collected = metrics.Metrics()
    links = api.PreflightStatus(node="n2", round_trip_seconds=0.002, bytes_per_second=80_000_000)
    collected.update_job(JOB, RUNNING.model_copy(update={"preflight": [links]}))
    found = scraped(collected.expose(START).decode())
    labels = (("job", "digits"), ("namespace", "default"), ("node", "n2"))
    assert found["elasticjob_preflight_bytes_per_second", labels] == 80_000_000
    assert found["elasticjob_preflight_round_trip_seconds", labels] == 0.002


def test_the_checked_nodes_of_a_namespace_full_of_jobs_get_no_more_series_than_its_share() -> None:
    """They stay in the status of a job that has ended: whoever makes jobs one after the other has ever more of them."""
    collected = metrics.Metrics()
    links = [api.PreflightStatus(node=f"n{one}", round_trip_seconds=0.002, bytes_per_second=1) for one in range(32)]
    checked = RUNNING.model_copy(update={"preflight": links})
    jobs = [("crowd", f"job-{number}") for number in range(metrics.MOST_OF_A_NAMESPACE // 32 + 5)]
    series = b'elasticjob_preflight_bytes_per_second{namespace="%s"'
    for job in [*jobs, JOB, *jobs]:
        collected.update_job(job, checked)
    page = collected.expose(START)
    assert page.count(series % b"crowd") == metrics.MOST_OF_A_NAMESPACE
    assert page.count(series % b"default") == 32
    for job in jobs[:10]:
        collected.forget_job(job)
    for job in jobs[10:]:
        collected.update_job(job, checked)
    assert collected.expose(START).count(series % b"crowd") == 32 * len(jobs[10:])


RULES = [api.IncidentStatus(rule=f"rule-{number}", count=1) for number in range(16)]
SLOW = [api.StragglerStatus(rank=n, pod=f"w-{n}", node=f"n{n}", own_seconds=3, others_seconds=2) for n in range(8)]
LINKS = [api.PreflightStatus(node=f"n{n}", round_trip_seconds=0.002, bytes_per_second=1) for n in range(32)]


@pytest.mark.parametrize(
    ("field", "items", "series"),
    [
        ("incidents", RULES, "rule_incidents"),
        ("stragglers", SLOW, "straggler_slowdown_ratio"),
        ("preflight", LINKS, "preflight_round_trip_seconds"),
    ],
)
def test_what_a_tenant_may_name_gets_few_series_of_a_namespace_and_of_all(
    field: str, items: list[Any], series: str
) -> None:
    collected = metrics.Metrics()
    given = RUNNING.model_copy(update={field: items})
    count = metrics.MOST_OF_A_NAMESPACE // len(items) + 5
    for crowd in range(12):
        for number in range(count):
            collected.update_job((f"crowd-{crowd}", f"job-{number}"), given)
    collected.update_job(JOB, given)
    page = collected.expose(START)
    found = [page.count(f'elasticjob_{series}{{namespace="crowd-{crowd}"'.encode()) for crowd in range(12)]
    assert max(found) == found[0] == metrics.MOST_OF_A_NAMESPACE
    assert sum(found) < metrics.MOST_SERIES
    assert page.count(f'elasticjob_{series}{{namespace="default"'.encode()) == len(items), "who has none finds room"
    for crowd in range(12):
        for number in range(count):
            collected.forget_job((f"crowd-{crowd}", f"job-{number}"))
    collected.update_job(("other", "job"), given)
    assert collected.expose(START).count(f'elasticjob_{series}{{namespace="other"'.encode()) == len(items)


def test_ever_more_jobs_get_no_more_series_and_leave_some_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay in the page for as long as their objects exist, and a quota of objects is not the operator's."""
    monkeypatch.setattr(metrics, "MOST_JOBS", 100)
    collected = metrics.Metrics()
    for number in range(200):
        collected.update_job(("crowd", f"job-{number}"), RUNNING)
    collected.update_job(JOB, RUNNING)
    page = collected.expose(START)
    assert page.count(b'elasticjob_world_size{namespace="crowd"') == 90
    assert page.count(b'elasticjob_world_size{namespace="default"') == 1
    found = scraped(page.decode())
    assert found["elasticjob_jobs", (("phase", "Running"),)] == 201, "but all of them are counted"
    assert found["elasticjob_jobs_left_out", ()] == 110
    for number in range(50):
        collected.forget_job(("crowd", f"job-{number}"))
    for number in range(200):
        collected.update_job(("crowd", f"job-{number}"), RUNNING)
    assert collected.expose(START).count(b'elasticjob_world_size{namespace="crowd"') == 90


def reporting(metrics: dict[str, float], step: int = 40, seconds: float | None = 0.25) -> api.Status:
    told = api.ProgressStatus(
        step=step,
        total_steps=100,
        step_seconds=seconds,
        metrics=[api.Metric(name=name, value=value) for name, value in metrics.items()],
        last_update_time=format_time(START + 5),
    )
    return RUNNING.model_copy(update={"progress": told})


@pytest.mark.parametrize("seconds", [0.25, None])
def test_what_a_script_reports_has_series(seconds: float | None) -> None:
    collected = metrics.Metrics()
    collected.update_job(JOB, RUNNING)
    job = (("job", "digits"), ("namespace", "default"))
    assert ("elasticjob_step", job) not in scraped(collected.expose(START).decode())
    collected.update_job(JOB, reporting({"loss": 1.5, 'say "hi"': -2.0}, seconds=seconds))
    found = scraped(collected.expose(START).decode())
    assert found["elasticjob_step", job] == 40
    assert found["elasticjob_total_steps", job] == 100
    assert found["elasticjob_last_report_timestamp_seconds", job] == START + 5
    assert found.get(("elasticjob_step_seconds", job)) == seconds
    assert found["elasticjob_reported_metric", (*job[:1], ("metric", "loss"), *job[1:])] == 1.5
    assert found["elasticjob_reported_metric", (*job[:1], ("metric", 'say "hi"'), *job[1:])] == -2.0
    collected.forget_job(JOB)
    assert not [name for name, labels in scraped(collected.expose(START).decode()) if ("job", "digits") in labels]


def test_a_script_with_ever_new_names_gets_few_series() -> None:
    collected = metrics.Metrics()
    seen = set()
    for step in range(50):
        given = {f"{step}/{one}": 1.0 for one in range(3)} | {"x" * 65: 1.0, "line\nfeed": 1.0, "loss": float(step)}
        collected.update_job(JOB, reporting(given, step))
        found = scraped(collected.expose(START).decode())
        seen |= {dict(labels)["metric"] for name, labels in found if name == "elasticjob_reported_metric"}
    assert "loss" in seen
    assert len(seen) == 8
    assert found["elasticjob_reported_metrics_left_out", (("namespace", "default"),)] == 5
    collected.update_job(("other", "digits"), reporting({"accuracy": 0.5}))
    assert b'namespace="other",job="digits",metric="accuracy"} 0.5' in collected.expose(START)


@pytest.mark.parametrize("loss", [1.5, math.nan])
def test_the_loss_has_a_series_after_a_restart_also_among_many_names(loss: float) -> None:
    given = {f"eval/{one}": 1.0 for one in range(metrics.MOST_NAMES)}
    told = reporting(given if math.isnan(loss) else given | {"loss": loss})
    if told.progress is not None and math.isnan(loss):
        told = told.model_copy(update={"progress": told.progress.model_copy(update={"not_finite": ["loss"]})})
    collected = metrics.Metrics()  # of an operator that has just started
    collected.update_job(JOB, told)
    assert f'metric="loss"}} {"NaN" if math.isnan(loss) else loss}\n'.encode() in collected.expose(START)


def test_a_job_that_is_made_anew_has_names_of_its_own() -> None:
    collected = metrics.Metrics()
    collected.update_job(JOB, reporting({f"old/{number}": 1.0 for number in range(metrics.MOST_NAMES)}))
    collected.update_job(JOB, status())  # before the pods of the first one are gone, so nobody forgets that
    collected.update_job(JOB, reporting({"loss": 2.0}))
    page = collected.expose(START)
    assert b'metric="loss"} 2.0' in page
    assert b"reported_metrics_left_out{" not in page


def test_a_namespace_full_of_jobs_gets_no_more_than_its_share() -> None:
    collected = metrics.Metrics()
    given = {f"m{one}": 1.0 for one in range(8)}
    jobs = [("crowd", f"job-{number}") for number in range(metrics.MOST_OF_A_NAMESPACE // 8 + 5)]
    for job in [*jobs, JOB]:
        collected.update_job(job, reporting(given))
    page = collected.expose(START)
    found = scraped(page.decode())
    assert page.count(b'elasticjob_reported_metric{namespace="crowd"') == metrics.MOST_OF_A_NAMESPACE
    assert page.count(b'elasticjob_reported_metric{namespace="default"') == 8
    assert found["elasticjob_reported_metrics_left_out", (("namespace", "crowd"),)] == 40
    assert ("elasticjob_reported_metrics_left_out", (("namespace", "default"),)) not in found
    for job in jobs[:5]:
        collected.forget_job(job)
    for job in jobs[5:]:
        collected.update_job(job, reporting(given))
    page = collected.expose(START)
    assert page.count(b'elasticjob_reported_metric{namespace="crowd"') == metrics.MOST_OF_A_NAMESPACE
    assert b'elasticjob_reported_metrics_left_out{namespace="crowd"' not in page


def test_speed_and_checkpoints_have_series() -> None:
    collected = metrics.Metrics()
    saved = [api.SavedStatus(tier=tier, time=format_time(START + 2)) for tier in ("File", "Memory", "Memory", "Tape")]
    told = {"samples_per_second": 512.0, "tokens_per_second": 1e6, "mfu": 0.4, "checkpoints": saved}
    given = reporting({})
    assert given.progress is not None
    collected.update_job(JOB, given.model_copy(update={"progress": given.progress.model_copy(update=told)}))
    found = scraped(collected.expose(START + 32).decode())
    job = (("job", "digits"), ("namespace", "default"))
    assert found["elasticjob_samples_per_second", job] == 512
    assert found["elasticjob_tokens_per_second", job] == 1e6
    assert found["elasticjob_mfu", job] == 0.4
    ages = {
        dict(labels)["tier"]: age
        for (name, labels), age in found.items()
        if name == "elasticjob_checkpoint_age_seconds"
    }
    assert ages == {"File": 30, "Memory": 30}
    assert (
        dict(scraped(collected.expose(START - 9).decode()))[
            "elasticjob_checkpoint_age_seconds", (*job, ("tier", "File"))
        ]
        == 0
    )


def test_how_often_a_job_archives_has_a_series_of_jobs_with_an_archive() -> None:
    collected = metrics.Metrics()
    collected.update_job(JOB, RUNNING, api.Archive(to="s3://bucket", every_seconds=60))
    collected.update_job(("other", "digits"), RUNNING)
    found = [line for line in collected.expose(START).decode().splitlines() if "archive_interval_seconds{" in line]
    assert found == ['elasticjob_archive_interval_seconds{namespace="default",job="digits"} 60']


async def test_what_many_scripts_report_is_rendered_in_breaths() -> None:
    collected = metrics.Metrics()
    for number in range(300):
        collected.update_job((f"team-{number % 3}", f"job-{number}"), reporting({f"m{one}": 1.0 for one in range(32)}))
    rendering, turns = asyncio.create_task(collected.render(START)), 0
    while not rendering.done():
        await asyncio.sleep(0)
        turns += 1
    assert b"".join(await rendering).count(b"\nelasticjob_reported_metric{") == 300 * 8
    assert turns >= 25


def test_what_one_operator_counts_another_in_the_same_process_does_not() -> None:
    one, other = metrics.Metrics(version="1"), metrics.Metrics(version="2")
    one.pass_errors.inc()
    one.update_job(JOB, RUNNING)
    one.update_job(JOB, AGAIN)
    before, after = scraped(other.expose(START).decode()), scraped(one.expose(START).decode())
    assert after["elasticjob_reconcile_errors_total", ()] == 1
    assert before["elasticjob_reconcile_errors_total", ()] == 0
    assert not any(name == "elasticjob_world_size" for name, _ in before)
    assert not any(name == "elasticjob_generations_total" for name, _ in before)


@pytest.mark.parametrize("jobs", [0, 1, 450])
async def test_a_page_that_is_rendered_in_pieces_is_whole(jobs: int) -> None:
    collected = metrics.Metrics()
    for number in range(jobs):
        collected.update_job(("default", f"job-{number}"), RUNNING)
    text = b"".join(await collected.render(START + 10)).decode()
    at_once = collected.expose(START + 10).decode()
    ours, same = ([line for line in page.splitlines() if "elasticjob_" in line] for page in (text, at_once))
    assert ours == same
    found = scraped(text)
    for name, value in (("world_size", 3), ("generation", 1), ("training_seconds", 10), ("goodput_ratio", 1)):
        of_jobs = [found[key] for key in found if key[0] == f"elasticjob_{name}"]
        assert of_jobs == [value] * jobs


async def test_a_thousand_jobs_are_rendered_in_breaths() -> None:
    """Counted in turns of the event loop, since times depend on the machine."""
    collected = metrics.Metrics()
    for number in range(1000):
        collected.update_job(("default", f"job-{number}"), RUNNING)
    rendering = asyncio.create_task(collected.render(START))
    turns = 0
    while not rendering.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 25


def test_the_most_that_the_loop_was_held_up_is_kept() -> None:
    collected = metrics.Metrics()
    for lag, busy in ((0.001, 0.002), (0.06, 0.04), (0.002, 0.001)):
        collected.observe_loop(lag, busy)
    found = scraped(collected.expose(START).decode())
    assert found["elasticjob_event_loop_max_seconds", (("clock", "lag"),)] == 0.06
    assert found["elasticjob_event_loop_max_seconds", (("clock", "busy"),)] == 0.04
    above = (
        found["elasticjob_event_loop_lag_seconds_count", ()]
        - found["elasticjob_event_loop_lag_seconds_bucket", (("le", "0.05"),)]
    )
    assert above == 1


async def test_a_loop_that_is_held_up_is_noticed() -> None:
    collected = metrics.Metrics()
    watched = loop_lag.Pulse(collected)
    watched.start()
    try:
        await asyncio.sleep(3 * loop_lag.PAUSE)
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        await asyncio.sleep(3 * loop_lag.PAUSE)
    finally:
        watched.stop()
    found = scraped(collected.expose(START).decode())
    assert found["elasticjob_event_loop_max_seconds", (("clock", "lag"),)] > 0.08
    assert found["elasticjob_event_loop_max_seconds", (("clock", "busy"),)] > 0.08


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
            assert found["elasticjob_hub_places", (("stage", "agents"),)] == 1
            assert found["elasticjob_hub_places_limit", (("stage", "agents"),)] == 20_000
            assert (await get(f"{url}/nothing"))[0] == 404
        finally:
            await server.stop()


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(metrics.Metrics(), lambda: "", capacity=options.pop("capacity", 64))
    await server.start("127.0.0.1", 0, **options)
    try:
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param("", [[200, 200]], id="with the probes"),
        pytest.param("off", [[200, 404]], id="nowhere"),
        pytest.param("127.0.0.1:0", [[404, 200], [200, 404]], id="on a port of their own"),
    ],
)
async def test_metrics_are_where_they_are_wanted_and_nowhere_else(address: str, expected: list[list[int]]) -> None:
    async with serving(metrics_address=address) as server:
        found = [
            [(await get(f"http://127.0.0.1:{port}/{page}"))[0] for page in ("healthz", "metrics")]
            for port in server.ports
        ]
        assert found == expected


@pytest.mark.parametrize("text", ["8081", "here:", ":x", "a:99999", "of"])
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="must be host:port or 'off'"):
        parse_address(text)


@pytest.mark.parametrize("word", [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_probes_are_answered_while_a_thousand_sockets_stay_open(word: bytes) -> None:
    """Silent ones, half requests, and those that have had their answer."""
    file_limits.raise_soft_limit()
    loop = asyncio.get_running_loop()
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        url = f"http://127.0.0.1:{server.ports[0]}/healthz"
        for number in range(1100):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", server.ports[0]))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(one, word)
            if number % 100 == 99:
                assert (await get(url))[0] == 200
        assert (await get(url))[0] == 200
        assert server.connections <= 64


async def test_who_reads_no_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob_operator.run.http.PATIENCE", 0.5)
    async with serving() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        await eventually(lambda: server.connections == 1)
        await eventually(lambda: server.connections == 0)
        writer.close()


class LongPage(metrics.Metrics):
    """Of as many jobs as tenants like; no socket takes so much at once."""

    SIZE = 2**24
    rendered = 0

    async def render(self, now: float) -> tuple[bytes, ...]:
        self.rendered += 1
        return (bytes(self.SIZE // 2), bytes(self.SIZE // 2))


async def measure_slow_readers(clock: Callable[[], float], count: int) -> tuple[int, int]:
    """So many clients have taken the first line of the page: the bytes that are held then, and that were at most."""
    loop, server = asyncio.get_running_loop(), HttpServer(LongPage(), lambda: "", clock=clock)
    port = await server.start("127.0.0.1", 0)
    tracemalloc.start()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                one = stack.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.setblocking(False)
                await loop.sock_connect(one, ("127.0.0.1", port))
                await loop.sock_sendall(one, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
                assert await loop.sock_recv(one, 15) == b"HTTP/1.1 200 OK"
            assert server.connections == count
            return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await server.stop()


async def test_a_page_is_in_memory_once_however_many_read_it_slowly() -> None:
    held, _ = await measure_slow_readers(lambda: START, 16)
    assert held < 2 * LongPage.SIZE


async def test_who_reads_slowly_all_the_time_keeps_few_pages_in_memory() -> None:
    """A page is new each second, and whoever reads it has ten seconds for it."""
    times = itertools.count(START)
    _, most = await measure_slow_readers(lambda: next(times), 10)
    assert most < 4.5 * LongPage.SIZE


async def test_a_page_that_many_read_slowly_is_renewed_all_the_same() -> None:
    """It is older than a second only for as long as somebody reads what was rendered before."""
    now = [START]
    page = LongPage()
    server = HttpServer(page, lambda: "", clock=lambda: now[0])
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}/metrics"
    try:
        rendered = []
        for seconds in (0, 0.5, 1.5, 2.0, 12.0):
            now[0] = START + seconds
            await get(url)
            rendered.append(page.rendered)
        assert rendered == [1, 1, 2, 2, 3]
    finally:
        await server.stop()


async def test_a_long_page_arrives_whole() -> None:
    server = HttpServer(LongPage(), lambda: "")
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}/metrics"
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as response:
                assert response.content_length == len(await response.read()) == LongPage.SIZE
            async with session.head(url) as response:
                assert response.content_length == LongPage.SIZE and await response.read() == b""
    finally:
        await server.stop()


def find_longest_piece(jobs: int) -> int:
    known = metrics.Metrics()
    for number in range(jobs):
        known.update_job(("evil", f"j{number}"), RUNNING)
    pieces, work = known._job_pages(START + 60), [0]
    while work[-1] or len(work) == 1:
        found: list[object] = []
        steps = count_work(lambda: found.extend(itertools.islice(pieces, 1)))  # noqa: B023
        work.append(steps if found else 0)
    return max(work)


@pytest.mark.parametrize("most", [pytest.param(10_000, id="series"), pytest.param(100, id="left out")])
def test_no_piece_of_the_page_is_longer_however_many_jobs_there_are(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those that have no series, which a tenant makes by the ten thousand."""
    monkeypatch.setattr(metrics, "MOST_JOBS", most)
    assert find_longest_piece(4_000) < 1.5 * find_longest_piece(1_000)
