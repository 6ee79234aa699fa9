"""A learning rate for a batch that is larger than the one it was chosen for, by a rule that you choose.

    growth = BatchGrowth(optimizer, sampler, reference_batch_size=256, rule="adascale")
    session = Session(model=model, optimizer=optimizer, sampler=sampler, growth=growth)
    ...
        elasticjob.report(step=step, loss=session.loss, gain=growth.gain)

The *gain* is the number of steps with the reference batch that one step with the present batch is worth. The rule
`linear` takes it for the ratio of the batches, and `sqrt` for its root, as suits Adam. `adascale` measures it: a larger
batch only averages away the noise of the gradients, so it gains little where there is little noise (Johnson et al.,
2020, "AdaScale SGD"). While the optimizer steps, its learning rates are multiplied by the gain.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from elasticjob.data.samplers import ElasticDistributedSampler, learning_rate_factor
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import optimizers

RULES = ("adascale", "linear", "sqrt")


@dataclass(frozen=True)
class Averages:
    """Moving averages of what gradients consist of. Only their ratio matters, so they may start at 0."""

    signal: float = 0.0  # the squared norm of the true gradient
    noise: float = 0.0  # the variance of the gradient of one sample, summed over its elements

    def add(self, signal: float, noise: float, decay: float) -> Averages:
        """Averages with one more measurement; `decay` is what remains of the earlier ones."""
        return Averages(*(decay * a + (1.0 - decay) * b for a, b in ((self.signal, signal), (self.noise, noise))))


def measure(small: float, large: float, small_batch: float, large_batch: float) -> tuple[float, float]:
    """The signal and the noise, without bias; either may be negative.

    `small` is the mean of the squared norms of gradients of `small_batch` samples each, and `large` the squared norm of
    their mean, which is the gradient of `large_batch` samples.
    """
    signal = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    noise = (small - large) / (1.0 / small_batch - 1.0 / large_batch)
    return signal, noise


def find_gain(averages: Averages, reference_batch: float, batch: float) -> float:
    """What a step is worth: from 1, if there is no noise, to the ratio of the batches, if there is nothing else."""
    signal, noise = max(0.0, averages.signal), max(0.0, averages.noise)
    if signal + noise == 0.0:
        return 1.0
    return (signal + noise / reference_batch) / (signal + noise / batch)


def find_decay(ratio: float) -> float:
    """How much of its averages AdaScale keeps in a step, at this ratio of the batches."""
    return max(0.0, 1.0 - max(1.0, ratio) / 1000.0)


class BatchGrowth:
    """Multiplies the learning rates of an optimizer, in each step, by what the larger batch gains.

    Batch sizes are in samples; the batch is `sampler.global_batch_size`, which may change in `on_world`. `gain` is that
    of the last step. `progress` is the step at which to follow a schedule of learning rates that was made for the
    reference batch: the sum of the gains with `adascale`, otherwise the samples used, in reference batches. Both are
    equal on all ranks.

    `adascale` needs a sampler with virtual ranks, whose gradients it compares, and gets them if the session or
    `VirtualRanks` is given this object. Raises ConfigurationError for an unknown rule and for sizes below 1.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        sampler: ElasticDistributedSampler,
        *,
        reference_batch_size: int,
        rule: str,
    ) -> None:
        if rule not in RULES:
            raise ConfigurationError(f"rule={rule!r} is unknown: use {', '.join(RULES)}.")
        if reference_batch_size < 1:
            raise ConfigurationError("reference_batch_size must be at least 1.")
        if rule == "adascale" and (sampler.virtual_ranks or 0) < 2:
            raise ConfigurationError(
                "rule='adascale' compares the gradients of virtual ranks: give the sampler virtual_ranks= of at least"
                " 2, or choose linear or sqrt."
            )
        self.rule, self.gain, self.progress = rule, 1.0, 0.0
        self._reference, self._sampler = reference_batch_size, sampler
        self._averages = self._next = Averages()
        self.steps = 0  # of the optimizer, in this process
        self._is_real = True  # the step that the optimizer makes; torch fills its state by another one
        self._rates: list[Any] = []  # while the optimizer steps: the learning rates that it had
        optimizer.register_step_pre_hook(self._scale)
        optimizer.register_step_post_hook(self._restore)
        self._find_gain()

    @property
    def measures(self) -> bool:
        """Whether it wants to `observe` gradients."""
        return self.rule == "adascale"

    @property
    def batch_size(self) -> int | None:
        """Samples of a step, if what a larger batch gains is measured and the script has set the batch of the sampler.

        None otherwise: then nobody needs to know what another batch would gain.
        """
        return self._sampler.global_batch_size if self.measures and self._sampler.batch_was_set else None

    @property
    def noise_scale(self) -> float | None:
        """The batch, in samples, whose gradient consists of noise by half; None as long as that cannot be told."""
        signal, noise = self._averages.signal, max(0.0, self._averages.noise)
        return noise / signal if signal > 0.0 else None

    def observe(self, small: float, large: float, small_batch: float, large_batch: float) -> None:
        """The gradients of a step; see `measure`. They count once the optimizer has stepped, and if they are finite."""
        self._next = self._averages
        if math.isfinite(small) and math.isfinite(large) and large_batch > small_batch:
            found = measure(small, large, small_batch, large_batch)
            self._next = self._averages.add(*found, find_decay(self._ratio))

    def state_dict(self) -> dict[str, float]:
        """The progress and what was measured. A session keeps it; give it to a `Checkpointer` as `growth=`."""
        return {"progress": self.progress, **asdict(self._averages)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from a saved state, whatever the batch was then."""
        values = dict(state)
        self.progress = values.pop("progress")
        self._averages = self._next = Averages(**values)
        self._find_gain()

    @property
    def _ratio(self) -> float:
        return self._sampler.global_batch_size / self._reference

    def _find_gain(self) -> None:
        batch = self._sampler.global_batch_size
        if self.measures:
            self.gain = find_gain(self._next, self._reference, batch)
        else:
            self.gain = learning_rate_factor(batch, self._reference, self.rule)

    def _scale(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_real = not optimizers.fills_state(optimizer)
        self._find_gain()
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.gain

    def _restore(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        if not self._is_real:
            return
        self._averages = self._next
        self.steps += 1
        self.progress += self.gain if self.measures else self._ratio
