"""The conditions that tools look for in objects of any kind. Pure.

kstatus, by which Flux and others wait, knows `Reconciling` and `Stalled`: the first while the job is on its way to what
its spec asks for, the second if it will not get there unless somebody changes it. A job that trains, is suspended or is
complete has neither. They say nothing that other conditions do not say.
"""

from __future__ import annotations

from elasticjob_operator import api
from elasticjob_operator.plan import reporting

RECONCILING, STALLED = "Reconciling", "Stalled"
_REFUSED = ("InvalidSpec", "InvalidTemplate")  # changes of a running job that it does not follow


def summarize(status: api.Status, now: float) -> list[api.Condition]:
    """The conditions of this status with those of its summary. They are added when they become true."""
    stalled, reconciling = find_stalled(status), find_reconciling(status)
    conditions = _with(status.conditions, STALLED, stalled, now)
    return _with(conditions, RECONCILING, None if stalled else reconciling, now)


def find_stalled(status: api.Status) -> api.Condition | None:
    """The condition that says why the job will not get further."""
    failed, degraded = status.condition("Failed"), status.condition("Degraded")
    if failed is not None and failed.status == "True":
        return failed
    return degraded if degraded is not None and degraded.status == "True" and degraded.reason in _REFUSED else None


def find_reconciling(status: api.Status) -> api.Condition | None:
    """The condition that says what a job waits for that does not train yet, or not again."""
    if any(status.is_true(type) for type in ("Running", "Complete", "Suspended")):
        return None
    waits = status.condition("Running") or status.condition("Degraded")
    return waits or api.Condition(type=RECONCILING, status="True", reason="Pending")


def _with(conditions: list[api.Condition], type: str, cause: api.Condition | None, now: float) -> list[api.Condition]:
    known = next((c for c in conditions if c.type == type), None)
    if cause is not None:
        return reporting.with_condition(conditions, type, True, cause.reason, cause.message, now)
    if known is None or known.status == "False":
        return conditions
    return reporting.with_condition(conditions, type, False, "NothingToTell", "", now)
