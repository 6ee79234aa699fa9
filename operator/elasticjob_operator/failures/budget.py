"""The restart budget of a job: windowed, kept in the status, charged once per failure of the job. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_operator import api
from elasticjob_operator.model.observe import format_time, parse_time
from elasticjob_operator.model.revise import revise

COALESCE_SECONDS = 2.0  # failures this close together without a world are one failure of the job


def charge(
    restarts: api.RestartStatus,
    policy: api.ElasticPolicy,
    *,
    free: bool,
    generation: int,
    counted: Iterable[str],
    step: int | None,
    now: float,
    began: float | None = None,
) -> api.RestartStatus:
    """The budget after one failure of the job. Idempotent: a generation and a pod are charged once.

    `began`: when what failed was made; a pod made after the last charge fails for itself.
    """
    base = revise(restarts, counted=sorted({*restarts.counted, *counted}))
    if free:
        return revise(base, infrastructure=restarts.infrastructure + 1, generation=max(generation, restarts.generation))
    last = parse_time(restarts.last_time)
    known = generation == 0 or generation <= restarts.generation
    if known and last is not None and now - last < COALESCE_SECONDS and (began is None or began < last):
        return base
    start = parse_time(restarts.window_start)
    window = policy.restart_window_seconds
    expired = start is None or (window > 0 and now - start > window)
    return revise(
        base,
        user=1 if expired else restarts.user + 1,
        total=restarts.total + 1,
        window_start=format_time(now) if expired else restarts.window_start,
        last_time=format_time(now),
        generation=max(generation, restarts.generation),
        step=max((s for s in (step, restarts.step) if s is not None), default=None),
    )


def refund(restarts: api.RestartStatus, step: int | None) -> api.RestartStatus:
    """Progress beyond the step of the last charged failure gives the budget back."""
    if restarts.user and restarts.step is not None and step is not None and step > restarts.step:
        return revise(restarts, user=0, window_start=None)
    return restarts
