"""The learning rate of a larger batch: the rules as tables, and AdaScale on gradients whose noise is known."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from elasticjob.data.batch_growth import Averages, BatchGrowth, find_decay, find_gain, measure
from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.data.virtual_plan import find_leaf_sizes
from elasticjob.data.virtual_ranks import VirtualRanks
from elasticjob.errors import ConfigurationError


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.0), (0.0, 8.0), (3.0, 40.0)])
def test_signal_and_noise_are_told_apart(signal: float, noise: float) -> None:
    # The squared norm of a mean of n gradients is, on average, the signal and the nth part of the noise.
    assert measure(signal + noise / 8, signal + noise / 64, 8, 64) == pytest.approx((signal, noise))


@pytest.mark.parametrize(
    ("signal", "noise", "gain"),
    [
        (1.0, 0.0, 1.0),  # a larger batch averages nothing away
        (0.0, 5.0, 4.0),  # nothing but noise: as good as four steps
        (1.0, 256.0, 1.6),
        (1.0, -3.0, 1.0),  # measured: less than nothing
        (-1.0, 3.0, 4.0),
        (0.0, 0.0, 1.0),  # not measured yet
    ],
)
def test_what_a_batch_of_four_times_the_size_gains(signal: float, noise: float, gain: float) -> None:
    assert find_gain(Averages(signal, noise), 256, 1024) == pytest.approx(gain)


def test_averages_forget_more_in_larger_batches() -> None:
    assert [find_decay(ratio) for ratio in (0.5, 1.0, 100.0, 5000.0)] == pytest.approx([0.999, 0.999, 0.9, 0.0])
    assert Averages(1.0, 2.0).add(3.0, 4.0, 0.5) == Averages(2.0, 3.0)


def test_leaves_without_samples_do_not_count() -> None:
    assert find_leaf_sizes(10, 4, 1) == [3, 3, 2, 2]
    assert find_leaf_sizes(2, 4, 1) == [1, 1]
    assert find_leaf_sizes(10, 2, 3) == [2, 2, 1, 2, 2, 1]


def make_growth(rule: str, parameter: torch.nn.Parameter, batch: int = 64) -> tuple[BatchGrowth, torch.optim.Optimizer]:
    sampler = ElasticDistributedSampler(640, global_batch_size=batch, virtual_ranks=8, shuffle=False)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    return BatchGrowth(optimizer, sampler, reference_batch_size=16, rule=rule), optimizer


@pytest.mark.parametrize(("rule", "gain"), [("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_is_multiplied_in_the_step_only(rule: str, gain: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    growth, optimizer = make_growth(rule, parameter)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    for rate in (0.5, 0.05):
        before = parameter.item()
        parameter.grad = torch.ones(1)
        optimizer.step()
        assert before - parameter.item() == pytest.approx(rate * gain)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate), "a scheduler does not see the gain"
        scheduler.step()
    assert (growth.gain, growth.progress) == (gain, 8.0)


class Cloud(torch.nn.Module):
    """Each sample pulls it to a point of its own: the gradient is `place` minus their mean."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.place = torch.nn.Parameter(torch.ones(200))
        self._spread = spread

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        noise = torch.stack([torch.randn(200, generator=torch.Generator().manual_seed(int(one))) for one in samples])
        return (self.place + self._spread * noise).square().sum(1).mean() / 2


def train(spread: float, steps: int, state: dict[str, float] | None = None, first: int = 0) -> BatchGrowth:
    model = Cloud(spread)
    sampler = ElasticDistributedSampler(640, global_batch_size=64, virtual_ranks=8, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # it stays where it is
    growth = BatchGrowth(optimizer, sampler, reference_batch_size=16, rule="adascale")
    if state is not None:
        growth.load_state_dict(state)
    sampler.advance(64 * first)
    ranks = VirtualRanks(model, sampler, growth=growth)
    for micro, samples in itertools.islice(sampler.steps([torch.tensor(one) for one in sampler]), 8 * steps):
        with ranks.turn(micro):
            ranks.backward(model(samples))
        if micro.ends_step:
            optimizer.step()
    return growth


def test_adascale_measures_what_a_batch_gains() -> None:
    # The signal is 200, and the noise 200 * spread^2.
    assert train(0.0, 2).gain == pytest.approx(1.0)
    assert train(4.0, 6).gain == pytest.approx((200 + 3200 / 16) / (200 + 3200 / 64), rel=0.05)
    assert train(100.0, 6).gain == pytest.approx(4.0, rel=0.05)


def test_what_is_known_of_a_batch_that_grows() -> None:
    for spread in (1.0, 4.0):  # of the noise, 200 * spread^2, and the signal, 200
        assert train(spread, 6).noise_scale == pytest.approx(spread**2, rel=0.1)
    sampler = ElasticDistributedSampler(640, global_batch_size=64, virtual_ranks=8)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    measured = BatchGrowth(optimizer, sampler, reference_batch_size=16, rule="adascale")
    assumed = BatchGrowth(optimizer, sampler, reference_batch_size=16, rule="linear")
    assert (measured.batch_size, measured.noise_scale) == (None, None), "the script has left it as it was"
    sampler.global_batch_size = 64  # as large as before in this world
    assert (measured.batch_size, assumed.batch_size) == (64, None)
    sampler.global_batch_size = 128
    assert measured.batch_size == 128


@pytest.mark.parametrize(
    ("signal", "noise", "scale"), [(2.0, 6.0, 3.0), (2.0, -1.0, 0.0), (0.0, 6.0, None), (-1.0, 6.0, None)]
)
def test_a_noise_scale_needs_a_signal(signal: float, noise: float, scale: float | None) -> None:
    growth, _ = make_growth("adascale", torch.nn.Parameter(torch.zeros(1)))
    growth.load_state_dict({"progress": 0.0, "signal": signal, "noise": noise})
    assert growth.noise_scale == scale


def test_a_restart_continues_the_measurement() -> None:
    half = train(4.0, 3)
    assert half.progress == pytest.approx(3 * half.gain, rel=0.1)
    whole, rest = train(4.0, 6), train(4.0, 3, half.state_dict(), first=3)
    assert (rest.gain, rest.progress) == (whole.gain, whole.progress)


def test_gradients_that_are_not_finite_are_ignored() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    growth, optimizer = make_growth("adascale", parameter)
    growth.observe(3.0, 2.0, 8, 64)
    optimizer.step()
    gain = growth.gain
    assert gain > 1
    growth.observe(float("inf"), float("nan"), 8, 64)
    optimizer.step()
    assert growth.gain == gain


def test_mistakes_are_explained() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    plain = ElasticDistributedSampler(64, global_batch_size=8)
    with pytest.raises(ConfigurationError, match="adascale, linear, sqrt"):
        BatchGrowth(optimizer, plain, reference_batch_size=4, rule="cubic")
    with pytest.raises(ConfigurationError, match="reference_batch_size"):
        BatchGrowth(optimizer, plain, reference_batch_size=0, rule="sqrt")
    with pytest.raises(ConfigurationError, match="virtual_ranks="):
        BatchGrowth(optimizer, plain, reference_batch_size=4, rule="adascale")


def test_a_save_of_the_optimizer_is_no_step() -> None:
    """torch's `get_optimizer_state_dict` steps an optimizer without state, and plain SGD never has one."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = ElasticDistributedSampler(1000, global_batch_size=20)
    growth = BatchGrowth(optimizer, sampler, reference_batch_size=10, rule="linear")
    for step in range(1, 4):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        get_optimizer_state_dict(model, optimizer)
        assert (growth.steps, growth.progress) == (step, 2.0 * step)
    assert optimizer.param_groups[0]["lr"] == 0.1
