"""Back-off: repeated failures are retried less and less often, whether or not the budget is charged for them. Pure.

A restart that is free of charge could be repeated for ever. Therefore a pod or world that ends soon after its start
counts as one more consecutive failure, and after the first few, the delay doubles with each one. A pod or world that
ran for a while, or completed steps for a moment, did not fail at its start and resets the count.

If pods end and the rest of the job can continue, only the replacements of those pods wait, and then one of them tries
for all: the others are made when it has lived longer than those that failed. So are the first replacements, of which a
few may try: a job of any size makes its first pods, and then no more than ten in a minute. If the job itself fails, the
whole job waits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.backoff import find_pause
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.model.revise import revise
from elasticjob_operator.sizing import retreat
from elasticjob_operator.times import format_time, parse_time

STABLE_SECONDS = retreat.STABLE_SECONDS  # after running this long, a failure is not one at the start
WORKED_SECONDS = 10.0  # the same, if steps were reported
FREE_TRIES = 3  # the first three failures are retried at once
CHARGED_TRIES = 1
REFUSED_TRIES = 1  # of pods that did not start at all, as when their node refuses them
SHARED_TRIES = 2  # those of several pods; at the first one, a few try for all, and from then on one
AT_ONCE = 4  # the few
LONGER = 1.5  # times as long as those that failed has the pod to live that tries for others, and a second more
BOOKED_SECONDS = 2.0  # creation times are whole seconds, and the loss of a member may be booked after it was made good
CUT_SECONDS = 600.0  # a deadline is too short with which pods end before that, and have completed no step
HASTY_SECONDS = 1.0  # creation times are whole seconds: a pod made later than that is of another round
MAX_SECONDS = 300.0
FORGET_SECONDS = 60.0
HOPELESS_TRIES = 3  # attempts after which an error in the program's source is considered permanent
ACQUITTING_NODES = 2


@dataclass(frozen=True, slots=True)
class Setback:
    """A pod or a world that has to be retried."""

    began: float  # when it was created
    lived: float  # seconds that it ran
    is_cut: bool = False  # a deadline that others set ended it, and ends the next one after as long


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
    """The back-off status after these failures, which were observed together.

    `whole`: the whole job is retried, not only the pods. `charged`: failures charged to the budget, 0 for free ones.
    `fresh`: this failure is certainly not a consequence of the previous one; otherwise their ages decide.
    """
    known = before or api.BackoffStatus()
    worked = step is not None and (known.step is None or step > known.step)
    early = [s for s in setbacks if s.lived < _least(s, worked=worked)]
    if not early and not whole:
        return before
    since = parse_time(known.since)
    repeats, start = known.repeats, now if since is None else since
    again = len(early) if fresh else sum(since is not None and s.began >= since for s in early)
    if not early:
        repeats, start = 1, now
    elif again or since is None:
        repeats, start = repeats + 1, now
    # What was made in place of those that are held takes no further place, unless they still wait.
    held = len(early) + known.held if wait_until(known, now) else len(early) - again + max(again, known.held)
    ran = any(s.lived for s in setbacks)
    free = SHARED_TRIES if held > 1 and not whole else FREE_TRIES
    tries = CHARGED_TRIES if charged else free if ran else REFUSED_TRIES
    pause = HASTY_SECONDS if any(s.lived < HASTY_SECONDS for s in early) else 0.0
    until = start + max(pause, delay_of(max(repeats, charged) - tries))
    if not whole and is_whole(known, now):  # pods that end while the whole job waits do not change the back-off
        whole, until = True, max(until, wait_until(known, now))
    return revise(
        known,
        reason=reason,
        repeats=repeats,
        held=0 if whole else held,
        lived_seconds=max(known.lived_seconds if repeats > 1 else 0.0, *(round(s.lived, 1) for s in early), 0.0),
        since=format_time(start),
        until=format_time(until) if until > now else None,
        step=max((s for s in (step, known.step) if s is not None), default=None),
    )


def _least(setback: Setback, *, worked: bool) -> float:
    """How long a pod or world has to have run not to have failed at its start."""
    if worked:
        return WORKED_SECONDS
    return CUT_SECONDS if setback.is_cut else STABLE_SECONDS


def digest_cause(spec: api.Spec) -> str:
    """A digest of all that may be the cause of failures. A new size mends nothing, and autoscalers change it often."""
    dumped = spec.dump()
    for name in ("replicas", "scaling", "runPolicy"):
        dumped.pop(name, None)
    sizes = ("minReplicas", "maxReplicas", "spares", "metrics")
    dumped["elasticPolicy"] = {k: v for k, v in (dumped.get("elasticPolicy") or {}).items() if k not in sizes}
    return hashlib.sha256(json.dumps(dumped, sort_keys=True).encode()).hexdigest()[:12]


def keep(backoff: api.BackoffStatus | None, spec: api.Spec) -> api.BackoffStatus | None:
    """The back-off status after a change of the spec: none if it may have mended what failed."""
    return backoff if backoff is not None and backoff.cause == digest_cause(spec) else None


def note_error(backoff: api.BackoffStatus, error: str, nodes: Collection[str]) -> api.BackoffStatus:
    """The back-off status with the program's error recorded; "" if the program was not the cause."""
    same = bool(error) and error == backoff.error
    seen = sorted({*(backoff.nodes if same else ()), *nodes})[:ACQUITTING_NODES]
    return revise(
        backoff,
        error=error or None,
        alike=backoff.alike + 1 if same else 1 if error else 0,
        nodes=seen if error else [],
    )


def is_hopeless(backoff: api.BackoffStatus, nodes: Collection[str]) -> bool:
    """Whether the same program error occurred so often that retrying is pointless.

    `nodes`: the nodes of the job. If there are several, the error must have occurred on two, as one could be broken."""
    return backoff.alike >= HOPELESS_TRIES and len(backoff.nodes) >= min(ACQUITTING_NODES, len(set(nodes)))


def delay_of(failures: int) -> float:
    """Delay in seconds: 1, 2, 4 … 300 for the first, second, third … failure after the free ones."""
    return find_pause(failures, first=1.0, most=MAX_SECONDS) if failures > 0 else 0.0


def wait_until(backoff: api.BackoffStatus | None, now: float) -> float:
    """The end of the back-off in seconds since the epoch; 0 if there is none."""
    until = parse_time(backoff.until) if backoff else None
    if until is None or until <= now or until > now + MAX_SECONDS:  # last condition: the clock was set back
        return 0.0
    return until


def is_whole(backoff: api.BackoffStatus | None, now: float) -> bool:
    """Whether the whole job is backing off."""
    return backoff is not None and not backoff.held and wait_until(backoff, now) > 0


def find_held(
    backoff: api.BackoffStatus | None, missing: int, pods: Iterable[Pod], now: float
) -> tuple[int, float | None]:
    """How many of the missing pods must not be created yet, and when to look again because time passes."""
    if backoff is None or not missing:
        return 0, None
    if until := wait_until(backoff, now):
        return missing if is_whole(backoff, now) else min(missing, backoff.held), until
    tries, at = _find_tries(backoff, missing, [p for p in pods if p.live], now)
    return missing - tries, at


def _find_tries(backoff: api.BackoffStatus, missing: int, live: Sequence[Pod], now: float) -> tuple[int, float | None]:
    """How many of the missing pods may be created after a wait, and when that may be more.

    If pods have failed at their start more than once, or no other has started, one tries for all: nodes that refuse
    pods would refuse each of them, and nodes that evict pods would do that again. If many have failed, a few try.
    """
    since, is_again = parse_time(backoff.since), backoff.repeats >= SHARED_TRIES
    have_others_started = any(p.started for p in live)
    if since is None or not backoff.held or (not is_again and have_others_started and backoff.held <= AT_ONCE):
        return missing, None
    tried = [p for p in live if p.created >= since - BOOKED_SECONDS]
    lived = min(backoff.lived_seconds, STABLE_SECONDS)  # with a deadline, none lives longer than the last one
    has_to_live = LONGER * lived + 1.0 if lived else 0.0
    proven = min((p.began + has_to_live for p in tried if p.began is not None and p.started), default=None)
    if proven is not None and proven <= now:
        return missing, None
    tries = AT_ONCE if not is_again and have_others_started else 1
    return min(missing, max(0, tries - len(tried))), proven


def forget(backoff: api.BackoffStatus | None, now: float) -> api.BackoffStatus | None:
    """The back-off status, or None if the last failure is much older than its delay."""
    since = parse_time(backoff.since) if backoff else None
    if backoff is None or since is None or since > now + 1:  # last condition: the clock was set back
        return None
    waited = (parse_time(backoff.until) or since) - since
    ran = max(0.0, backoff.lived_seconds - STABLE_SECONDS)  # until a deadline
    return None if now - since > FORGET_SECONDS + 2 * (waited + ran) else backoff


def describe(status: api.Status) -> tuple[str, str] | None:
    """(reason, message) of a condition; None unless several failures in a row, or one before any world, are known."""
    backoff = status.restarts.backoff
    if backoff is None or (backoff.repeats < 2 and backoff.until is None and status.rendezvous.generation > 0):
        return None
    failure, since = status.last_failure, parse_time(backoff.since) or 0.0
    what, whose = "start", "the last pods have not failed" if failure else "no pod has failed"
    last = f"; {whose}: they were evicted or deleted, or ended, soon after their start"
    if failure and (parse_time(failure.time) or since) >= since:
        what, last = "failure", f"; last: {failure.message}"
    again = f"; next attempt at {backoff.until}" if backoff.until else ""
    many = f"{backoff.repeats} consecutive {what}s" if backoff.repeats > 1 else f"a {what}"
    first = "; one pod is tried before the others" if backoff.held > 1 and backoff.repeats >= SHARED_TRIES else ""
    return backoff.reason, f"{many} without progress{again}{first}{last}"[:4096]
