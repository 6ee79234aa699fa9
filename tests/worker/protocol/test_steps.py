"""A script that begins at its first step again is named, and no other one."""

from __future__ import annotations

import pytest

from elasticjob.protocol import wire
from elasticjob.protocol.steps import OwnTimes, Steps, read_progress


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        pytest.param([(1, 1), (1, 480), (2, 1)], [2], id="from the first step again"),
        pytest.param([(1, 0), (1, 480), (2, 0)], [2], id="counted from 0"),
        pytest.param([(1, 480), (2, 0), (2, 12), (3, 1)], [1, 3], id="every time"),
        pytest.param([(1, 480), (2, 470)], [], id="from a checkpoint"),
        pytest.param([(1, 9), (2, 1)], [], id="hardly begun"),
        pytest.param([(1, 480), (1, 0), (1, 480), (2, 0)], [], id="counted by epoch"),
        pytest.param([(1, 480), (2, None)], [], id="no step"),
        pytest.param([(1, 480), (1, 481)], [], id="one process"),
    ],
)
def test_reports(reports: list[tuple[int, int | None]], told: list[int]) -> None:
    steps = Steps()
    messages = {number: steps.report(pid, step) for number, (pid, step) in enumerate(reports)}
    assert [number for number, message in messages.items() if message] == told
    assert all("loads no checkpoint" in messages[number] and "docs/" in messages[number] for number in told)  # type: ignore[operator]


def test_the_slowest_rank_of_the_pod_is_reported() -> None:
    times = OwnTimes()
    assert times.find_slowest(8) is None
    for local_rank, own in ((0, 1.0), (2, 3.0), (1, 2.0), (2, 2.5)):
        times.report(local_rank, {"ownSeconds": own})
    assert times.find_slowest(8) == (10, 2.5)


@pytest.mark.parametrize("own", [None, 0, -1.0, "1", float("nan"), float("inf")])
def test_own_times_that_are_none_are_ignored(own: object) -> None:
    times = OwnTimes()
    times.report(0, {"ownSeconds": own})
    assert times.find_slowest(0) is None


def test_a_report_is_read_and_what_is_malformed_left_out() -> None:
    message = {
        "rank": 9,
        "step": 3,
        "total": "x",
        "stepSeconds": 0.5,
        "metrics": {"loss": 1, "name": "x", "inf": 1e999},
    }
    assert read_progress(message, 2, (9, 0.4)) == wire.Progress(
        generation=2, rank=9, step=3, step_seconds=0.5, own_seconds=0.4, slowest_rank=9, metrics={"loss": 1.0}
    )
    assert read_progress({"metrics": [1]}, 2, None) == wire.Progress(generation=2)


@pytest.mark.parametrize("broken", [None, -1, "1", float("nan"), float("inf"), []])
def test_what_a_worker_says_of_its_batch(broken: object) -> None:
    told = {"batchSize": 128, "batchSeconds": 0.5, "noiseScale": 300.0}
    assert read_progress(told, 2, None) == wire.Progress(
        generation=2, batch_size=128, batch_seconds=0.5, noise_scale=300.0
    )
    for name in told:
        left = read_progress(told | {name: broken}, 2, None)
        assert None in (left.batch_size, left.batch_seconds, left.noise_scale)
    assert read_progress({"batchSize": 0}, 2, None) == wire.Progress(generation=2)
