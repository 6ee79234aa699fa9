"""The bound of refused writes that all ways share in which a job writes."""

from __future__ import annotations

import pytest

from elasticjob_operator.apply.refused_writes import MOST, OFTEN, SECONDS, RefusedWrites
from elasticjob_operator.rest.errors import ApiError

REFUSED = ApiError(403, "Forbidden", "exceeded quota")


def note(*times: float, error: ApiError = REFUSED) -> RefusedWrites:
    refused = RefusedWrites()
    for at in times:
        refused.note("u", error, at)
    return refused


@pytest.mark.parametrize(
    ("times", "writes", "until"),
    [
        pytest.param((), 1, 100.0, id="nothing was refused"),
        pytest.param((), 3 * MOST, 100.0, id="more than the bound at once: the first refusal stops the others"),
        pytest.param((99.0,) * (MOST - 2), 2, 100.0, id="they fit in"),
        pytest.param((60.0, *(99.0,) * (MOST - 2)), 2, 120.0, id="one has to be forgotten first"),
        pytest.param((60.0, 70.0, *(99.0,) * (MOST - 2)), 2, 130.0, id="two have to be forgotten first"),
        pytest.param((30.0,) * MOST, 1, 100.0, id="they are forgotten"),
    ],
)
def test_when_writes_may_be_tried(times: tuple[float, ...], writes: int, until: float) -> None:
    assert note(*times).wait_until("u", writes, 100.0) == until
    assert note(*times).wait_until("another", writes, 100.0) == 100.0


def test_what_a_job_can_do_without_leaves_room_for_the_rest() -> None:
    refused, tried, now = RefusedWrites(), list[float](), 0.0
    while now < 10 * SECONDS:
        now = refused.wait_for_extras("u", now)
        refused.note("u", REFUSED, now)
        tried.append(now)
        assert refused.wait_until("u", MOST - OFTEN, now) == now
    assert len(tried) < 11 * OFTEN


@pytest.mark.parametrize("status", [0, 404, 409, 429, 503])
def test_what_passes_is_not_counted(status: int) -> None:
    passing = ApiError(status, "Reason", "message")
    assert note(*(99.0,) * MOST, error=passing).wait_until("u", MOST, 100.0) == 100.0
