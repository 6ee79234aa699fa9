"""Which lines of a log were written in one world."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from controller import client_fixture as given
from elasticjob_operator.client import logs
from elasticjob_operator.client.connection import Connection
from elasticjob_operator.client.logs import Window, find_window
from elasticjob_operator.client.model import Job, Pod
from elasticjob_operator.times import parse_time

FORMED = {1: "2026-01-01T00:00:00.500Z", 2: "2026-01-01T00:01:00Z", 4: "2026-01-01T00:02:00Z"}


def make_job() -> Job:
    timeline = [{"generation": generation, "time": time, "size": 2} for generation, time in FORMED.items()]
    return Job.parse({"metadata": {"name": "digits", "namespace": "ml"}, "status": {"timeline": timeline}})


@pytest.mark.parametrize(
    ("generation", "since", "until"),
    [
        pytest.param(1, 1, 2, id="the first one"),
        pytest.param(2, 2, 4, id="the next one is not known"),
        pytest.param(4, 4, None, id="the last one"),
    ],
)
def test_a_world_lasts_until_the_next_one(generation: int, since: int, until: int | None) -> None:
    first, last = (None if one is None else parse_time(FORMED[one]) for one in (since, until))
    assert first is not None
    assert find_window(make_job(), generation) == Window(first, last)


@pytest.mark.parametrize("generation", [3, 5])
def test_a_world_that_the_timeline_does_not_have(generation: int) -> None:
    assert find_window(make_job(), generation) is None


@pytest.mark.parametrize(
    ("stamp", "is_covered"),
    [
        pytest.param("2026-01-01T00:00:00.499999999Z", False, id="before"),
        pytest.param("2026-01-01T00:00:00.5Z", True, id="at its start"),
        pytest.param("2026-01-01T00:00:59.999999999Z", True, id="in it"),
        pytest.param("2026-01-01T01:00:30+01:00", True, id="in another zone"),
        pytest.param("2026-01-01T00:01:00Z", False, id="in the next one"),
        pytest.param(None, False, id="nobody knows when"),
    ],
)
def test_lines_by_their_time(stamp: str | None, is_covered: bool) -> None:
    window = find_window(make_job(), 1)
    assert window is not None
    assert window.covers(stamp) is is_covered


async def test_whoever_follows_a_large_job_asks_for_its_pods_in_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All viewers of a dashboard share its processor, and the list of 5,000 pods takes a second of it."""
    monkeypatch.setattr(logs, "_LOOK_EVERY", 0.01)
    looks = 0

    async def look() -> tuple[Job | None, list[Pod]]:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.1)
        return given.job(), []

    merger = logs.Merger(cast("Connection", None), "team", look, follow=True, tail=None)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.5), contextlib.aclosing(merger.lines()) as lines:
            async for line in lines:
                raise AssertionError(line)
    assert 1 <= looks <= 2
