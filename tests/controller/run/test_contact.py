"""When a replica no longer sees the cluster."""

from __future__ import annotations

import pytest

from elasticjob_operator.run.contact import BLIND_SECONDS, Failing, find_blindness

NOW = 1000.0
LONG = NOW - BLIND_SECONDS - 1.0
EXPIRED = Failing("/api/v1/pods", LONG, "401 Unauthorized")


@pytest.mark.parametrize(
    ("heard", "failing", "told"),
    [
        pytest.param(NOW - 1, [], "", id="heard a moment ago"),
        pytest.param(NOW - 30, [], "", id="quiet"),
        pytest.param(LONG, [], "the API server has not answered", id="cut off"),
        pytest.param(NOW - 1, [EXPIRED], "the watch of /api/v1/pods has failed", id="refused"),
        pytest.param(NOW - 1, [Failing("/api/v1/nodes", NOW - 5, "x")], "", id="refused a moment ago"),
        pytest.param(NOW - 1, [Failing("/api/v1/nodes", NOW - 5, "x"), EXPIRED], "401 Unauthorized", id="the longest"),
    ],
)
def test_blindness(heard: float, failing: list[Failing], told: str) -> None:
    found = find_blindness(heard, failing, NOW)
    assert told in found
    assert bool(found) is bool(told)
