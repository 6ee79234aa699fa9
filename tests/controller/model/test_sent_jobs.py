"""What is told of a change of a job that runs in another cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.builders import make_job, make_spec
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.model.sent_jobs import Sent, note

WAITS = Quota(False, "Pending", "it waits", is_sent_on=True)
THERE = Quota(True, "Admitted", "it runs in another cluster", is_sent_on=True, cluster="there")
ELSEWHERE = replace(THERE, cluster="elsewhere")


@pytest.mark.parametrize(
    ("before", "quota", "suspend", "after", "is_told"),
    [
        pytest.param(None, None, False, None, False, id="a job without a queue"),
        pytest.param(None, WAITS, False, None, False, id="it is sent with what it has then"),
        pytest.param(None, THERE, False, Sent("there", 2), False, id="it is sent"),
        pytest.param(Sent("there", 2), THERE, False, Sent("there", 2), False, id="nothing has changed"),
        pytest.param(Sent("there", 1), THERE, False, Sent("there", 2), True, id="it has changed"),
        pytest.param(Sent("there", 1), THERE, True, Sent("there", 2), False, id="it is suspended, which counts"),
        pytest.param(Sent("there", 1), ELSEWHERE, False, Sent("elsewhere", 2), False, id="it is sent anew"),
        pytest.param(Sent("there", 1), WAITS, False, None, False, id="it has come back"),
    ],
)
def test_a_change_is_told_once(
    before: Sent | None, quota: Quota | None, suspend: bool, after: Sent | None, is_told: bool
) -> None:
    job = make_job(make_spec(2, 4, managedBy="kueue.x-k8s.io/multikueue", runPolicy={"suspend": suspend}))
    found, told = note(before, replace(job, generation=2), quota)
    assert (found, bool(told)) == (after, is_told)
    assert not told or ("cluster there" in told and "suspend and resume" in told)
