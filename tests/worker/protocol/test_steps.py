"""A script that begins at its first step again is named, and no other one."""

from __future__ import annotations

import math

import pytest

from elasticjob.protocol import wire
from elasticjob.protocol.steps import Numbers, OwnTimes, Saves, Steps, read_progress


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


def test_what_a_worker_says_of_its_speed() -> None:
    told = {"samplesPerSecond": 512.5, "tokensPerSecond": "many"}
    assert read_progress(told, 2, None) == wire.Progress(generation=2, samples_per_second=512.5)


def test_a_checkpoint_grows_old_also_when_its_process_is_gone() -> None:
    saves = Saves()
    assert saves.find_ages(0.0) == {}
    saves.report({"checkpointAges": {"File": 5.0, "Memory": 0.5}}, 100.0)
    saves.report({"checkpointAges": {"Memory": 0.2}}, 110.0)
    saves.report({"step": 3}, 111.0)
    assert saves.find_ages(112.0) == {"File": 17.0, "Memory": 2.2}


@pytest.mark.parametrize(
    "ages", [None, 3, [], {"Copies": 1.0}, {"Disk": 1.0}, {"File": -1.0}, {"File": float("nan")}, {"File": "1"}]
)
def test_ages_that_are_none_are_ignored(ages: object) -> None:
    saves = Saves()
    saves.report({"checkpointAges": ages}, 100.0)
    assert saves.find_ages(101.0) == {}


@pytest.mark.parametrize(
    ("seen", "age"),
    [
        pytest.param([(None, 1)], None, id="no spec.checkpoints"),
        pytest.param([(wire.Checkpoint(), 1), (wire.Checkpoint(1, 2), 10)], 90, id="the first one"),
        pytest.param(
            [(wire.Checkpoint(1, 2), 10), (wire.Checkpoint(2, 2), 60), (wire.Checkpoint(2, 1), 70)], 40, id="next"
        ),
        pytest.param(
            [(wire.Checkpoint(restoring=True), 1), (wire.Checkpoint(4, 2, True), 2)], None, id="it begins with"
        ),
        pytest.param(
            [(wire.Checkpoint(4, 2, True), 2), (wire.Checkpoint(4, 2), 3), (wire.Checkpoint(5, 2), 50)], 50, id="then"
        ),
        pytest.param([(wire.Checkpoint(), 1), (wire.Checkpoint(1, 0), 10)], None, id="nobody holds it"),
    ],
)
def test_copies_are_as_old_as_the_agent_has_known_them(
    seen: list[tuple[wire.Checkpoint | None, float]], age: float | None
) -> None:
    saves = Saves()
    for checkpoint, at in seen:
        saves.note_copies(checkpoint, at)
    assert saves.find_ages(100.0) == ({} if age is None else {"Copies": age})


def tell(step: int = 5, rank: int = 2, wrong: tuple[str, ...] = (), **metrics: float) -> wire.Progress:
    return wire.Progress(generation=1, rank=rank, step=step, metrics=metrics, not_finite=list(wrong))


def test_a_metric_that_is_no_number_at_another_rank_of_the_pod_is_told_with_that_rank() -> None:
    numbers = Numbers()
    numbers.report(0, tell(loss=1.0))
    numbers.report(3, tell(rank=5, wrong=("loss", "norm")))
    numbers.report(1, tell(rank=3, wrong=("norm",)))
    found = numbers.complete(tell(loss=1.0), 2)
    assert (found.metrics, found.not_finite, found.not_finite_at) == ({"loss": 1.0}, [], {"norm": 3, "loss": 5})
    numbers.report(3, tell(rank=5, loss=1.0))
    numbers.report(1, tell(rank=3, loss=1.0))
    assert numbers.complete(tell(loss=1.0), 2) == tell(loss=1.0)


def test_numbers_of_the_log_are_those_of_a_report_unless_the_script_reports_them() -> None:
    numbers = Numbers()
    numbers.note("loss", 0, 2.5)
    numbers.note("norm", 1, math.nan)
    found = numbers.complete(tell(), 4)
    assert (found.metrics, found.not_finite, found.not_finite_at) == ({"loss": 2.5}, [], {"norm": 5})
    numbers.note("loss", 0, math.nan)
    found = numbers.complete(found, 4)
    assert (found.metrics, found.not_finite) == ({}, ["loss"])
    numbers.note("loss", 0, 2.0)
    assert numbers.complete(found, 4).metrics == {"loss": 2.0} and not numbers.complete(found, 4).not_finite
    numbers.report(0, tell(loss=9.0))
    assert numbers.complete(tell(loss=9.0), 4).metrics == {"loss": 9.0}
    for i in range(100):
        numbers.note(f"metric{i}", 0, 1.0)
    assert len(numbers.complete(tell(), 4).metrics) <= wire.MAX_METRICS
