"""The span that a worker's own spans belong to is that of its world, where jobs are traced."""

from __future__ import annotations

import pytest

from elasticjob import env

UID = "7c0e3ec4-5d27-4be6-9a37-3c7a9f2c1e11"
OURS = "00-7c0e3ec45d274be69a373c7a9f2c1e11-8000000000000000-01"
THEIRS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
WORLD_12 = "00-7c0e3ec45d274be69a373c7a9f2c1e11-000000000000000c-01"


@pytest.mark.parametrize(
    ("uid", "before", "after"),
    [
        pytest.param(UID, OURS, WORLD_12, id="of the job"),
        pytest.param(UID, WORLD_12.replace("c-01", "b-01"), WORLD_12, id="of the world before"),
        pytest.param(UID, THEIRS, THEIRS, id="of whoever started the job"),
        pytest.param(UID, "", "", id="empty"),
        pytest.param("", "00--8000000000000000-01", "00--8000000000000000-01", id="without a UID"),
    ],
)
def test_a_worker_belongs_to_its_world(uid: str, before: str, after: str) -> None:
    environ = {env.UID: uid, env.TRACEPARENT: before}
    env.enter_span(environ, 12)
    assert environ == {env.UID: uid, env.TRACEPARENT: after}


def test_a_job_that_is_not_traced_has_no_context() -> None:
    environ = {env.UID: UID}
    env.enter_span(environ, 12)
    assert environ == {env.UID: UID}
