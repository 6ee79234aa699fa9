"""The memory of a job is small, and covers its whole life."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from elasticjob_operator import api
from elasticjob_operator.history import memory
from elasticjob_operator.times import parse_time

START = 1_800_000_000.0


def remember(reports: int, seconds: float, metrics: dict[str, float]) -> api.ReportHistory:
    history = None
    for number in range(reports):
        history = memory.add(history, number, metrics, START + number * seconds)
    assert history is not None
    return history


def times_of(history: api.ReportHistory) -> list[float]:
    return [(parse_time(report.time) or 0.0) - START for report in history.reports]


@pytest.mark.parametrize(
    ("reports", "seconds", "every"),
    [
        pytest.param(1, 10, 10, id="the first report"),
        pytest.param(60, 10, 10, id="ten minutes"),
        pytest.param(61, 10, 20, id="a report more"),
        pytest.param(360, 10, 80, id="an hour"),
        pytest.param(8640, 10, 2560, id="a day"),
        pytest.param(48, 1800, 10, id="a day of slow steps"),
    ],
)
def test_it_covers_the_life_of_the_job(reports: int, seconds: float, every: int) -> None:
    history = remember(reports, seconds, {"loss": 0.5})
    times = times_of(history)
    assert history.every_seconds == every
    assert len(times) <= memory.MOST_REPORTS
    assert len(times) >= min(reports, memory.MOST_REPORTS // 2)
    assert times[0] == 0
    assert (reports - 1) * seconds - times[-1] < every
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert not gaps or (min(gaps) >= max(every, seconds) and max(gaps) <= max(2 * every, seconds))
    assert [report.step for report in history.reports] == [time / seconds for time in times]


def test_a_report_that_is_too_near_changes_nothing() -> None:
    history = memory.add(None, 1, {}, START)
    assert memory.add(history, 2, {}, START + 9.9) is history
    assert memory.add(history, 2, {}, START - 60) is history


@pytest.mark.parametrize(
    ("metrics", "kept"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param(
            {"b": 1.0, "a": 2.0, "loss": 0.123456789, "c": 3.0}, {"loss": 0.123456789, "a": 2, "b": 1}, id="loss first"
        ),
        pytest.param({"": 1.0, "x" * 33: 1.0, "\u00e9" * 17: 1.0, "y" * 32: 1.0}, {"y" * 32: 1}, id="long names"),
        pytest.param({"loss": 1e308, "grad": -1e-300}, {"loss": 1e308, "grad": -1e-300}, id="far away"),
    ],
)
def test_three_metrics_are_kept(metrics: dict[str, float], kept: dict[str, float]) -> None:
    assert memory.choose_metrics(metrics) == kept


def test_whatever_is_reported_it_is_small() -> None:
    worst = {f"{number:031}\n": -1.2345678901234567e-300 for number in range(32)}
    history = remember(1000, 10, worst)
    assert len(json.dumps(history.dump())) < 20 * 1024
    usual = remember(1000, 10, {"loss": 0.123456789, "accuracy": 0.9})
    assert len(json.dumps(usual.dump())) < 8 * 1024


def test_a_memory_that_somebody_has_written_shrinks() -> None:
    report = api.ReportStatus(time="no time", step=1)
    history = memory.add(api.ReportHistory(reports=[report] * 1000), 2, {}, START)
    assert len(history.reports) <= memory.MOST_REPORTS
