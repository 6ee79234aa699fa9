"""What a job's reports say of sizes that it has never had."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.counted_work import count_work
from elasticjob_operator.pool import throughput
from elasticjob_operator.pool.throughput import Model


def learned(*reports: tuple[int, float], times: int = 20, now: float = 0.0) -> Model:
    model = Model()
    for size, seconds in reports:
        for _ in range(times):
            model = model.learn(size, seconds, now)
    return model


def test_before_anything_is_measured_more_pods_are_faster_and_nothing_is_certain() -> None:
    model = Model()
    assert 1.0 < model.speed(2) / model.speed(1) < 2.0
    assert model.fit.doubt(16, than=1) > 0.1


def test_the_first_report_sets_the_scale() -> None:
    model = learned((2, 40.0))
    assert 1 / model.speed(2) == pytest.approx(40.0, rel=0.02)
    assert 40.0 < 1 / model.speed(1) < 80.0


@pytest.mark.parametrize(
    ("shared", "fixed", "growth"),
    [
        pytest.param(1.0, 0.0, 0.0, id="perfect"),
        pytest.param(0.8, 0.2, 0.0, id="a part that is not shared"),
        pytest.param(0.9, 0.05, 0.02, id="communication that grows"),
    ],
)
def test_reports_at_three_sizes_tell_of_a_fourth(shared: float, fixed: float, growth: float) -> None:
    def truth(size: int) -> float:
        return shared / size + fixed + growth * (size - 1)

    model = learned(*((size, truth(size)) for size in (1, 2, 8)))
    for size in (4, 12):
        assert 1 / model.speed(size) == pytest.approx(truth(size), rel=0.12)


def test_old_reports_are_forgotten() -> None:
    """The job has become twice as slow: it reads other data now."""
    old = learned((4, 1.0), now=0.0)
    half_lives = 8 * throughput.HALF_LIFE_SECONDS
    assert 1 / old.learn(4, 2.0, half_lives).speed(4) == pytest.approx(2.0, rel=0.15)
    assert 1 / old.learn(4, 2.0, 1.0).speed(4) == pytest.approx(1.05, rel=0.05)


def test_a_job_that_has_long_had_one_size_remembers_how_it_scaled() -> None:
    """Otherwise the prior would say that its size is the best one, and nobody would try a larger one again."""
    model = learned((1, 1.0), (4, 1 / 4), (16, 1 / 16))
    for hour in range(20):
        model = model.learn(16, 1 / 16, 3600.0 * hour, weight=60)
    assert model.speed(48) > 1.5 * model.speed(16)
    new = Model().learn(16, 1 / 16, 0.0, weight=60)
    assert new.speed(48) < new.speed(16), "without the other sizes there is only the prior"


def test_silence_forgets_nothing() -> None:
    assert learned((4, 1.0), now=0.0).speed(4) == learned((4, 1.0), now=1e9).speed(4)


def test_doubt_shrinks_with_reports() -> None:
    few, many = learned((1, 1.0), (4, 0.3), times=1), learned((1, 1.0), (4, 0.3), times=50)
    assert many.fit.doubt(8, than=4) < few.fit.doubt(8, than=4)
    assert many.fit.doubt(4, than=4) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e-12, 1e12])
def test_nonsense_teaches_nothing(seconds: float) -> None:
    model = learned((2, 1.0))
    assert model.learn(4, seconds, 1.0) is model


@pytest.mark.parametrize(("size", "weight"), [(0, 1.0), (-3, 1.0), (2, 0.0), (2, -1.0), (2, math.nan)])
def test_a_report_of_no_size_or_no_weight_teaches_nothing(size: int, weight: float) -> None:
    model = learned((2, 1.0))
    assert model.learn(size, 1.0, 1.0, weight) is model


def grown(*reports: tuple[int, float, int], noise: float | None = None) -> Model:
    """A model of reports with the batch of each."""
    model = Model()
    for size, seconds, batch in reports:
        for _ in range(20):
            model = model.learn(size, seconds, 0.0, batch=batch)
    return model.hear_noise(noise)


@pytest.mark.parametrize(
    ("noise", "speed_up"),
    [
        pytest.param(None, 4.0, id="not measured: every sample counts"),
        pytest.param(1e9, 4.0, id="nothing but noise: every sample counts"),
        pytest.param(0.0, 1.0, id="no noise: a larger batch teaches nothing more"),
        pytest.param(256.0, 4 * (256 + 64) / (256 + 256), id="some noise"),
    ],
)
def test_a_larger_batch_is_credited_with_what_it_teaches(noise: float | None, speed_up: float) -> None:
    """Four pods take as long for a batch of 256 as one for a batch of 64."""
    model = grown((1, 1.0, 64), (4, 1.0, 256), noise=noise)
    assert model.speed(4) / model.speed(1) == pytest.approx(speed_up, rel=0.05)


@pytest.mark.parametrize(
    ("reports", "batches"),
    [
        pytest.param(((2, 1.0, 64),), {1: 32, 2: 64, 8: 256}, id="one size: as many samples a pod"),
        pytest.param(((1, 1.0, 64), (4, 1.0, 256)), {2: 128, 8: 512}, id="as many samples a pod"),
        pytest.param(((1, 1.0, 100), (5, 1.0, 300)), {3: 200, 9: 500}, id="a part that stays"),
        pytest.param(((1, 1.0, 64), (4, 0.3, 64)), {2: 64, 8: 64}, id="it stays"),
        pytest.param(((1, 1.0, 128), (4, 0.3, 64)), {2: 64, 8: 64}, id="it shrinks"),
        pytest.param(((1, 1.0, 64), (2, 1.0, 256)), {4: 512}, id="more than the pods"),
    ],
)
def test_the_batch_at_a_size_that_was_not_seen(
    reports: tuple[tuple[int, float, int], ...], batches: dict[int, int]
) -> None:
    silent, told = grown(*reports), grown(*reports, noise=100.0)
    least = min(batch for _, _, batch in reports)
    for size, batch in batches.items():
        worth = (100 + least) / (100 + batch)
        assert told.speed(size) / silent.speed(size) == pytest.approx(worth), size


def test_the_time_of_a_sample_does_not_depend_on_the_batch() -> None:
    """The same job, whose batch was set by hand in between: its samples take as long as before."""
    assert grown((1, 1.0, 64), (2, 1.0, 128)).fit.seconds(1) == pytest.approx(1.0, rel=0.05)
    assert grown((1, 1.0, 64), (1, 4.0, 256)).points[1].seconds == 4.0, "steps of another batch are no mean of both"


def test_steps_that_are_worth_the_same_are_not_mixed_with_those_of_a_batch_that_grows() -> None:
    model = grown((1, 1.0, 0), (4, 0.3, 0)).learn(4, 9.0, 0.0, batch=64)
    assert {size: point.seconds for size, point in model.points.items()} == {4: 9.0}
    assert {size: point.seconds for size, point in model.learn(2, 5.0, 0.0).points.items()} == {2: 5.0}


@pytest.mark.parametrize("noise", [None, -1.0, math.nan, math.inf, -math.inf, 1e12])
def test_a_noise_scale_that_cannot_be_is_ignored(noise: float | None) -> None:
    model = grown((1, 1.0, 64), noise=100.0)
    assert model.hear_noise(noise) is model


@pytest.mark.parametrize("batch", [-1, 2**40])
def test_a_report_of_a_batch_that_cannot_be_teaches_nothing(batch: int) -> None:
    model = grown((1, 1.0, 64))
    assert model.learn(1, 1.0, 0.0, batch=batch) is model


reports = st.lists(
    st.tuples(
        st.integers(1, 200),
        st.floats(allow_nan=True, allow_infinity=True),
        st.floats(0, 1e6),
        st.just(0) | st.integers(-1, 2**33),
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(reports, st.none() | st.floats(allow_nan=True, allow_infinity=True))
@example([(9, 40.0, 0.25, 0), (29, 1e-07, 0.0, 0)], None)
@example([(1, 1e-07, 0.0, 0), (2, 11.0, 0.0, 0)], None)
@example([(1, 1e6, 0.0, 0), (5000, 1e-07, 0.0, 0), (4999, 1e6, 0.0, 0)], None)
@example([(1, 1.0, 0.0, 1), (2, 1.0, 0.0, 2**31)], 0.0)
def test_whatever_a_job_reports_no_model_promises_more_than_its_share(
    said: list[tuple[int, float, float, int]], noise: float | None
) -> None:
    """Twice the pods are at most twice as fast, and every speed is finite and above zero."""
    model = Model()
    for size, seconds, now, batch in said:
        model = model.learn(size, seconds, now, batch=batch).hear_noise(noise)
    for size in (1, 2, 3, 7, 50, 1000):
        assert 0 < model.speed(size) < math.inf
        assert model.speed(2 * size) <= 2 * model.speed(size) * (1 + 1e-6)
        assert 0 <= model.fit.doubt(2 * size, than=size) < math.inf


def test_a_job_that_has_had_many_sizes_is_fitted_in_time_that_grows_as_they_do() -> None:
    few, many = (learned(*((size, 1.0) for size in range(1, most))) for most in (101, 401))
    assert count_work(lambda: many.fit) < 5 * count_work(lambda: few.fit)
