"""The memory of a job: a few of its script's reports, spread over its whole life. Pure.

It is full after ten minutes of reports every ten seconds. Then every second one is dropped, and the next ones have to
be twice as far apart. So its size is bounded, whatever a script reports and for however long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.times import format_time, parse_time

MOST_REPORTS: Final = 60
_MOST_METRICS, _MOST_NAME_BYTES, _MOST_SECONDS = 3, 32, 10_000_000


def add(before: api.ReportHistory | None, step: int, metrics: Mapping[str, float], now: float) -> api.ReportHistory:
    """The memory with this report, or as it was if the last one is too near."""
    history = before or api.ReportHistory()
    reports, every = history.reports, history.every_seconds
    if reports and now - (parse_time(reports[-1].time) or 0.0) < every:
        return history
    while len(reports) >= MOST_REPORTS:
        reports, every = reports[::2], min(2 * every, _MOST_SECONDS)
    report = api.ReportStatus(time=format_time(now), step=step, metrics=choose_metrics(metrics))
    return api.ReportHistory(every_seconds=every, reports=[*reports, report])


def choose_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The loss, and the next ones by name. Long names are left out."""
    found = (name for name in metrics if 0 < len(name.encode()) <= _MOST_NAME_BYTES)
    names = sorted(found, key=lambda name: (name != "loss", name))
    return {name: metrics[name] for name in names[:_MOST_METRICS]}
