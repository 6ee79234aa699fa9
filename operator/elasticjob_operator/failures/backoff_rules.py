"""Back-off: what keeps failing is tried ever more rarely, whoever pays for it. Pure.

A restart that costs nothing could be repeated for ever. So what ends soon after it began counts as one more failure in
a row, and from the first few on each one is waited for twice as long as the one before. What ran for a while, or made
steps for a moment, has not failed at its start and begins a new row.

Where pods end and the rest of the job can go on, only as many pods as have ended are held back; where the job itself
fails, all of it waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.backoff import find_pause
from elasticjob_operator.model.observe import format_time, parse_time
from elasticjob_operator.model.revise import revise

STABLE_SECONDS = 30.0  # what ran this long did not fail at its start
WORKED_SECONDS = 10.0  # the same, where steps were reported
FREE_TRIES = 3  # a pod that is killed is replaced at once, and so are the next two
CHARGED_TRIES = 1
MAX_SECONDS = 300.0
FORGET_SECONDS = 60.0
HOPELESS_TRIES = 3  # an error of the program's own text is the same at every start
ACQUITTING_NODES = 2


@dataclass(frozen=True, slots=True)
class Setback:
    """Something that has to be tried again: a pod, or a world."""

    began: float  # when it was made
    lived: float  # seconds that it ran


def note(
    before: api.BackoffStatus | None,
    setbacks: Sequence[Setback],
    *,
    reason: str,
    whole: bool,
    charged: int,
    fresh: bool,
    step: int | None,
    now: float,
) -> api.BackoffStatus | None:
    """The back-off after these failures, which were seen together.

    `whole`: the job is tried again, not only the pods. `charged`: failures that the budget counts, 0 for free ones.
    `fresh`: this is certainly more than a consequence of the failure before; else the ages of what failed tell.
    """
    known = before or api.BackoffStatus()
    worked = step is not None and (known.step is None or step > known.step)
    early = [s for s in setbacks if s.lived < (WORKED_SECONDS if worked else STABLE_SECONDS)]
    if not early and not whole:
        return before
    since = parse_time(known.since)
    repeats, start = known.repeats, now if since is None else since
    if not early:
        repeats, start = 1, now
    elif fresh or since is None or any(s.began >= since for s in early):
        repeats, start = repeats + 1, now
    tries = CHARGED_TRIES if charged else FREE_TRIES
    until = start + delay_of(max(repeats, charged) - tries)
    held = len(early) + (known.held if wait_until(known, now) else 0)
    if not whole and is_whole(known, now):  # pods that end while the job waits anyway change nothing about that
        whole, until = True, max(until, wait_until(known, now))
    return revise(
        known,
        reason=reason,
        repeats=repeats,
        held=0 if whole else held,
        since=format_time(start),
        until=format_time(until) if until > now else None,
        step=max((s for s in (step, known.step) if s is not None), default=None),
    )


def note_error(backoff: api.BackoffStatus, error: str, nodes: Collection[str]) -> api.BackoffStatus:
    """The same with the program's mistake, "" where it was none."""
    same = bool(error) and error == backoff.error
    seen = sorted({*(backoff.nodes if same else ()), *nodes})[:ACQUITTING_NODES]
    return revise(
        backoff,
        error=error or None,
        alike=backoff.alike + 1 if same else int(bool(error)),
        nodes=seen if error else [],
    )


def is_hopeless(backoff: api.BackoffStatus, nodes: Collection[str]) -> bool:
    """Whether the same mistake came often enough. `nodes`: those of the job, of which one alone could be broken."""
    return backoff.alike >= HOPELESS_TRIES and len(backoff.nodes) >= min(ACQUITTING_NODES, len(set(nodes)))


def delay_of(failures: int) -> float:
    """1, 2, 4 … 300 s for the first, second, third … failure that is waited for."""
    return find_pause(failures, first=1.0, most=MAX_SECONDS) if failures > 0 else 0.0


def wait_until(backoff: api.BackoffStatus | None, now: float) -> float:
    """Until when something waits; 0 where nothing does."""
    until = parse_time(backoff.until) if backoff else None
    if until is None or until <= now or until > now + MAX_SECONDS:  # the last: the clock was set back
        return 0.0
    return until


def is_whole(backoff: api.BackoffStatus | None, now: float) -> bool:
    """Whether all of the job waits."""
    return backoff is not None and not backoff.held and wait_until(backoff, now) > 0


def count_held(backoff: api.BackoffStatus | None, missing: int, now: float) -> int:
    """How many of the missing pods are not made yet."""
    if backoff is None or not wait_until(backoff, now):
        return 0
    return missing if is_whole(backoff, now) else min(missing, backoff.held)


def forget(backoff: api.BackoffStatus | None, now: float) -> api.BackoffStatus | None:
    """None when nothing has failed for much longer than was waited."""
    since = parse_time(backoff.since) if backoff else None
    if backoff is None or since is None or since > now + 1:  # the last: the clock was set back
        return None
    waited = (parse_time(backoff.until) or since) - since
    return None if now - since > FORGET_SECONDS + 2 * waited else backoff


def tell(status: api.Status) -> tuple[str, str] | None:
    """(reason, message) for conditions, where something has failed more than once in a row."""
    backoff = status.restarts.backoff
    if backoff is None or (backoff.repeats < 2 and backoff.until is None):
        return None
    last = f"; last: {status.last_failure.message}" if status.last_failure else ""
    again = f"; tried again at {backoff.until}" if backoff.until else ""
    return backoff.reason, f"{backoff.repeats} failures in a row without progress{again}{last}"[:4096]
