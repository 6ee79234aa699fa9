"""The conditions by which kstatus judges a job, over all that a job can be."""

from __future__ import annotations

import pytest

import kstatus
from controller.builders import NOW
from elasticjob_operator import api
from elasticjob_operator.plan import reporting, summary


def condition(type: str, truth: reporting.Truth, reason: str, message: str = "") -> api.Condition:
    return api.Condition(type=type, status=truth, reason=reason, message=message)


TRAINS = condition("Running", "True", "WorldRunning")
WAITS = condition("Running", "False", "WaitingForPods", "0 of 2 pods")
SUSPENDED = condition("Suspended", "True", "Suspended")
RESUMED = condition("Suspended", "False", "Resumed")
ENDED = condition("Running", "False", "Completed")
INVALID = condition("Degraded", "True", "InvalidSpec", "spec.replicas")
PULL = condition("Degraded", "True", "ImagePullFailed", "no such image")


@pytest.mark.parametrize(
    ("conditions", "expected", "reason"),
    [
        pytest.param([], kstatus.IN_PROGRESS, "Pending", id="new"),
        pytest.param([WAITS], kstatus.IN_PROGRESS, "WaitingForPods", id="starts"),
        pytest.param([WAITS, PULL], kstatus.IN_PROGRESS, "WaitingForPods", id="does not start yet"),
        pytest.param(
            [condition("Degraded", "True", "TemplateNotFound")], kstatus.IN_PROGRESS, "TemplateNotFound", id="template"
        ),
        pytest.param([TRAINS], kstatus.CURRENT, "", id="trains"),
        pytest.param([TRAINS, PULL], kstatus.CURRENT, "", id="trains with fewer pods"),
        pytest.param([TRAINS, INVALID], kstatus.FAILED, "InvalidSpec", id="does not follow its spec"),
        pytest.param([condition("Running", "False", "Regrouping")], kstatus.IN_PROGRESS, "Regrouping", id="regroups"),
        pytest.param([condition("Running", "False", "Suspended")], kstatus.IN_PROGRESS, "Suspended", id="saves"),
        pytest.param([condition("Running", "False", "Suspended"), SUSPENDED], kstatus.CURRENT, "", id="suspended"),
        pytest.param([WAITS, RESUMED], kstatus.IN_PROGRESS, "WaitingForPods", id="resumed"),
        pytest.param([ENDED, condition("Complete", "True", "Completed")], kstatus.CURRENT, "", id="complete"),
        pytest.param([ENDED, condition("Failed", "True", "CrashLoop", "x")], kstatus.FAILED, "CrashLoop", id="failed"),
    ],
)
def test_what_kstatus_says(conditions: list[api.Condition], expected: str, reason: str) -> None:
    found = summary.summarize(api.Status(observed_generation=1, conditions=conditions), NOW)
    status = api.Status(observed_generation=1, conditions=found)
    assert kstatus.compute({"metadata": {"generation": 1}, "status": status.dump()}) == expected
    told = [c.reason for c in found if c.type in (summary.RECONCILING, summary.STALLED) and c.status == "True"]
    assert told == ([reason] if reason else [])
    assert summary.summarize(status, NOW + 1) == found, "once"


def test_what_is_over_is_false() -> None:
    before = summary.summarize(api.Status(conditions=[WAITS]), NOW)
    others = [c for c in before if c.type != "Running"]
    after = api.Status(conditions=summary.summarize(api.Status(conditions=[TRAINS, *others]), NOW))
    assert not after.is_true(summary.RECONCILING)
    assert after.condition(summary.RECONCILING) is not None
