"""`hvd.DistributedOptimizer`: an optimizer whose step first averages the gradients of all ranks.

Gradients are sent in buckets while the backward pass still runs. The ranks may have them in different orders, and some
may lack one. So the order of the buckets is fixed: one starts when it is full and those before it have started;
`synchronize` starts the rest, with zeros for what has no gradient.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from elasticjob.compat.horovod import calls, world
from elasticjob.errors import ConfigurationError

BUCKET_BYTES = 16 * 2**20


@dataclass
class Bucket:
    """Parameters whose gradients are sent together: of one dtype and device."""

    parameters: list[torch.nn.Parameter]
    ready: set[torch.nn.Parameter] = field(default_factory=set)
    handle: calls.Handle | None = None


def split(parameters: Sequence[torch.nn.Parameter]) -> list[Bucket]:
    """The buckets of these parameters, the last ones first, as a backward pass finds their gradients."""
    buckets: list[Bucket] = []
    size = 0
    for one in reversed(parameters):
        first = buckets[-1].parameters[0] if buckets else None
        if first is None or (first.dtype, first.device) != (one.dtype, one.device) or size >= BUCKET_BYTES:
            buckets.append(Bucket([]))
            size = 0
        buckets[-1].parameters.append(one)
        size += one.numel() * one.element_size()
    return buckets


class Reducer:
    """Reduces the gradients of an optimizer's parameters over the ranks."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        names: dict[torch.nn.Parameter, str],
        passes: int,
        op: str,
        scales: tuple[float, float],
        compression: type[calls.Compressor],
        sparse_as_dense: bool,
    ) -> None:
        self._buckets = split(parameters)
        self._home = {one: bucket for bucket in self._buckets for one in bucket.parameters}
        self._names, self._passes, self._op, self._scales = names, passes, op, scales
        self._compression, self._sparse_as_dense = compression, sparse_as_dense
        self._made = dict.fromkeys(parameters, 0)  # backward passes since the last reduction
        self._started = 0  # of the buckets
        for one in parameters:
            one.register_post_accumulate_grad_hook(self._arrive)  # type: ignore[no-untyped-call, unused-ignore]

    @property
    def is_under_way(self) -> bool:
        """Whether gradients wait for `synchronize`."""
        return any(bucket.ready for bucket in self._buckets)

    def _arrive(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, torch.nn.Parameter)
        if self._made[parameter] >= self._passes:
            raise ConfigurationError(
                f"{self._names.get(parameter, 'a parameter')} got {self._passes + 1} gradients before optimizer.step():"
                " give DistributedOptimizer backward_passes_per_step, the number of backward passes of a step."
            )
        self._made[parameter] += 1
        if self._made[parameter] == self._passes:
            self._home[parameter].ready.add(parameter)
            while self._started < len(self._buckets) and self._is_full(self._buckets[self._started]):
                self._start(self._buckets[self._started])

    def _is_full(self, bucket: Bucket) -> bool:
        return len(bucket.ready) == len(bucket.parameters)

    def _start(self, bucket: Bucket) -> None:
        self._started += 1
        parts = [self._read(one).reshape(-1) for one in bucket.parameters]
        wire, _ = self._compression.compress(torch.cat(parts))
        bucket.handle = calls.allreduce_async_(
            wire, op=self._op, prescale_factor=self._scales[0], postscale_factor=self._scales[1]
        )

    def _read(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        gradient = parameter.grad
        if gradient is None:  # another rank may have one
            gradient = parameter.grad = torch.zeros_like(parameter)
        if gradient.is_sparse:
            if not self._sparse_as_dense:
                raise ConfigurationError(
                    f"{self._names.get(parameter, 'a parameter')} has a sparse gradient: give DistributedOptimizer"
                    " sparse_as_dense=True, or the embedding sparse=False."
                )
            gradient = parameter.grad = gradient.to_dense()
        return gradient.detach()

    def forget(self) -> None:
        """The gradients are cleared, so passes are counted anew."""
        self._made = dict.fromkeys(self._made, 0)

    def synchronize(self) -> None:
        """Wait until each parameter's gradient is that of all ranks."""
        for bucket in self._buckets[self._started :]:
            self._start(bucket)
        for bucket in self._buckets:
            assert bucket.handle is not None
            reduced = self._compression.decompress(bucket.handle.wait(), bucket.parameters[0].dtype)
            parts = torch.split(reduced, [one.numel() for one in bucket.parameters])
            for one, part in zip(bucket.parameters, parts, strict=True):
                assert one.grad is not None
                one.grad.copy_(part.view_as(one.grad))
            bucket.handle = None
            bucket.ready.clear()
        self.forget()
        self._started = 0


class _Distributed(torch.optim.Optimizer):
    """What a distributed optimizer has before the methods of its own class."""

    _reducer: Reducer | None
    _skips: bool
    _is_synchronized: bool

    def synchronize(self) -> None:
        """Average the gradients now, for example to clip them, and not again in a `with skip_synchronize():`."""
        if self._reducer is not None:
            self._reducer.synchronize()
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this block, `step` leaves the gradients as they are."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Any = None) -> Any:
        """Average the gradients, and make a step."""
        if not self._skips:
            if self._is_synchronized:
                warnings.warn(
                    "optimizer.step() averages gradients that optimizer.synchronize() has already averaged: put it into"
                    " `with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)

    def zero_grad(self, *args: Any, **options: Any) -> None:
        """Clear the gradients. Raises ConfigurationError while they are sent."""
        if self._reducer is not None and self._reducer.is_under_way:
            raise ConfigurationError(
                "optimizer.zero_grad() between backward() and optimizer.step(): the gradients are being sent. Call it"
                " before the backward pass, or optimizer.synchronize() first."
            )
        super().zero_grad(*args, **options)
        if self._reducer is not None:
            self._reducer.forget()


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: type[calls.Compressor] = calls.Compressor,
    backward_passes_per_step: int = 1,
    op: str = calls.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
) -> Any:
    """An optimizer of the same class, with the same groups and state, that averages the gradients before each step.

    `backward_passes_per_step` gradients are added up before they are sent; as in Horovod, nothing divides by their
    number. `gradient_predivide_factor` divides before the sum, and multiplies by as much afterwards. `num_groups` and
    `groups` are accepted and not used. Raises ConfigurationError for arguments that do not fit together.
    """
    world.require(process_set)
    if gradient_predivide_factor != 1.0 and op != calls.Average:
        raise ConfigurationError("gradient_predivide_factor needs op=hvd.Average.")
    if backward_passes_per_step < 1:
        raise ConfigurationError(f"backward_passes_per_step={backward_passes_per_step} must be at least 1.")
    calls.find_op(None, op)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    names = _read_names(named_parameters, parameters)
    base = optimizer.__class__
    kind: Any = type(base.__name__, (_Distributed, base), {"__doc__": base.__doc__, "__module__": base.__module__})
    # Another object, as with Horovod, but with the state of the given one. A scheduler that was created before has put
    # a `step` of its own into that one, which would leave the gradients as they are.
    made = kind.__new__(kind)
    made.__dict__.update({name: one for name, one in optimizer.__dict__.items() if name != "step"})
    made._skips = made._is_synchronized = False
    trained = [one for one in parameters if one.requires_grad]
    scales = (1 / gradient_predivide_factor, gradient_predivide_factor)
    made._reducer = (
        Reducer(trained, names, backward_passes_per_step, op, scales, compression, sparse_as_dense)
        if world.size() > 1
        else None
    )
    return made


def _read_names(
    named: Iterable[tuple[str, torch.nn.Parameter]] | None, parameters: Sequence[torch.nn.Parameter]
) -> dict[torch.nn.Parameter, str]:
    if named is None:
        return {one: f"parameter {index}" for index, one in enumerate(parameters)}
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ConfigurationError("named_parameters: give model.named_parameters(), pairs of a name and a parameter.")
    names = {parameter: name for name, parameter in pairs}
    repeated = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if repeated:
        raise ConfigurationError(f"named_parameters: {', '.join(repeated[:5])} is there twice. Names must differ.")
    if missing := sum(one not in names for one in parameters):
        raise ConfigurationError(
            f"named_parameters: {missing} of the optimizer's {len(parameters)} parameters have no name there. Give"
            " those of every model that it trains, or leave named_parameters out."
        )
    return names
