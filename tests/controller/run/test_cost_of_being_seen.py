"""What a job that reports everything costs where it is seen: bytes, memory and requests, as docs/operations.md says."""

from __future__ import annotations

import gc
import json
import re
import tracemalloc
from collections.abc import Callable

import pytest

from controller.builders import NOW, make_job, make_spec, make_world
from controller.simulated_cluster import Cluster
from elasticjob_operator import api
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.history import memory, spans
from elasticjob_operator.run import otlp
from elasticjob_operator.run.metrics import Metrics
from elasticjob_operator.times import format_time
from operator_fixture import ROOT

OPERATIONS = (ROOT / "docs/operations.md").read_text()
JOBS = 200
METRICS = {"loss": 0.123456789, **{f"metric_{number}": 1 / 3 for number in range(7)}}


def make_status() -> api.Status:
    """Of a job for which everything is known, and whose memory is full."""
    reports = None
    for step in range(200):
        reports = memory.add(reports, 1_000_000 + step, METRICS, NOW + 600 * step)
    saved = [api.SavedStatus(tier=tier.value, time=format_time(NOW)) for tier in api.Tier]
    progress = api.ProgressStatus(
        step=1_000_000,
        total_steps=2_000_000,
        step_seconds=1 / 3,
        samples_per_second=1e6 / 3,
        tokens_per_second=1e9 / 3,
        mfu=0.4321,
        checkpoints=saved,
        metrics=[api.Metric(name=name, value=value) for name, value in METRICS.items()],
        last_update_time=format_time(NOW),
        history=reports,
    )
    world = make_world(12, tuple(range(8)), reason="lost", formed_time=format_time(NOW))
    return api.Status(phase=api.Phase.RUNNING, rendezvous=world, progress=progress)


def name_job(number: int) -> JobKey:
    return "team-of-usual-length", f"job-with-usual-name-{number:04}"


def count_page_bytes() -> int:
    """In an answer to Prometheus."""
    seen, status = Metrics(), make_status()
    empty = len(seen.expose(NOW))
    for number in range(JOBS):
        seen.update_job(name_job(number), status)
    return (len(seen.expose(NOW)) - empty) // JOBS


def count_memory_bytes() -> int:
    """Of the operator, beside the status itself."""
    seen, statuses = Metrics(), [make_status() for _ in range(JOBS)]
    gc.collect()
    tracemalloc.start()
    for number, status in enumerate(statuses):
        seen.update_job(name_job(number), status)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used // JOBS


def count_status_bytes() -> int:
    """That reports add to the object."""
    progress = make_status().progress
    assert progress is not None
    return len(json.dumps(progress.dump(), separators=(",", ":")))


def count_span_bytes() -> int:
    """That a world of eight pods sends to a collector."""
    (world,) = spans.list_ended(make_job(), make_status(), api.Status(rendezvous=make_world(13)), NOW + 60)
    return len(otlp.encode([otlp.encode_span(world)]))


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("an answer to Prometheus", count_page_bytes),
        ("the operator's memory", count_memory_bytes),
        ("the status", count_status_bytes),
        ("a span of a world of 8 pods", count_span_bytes),
    ],
)
def test_a_job_costs_no_more_than_is_said(what: str, count: Callable[[], int]) -> None:
    said = re.search(rf"^\| {what} \| ([\d,]+) bytes \|", OPERATIONS, re.MULTILINE)
    assert said is not None
    most = int(said[1].replace(",", ""))
    assert 0.6 * most < count() <= most


def count_writes(minutes: int, *, reports: bool) -> int:
    """Requests of a job that trains, after its first minute."""
    cluster = Cluster(make_spec(4, 4))
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(60)
    before = cluster.writes
    for second in range(minutes * 60):
        if reports:
            cluster.report(0, step=1 + second, seconds=1.0)
        cluster.run(1)
    return cluster.writes - before


def test_a_job_that_reports_sends_no_more_requests_than_is_said() -> None:
    said = re.search(r"^\| requests to the API server \| (\d+) a minute \|", OPERATIONS, re.MULTILINE)
    assert said is not None
    most = int(said[1])
    assert count_writes(5, reports=False) == 0
    assert 5 * (most - 1) <= count_writes(5, reports=True) <= 5 * most + 1  # one at both ends of the time
