"""The own time of a rank is what it needs for a step without the time for which it waits for the others."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from elasticjob import env
from elasticjob.channel import pace


@pytest.mark.parametrize(
    ("added", "now", "expected"),
    [
        pytest.param([], 100, None, id="nothing measured"),
        pytest.param([(at, 1.0) for at in range(0, 50, 10)], 50, None, id="no whole window yet"),
        pytest.param([(at, 1.0) for at in range(0, 70, 10)], 60, 1.0, id="a whole window"),
        pytest.param([(0, 1.0), (20, 1.0), (40, 1.0), (59, 1.0)], 60, None, id="too few steps"),
        pytest.param([*((at, 1.0) for at in range(0, 60, 6)), (60, 50.0)], 60, 1.0, id="one slow step is no pace"),
        pytest.param(
            [(at, 9.0 if at < 100 else 1.0) for at in range(0, 170, 10)], 165, 1.0, id="old steps are dropped"
        ),
    ],
)
def test_the_median_of_a_window(added: list[tuple[float, float]], now: float, expected: float | None) -> None:
    samples = pace.Samples(60)
    for at, own in added:
        samples.add(at, own)
    assert samples.median(now) == expected


def test_it_is_bounded() -> None:
    samples = pace.Samples(60)
    for at in range(100_000):
        samples.add(at / 10_000, 1.0)
    assert samples.median(60) is not None


@pytest.mark.parametrize(
    ("value", "measures"),
    [("", False), ("0", False), ("-5", False), ("soon", False), ("60", True)],
)
def test_it_measures_only_where_the_job_asks_for_it(
    value: str, measures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[pace.Stopwatch] = []

    def install(stopwatch: pace.Stopwatch) -> None:
        installed.append(stopwatch)

    monkeypatch.setattr(pace.Stopwatch, "install", install)
    assert (pace.start({env.STRAGGLER_SECONDS: value}) is not None) is measures
    assert len(installed) == measures
    assert pace.start({}) is None


def run_steps(stopwatch: pace.Stopwatch, count: int, *, work: float, wait: float) -> None:
    """Steps that compute for `work` seconds and then wait for `wait` seconds, as DDP does after the backward pass."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(12)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        time.sleep(work)
        torch.autograd.backward(model(torch.ones(1, 4)).sum())
        time.sleep(wait)
        stopwatch.before_step(optimizer)
        optimizer.step()
        optimizer.zero_grad()


def measured(work: float, wait: float) -> list[float]:
    samples = pace.Samples(0.001)  # so that every other step is measured
    run_steps(pace.Stopwatch(samples), 9, work=work, wait=wait)
    return [own for _, own in samples.found]


def test_a_wait_for_others_is_no_own_time() -> None:
    found = measured(work=0.02, wait=0.2)
    assert len(found) >= 3
    assert min(found) >= 0.02
    assert min(found) < 0.2, "the wait is left out"


def test_all_own_work_counts() -> None:
    assert min(measured(work=0.1, wait=0.0)) >= 0.1


def test_a_step_of_another_optimizer_ends_no_measurement() -> None:
    samples = pace.Samples(0.001)
    stopwatch = pace.Stopwatch(samples)
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    first, second = (torch.optim.SGD([p], lr=0.1) for p in parameters)
    for _ in range(4):
        for parameter, optimizer in zip(parameters, (first, second), strict=True):
            torch.autograd.backward(parameter.sum() * 2)
            stopwatch.before_step(optimizer)
            optimizer.step()
            optimizer.zero_grad()
    assert samples.found


def test_no_hook_is_left_behind() -> None:
    samples = pace.Samples(1e9)
    stopwatch = pace.Stopwatch(samples)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(3):
        torch.autograd.backward(parameter.sum())
        stopwatch.before_step(optimizer)
    assert not parameter._backward_hooks
    assert len(samples.found) == 1, "one step in many is measured"


@dataclass
class Moment:
    """An event of a GPU's stream."""

    at: float  # milliseconds
    has_passed: bool = True

    def elapsed_time(self, last: Moment) -> float:
        return last.at - self.at

    def query(self) -> bool:
        return self.has_passed


@pytest.mark.parametrize(("has_passed", "seconds"), [(True, 0.25), (False, None)])
def test_a_device_that_is_behind_is_asked_again(has_passed: bool, seconds: float | None) -> None:
    assert pace._Cuda().between(Moment(1000.0), Moment(1250.0, has_passed)) == seconds
