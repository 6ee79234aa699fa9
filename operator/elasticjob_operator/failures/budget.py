"""The restart budget of a job: counted in a window, stored in the status, charged once per job failure. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_operator import api
from elasticjob_operator.failures import mistakes
from elasticjob_operator.model.revise import revise
from elasticjob_operator.times import format_time, parse_time

COALESCE_SECONDS = 2.0  # failures within this time, without a world between them, count as one job failure


def charge(
    restarts: api.RestartStatus,
    policy: api.ElasticPolicy,
    *,
    free: bool,
    generation: int,
    counted: Iterable[str],
    step: int | None,
    now: float,
    error: str = "",
    began: float | None = None,
) -> api.RestartStatus:
    """The budget after one job failure. Idempotent: each generation and each pod is charged at most once.

    `error`: what failed, and where; "" if that is not known, or may mend itself. `began`: when the failed pod or world
    was created. A pod created after the last charge is a separate failure.
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
    highest = max((s for s in (step, restarts.step) if s is not None), default=None)
    is_old = mistakes.is_refusal(error) and last is not None and 0 < window < now - last
    return revise(
        base,
        user=1 if expired else restarts.user + 1,
        total=restarts.total + 1,
        window_start=format_time(now) if expired else restarts.window_start,
        last_time=format_time(now),
        generation=max(generation, restarts.generation),
        step=highest,
        error=error or None,
        alike=restarts.alike + 1 if error and error == restarts.error and not is_old else 1 if error else 0,
        stuck=0 if highest is None else count_stuck(restarts) + 1,
        stuck_total=None if highest is None else restarts.total + 1,
    )


def count_stuck(restarts: api.RestartStatus) -> int:
    """The restarts in a row without progress. Where none is charged, or others were charged since it was counted, an
    earlier version may have seen progress meanwhile: it keeps the number, which it does not know.
    """
    return restarts.stuck if restarts.user and restarts.stuck_total in (None, restarts.total) else 0


def refund(restarts: api.RestartStatus, step: int | None) -> api.RestartStatus:
    """Reset the budget once training has progressed beyond the step of the last charged failure.

    A refusal is remembered: a script that is refused trains in between, and would be refused for ever.
    """
    if restarts.user and restarts.step is not None and step is not None and step > restarts.step:
        paid = revise(restarts, user=0, stuck=0, window_start=None)
        return paid if mistakes.is_refusal(restarts.error or "") else forget_error(paid)
    return restarts


def begin_anew(restarts: api.RestartStatus) -> api.RestartStatus:
    """The budget of a job that a rule has suspended, so that somebody would look at it, and that was resumed."""
    return forget_error(revise(restarts, user=0, window_start=None))


def forget_error(restarts: api.RestartStatus) -> api.RestartStatus:
    """The same without the last error: training has gone on beyond it, or something may have mended it."""
    return revise(restarts, error=None, alike=0, stuck=0)
