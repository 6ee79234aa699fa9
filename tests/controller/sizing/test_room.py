"""Tables for cluster capacity: what is withdrawn, when it is requested again, and when growing is worthwhile."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import NOW, make_pod
from elasticjob_operator import api
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.sizing import growth, room
from elasticjob_operator.times import parse_time


def waiting(index: int, since: float) -> Pod:
    return make_pod(index, "Pending", unschedulable=NOW - since, created=NOW - since)


@pytest.mark.parametrize(
    ("before", "ages", "spare", "withdrawn", "delay"),
    [
        pytest.param(api.CapacityStatus(), [10, 10], 2, set(), None, id="in-time"),
        pytest.param(api.CapacityStatus(), [60, 70], 2, {"u0", "u1"}, 60, id="overdue"),
        pytest.param(api.CapacityStatus(), [60, 70], 1, {"u1"}, 60, id="never-below-min"),
        pytest.param(api.CapacityStatus(), [60, 70], 0, set(), None, id="all-needed"),
        pytest.param(api.CapacityStatus(attempts=2), [60], 1, {"u0"}, 240, id="backs-off"),
        pytest.param(api.CapacityStatus(attempts=20), [60], 1, {"u0"}, 600, id="backs-off-with-a-limit"),
        pytest.param(api.CapacityStatus(attempts=5000), [60], 1, {"u0"}, 600, id="after-weeks"),
    ],
)
def test_withdraw(
    before: api.CapacityStatus, ages: list[float], spare: int, withdrawn: set[str], delay: float | None
) -> None:
    pods = [waiting(i, age) for i, age in enumerate(ages)]
    after, chosen = room.withdraw(before, pods, spare_room=spare, timeout=60, now=NOW)
    assert chosen == withdrawn
    assert after.withdrawn == len(withdrawn)
    assert parse_time(after.retry_time) == (None if delay is None else NOW + delay)


@pytest.mark.parametrize(
    ("fields", "status", "held"),
    [
        pytest.param({"created": NOW - 1, "scheduled": NOW - 0.5}, {}, 0.0, id="placed-at-once"),
        pytest.param({"created": NOW - 60, "scheduled": NOW - 10}, {}, NOW + 50, id="waited-for-room"),
        pytest.param(
            {"created": NOW - 1, "scheduled": NOW - 1},
            {"capacity": api.CapacityStatus(attempts=1)},
            NOW + 59,
            id="probes",
        ),
        pytest.param(
            {"created": NOW - 60, "scheduled": NOW - 10},
            {"goodput": api.GoodputStatus(last_recovery_seconds=10)},
            NOW - 10 + 200,
            id="costly-change",
        ),
        pytest.param(
            {"created": NOW - 60, "scheduled": NOW - 10},
            {"goodput": api.GoodputStatus(last_recovery_seconds=3600)},
            NOW - 10 + 300,
            id="an-outage-is-no-measure",
        ),
    ],
)
def test_held_until(fields: dict[str, Any], status: dict[str, Any], held: float) -> None:
    assert growth.held_until(make_pod(0, **fields), api.Status(**status)) == held


@pytest.mark.parametrize(
    ("remaining", "cost", "worth"),
    [
        pytest.param(None, 5.0, True, id="end-unknown"),
        pytest.param(100, None, True, id="cost-unknown"),
        pytest.param(100, 5.0, True, id="long-way-to-go"),
        pytest.param(8, 5.0, False, id="nearly-done"),
    ],
)
def test_is_worth_growing(remaining: int | None, cost: float | None, worth: bool) -> None:
    status = api.Status(
        progress=api.ProgressStatus(estimated_remaining_seconds=remaining),
        goodput=api.GoodputStatus(last_recovery_seconds=cost),
    )
    assert growth.is_worth_growing(status, 2, 4) is worth
