"""`hvd.DistributedOptimizer`: an optimizer whose step first averages the gradients of all ranks.

Gradients are sent in buckets while the backward pass still runs. The ranks may have them in different orders, and some
may lack one. So the order of the buckets is fixed: one starts when it is full and those before it have started;
`synchronize` starts the rest, with zeros for what has no gradient, and takes in what is trained since the last step.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from elasticjob.compat.horovod import calls, world
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import optimizers, versions

BUCKET_BYTES = 16 * 2**20

_hooks: Any = WeakIdKeyDictionary()  # of the reducer that a parameter belongs to: the last one that was made


@dataclass
class Bucket:
    """Parameters whose gradients are sent together: of one dtype and device."""

    parameters: list[torch.nn.Parameter]
    ready: set[torch.nn.Parameter] = field(default_factory=set)
    handle: calls.Handle | None = None
    sent: list[tuple[torch.Tensor, int | None]] = field(default_factory=list)  # gradients, and their versions


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
        self._buckets: list[Bucket] = []
        self._home: dict[torch.nn.Parameter, Bucket] = {}
        self._names, self.passes, self._op, self._scales = names, passes, op, scales
        self._compression, self._sparse_as_dense = compression, sparse_as_dense
        self._made: dict[torch.nn.Parameter, int] = {}  # backward passes since the last reduction
        self._started = 0  # of the buckets
        self._take(parameters)

    def _take(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Reduce those that are trained and new, too. They leave an earlier reducer."""
        new = [one for one in parameters if one.requires_grad and one not in self._home]
        for bucket in split(new):
            self._buckets.append(bucket)
            self._home.update(dict.fromkeys(bucket.parameters, bucket))
        for one in new:
            self._made[one] = 0
            if one in _hooks:
                _hooks[one].remove()
            _hooks[one] = one.register_post_accumulate_grad_hook(self._arrive)  # type: ignore[no-untyped-call, unused-ignore]

    @property
    def is_under_way(self) -> bool:
        """Whether gradients wait for `synchronize`."""
        return any(bucket.ready for bucket in self._buckets)

    def _arrive(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, torch.nn.Parameter)
        if self._made[parameter] >= self.passes:
            raise ConfigurationError(
                f"{self._name(parameter)} got {self.passes + 1} gradients before optimizer.step():"
                " give DistributedOptimizer backward_passes_per_step, the number of backward passes of a step."
            )
        self._made[parameter] += 1
        if self._made[parameter] == self.passes:
            self._home[parameter].ready.add(parameter)
            while self._started < len(self._buckets) and self._is_full(self._buckets[self._started]):
                self._start(self._buckets[self._started])

    def _name(self, parameter: torch.nn.Parameter) -> str:
        return self._names.get(parameter, "a parameter")

    def _is_full(self, bucket: Bucket) -> bool:
        return len(bucket.ready) == len(bucket.parameters)

    def _start(self, bucket: Bucket) -> None:
        self._started += 1
        gradients = [self._read(one) for one in bucket.parameters]
        bucket.sent = [(one, versions.count_changes(one)) for one in gradients]
        wire, _ = self._compression.compress(torch.cat([one.detach().reshape(-1) for one in gradients]))
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
                    f"{self._name(parameter)} has a sparse gradient: give DistributedOptimizer"
                    " sparse_as_dense=True, or the embedding sparse=False."
                )
            gradient = parameter.grad = gradient.to_dense()
        return gradient

    def forget(self) -> None:
        """The gradients are cleared, so passes are counted anew."""
        self._made = dict.fromkeys(self._made, 0)

    def synchronize(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Wait until the gradient of each of these parameters that is trained is that of all ranks."""
        self._take(parameters)
        for bucket in self._buckets[self._started :]:
            self._start(bucket)
        for bucket in self._buckets:
            self._check_unchanged(bucket)
            assert bucket.handle is not None
            reduced = self._compression.decompress(bucket.handle.wait(), bucket.parameters[0].dtype)
            parts = torch.split(reduced, [one.numel() for one in bucket.parameters])
            for (gradient, _), part in zip(bucket.sent, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
            bucket.handle = None
            bucket.sent.clear()
            bucket.ready.clear()
        self.forget()
        self._started = 0

    def _check_unchanged(self, bucket: Bucket) -> None:
        for one, (gradient, version) in zip(bucket.parameters, bucket.sent, strict=True):
            if one.grad is not gradient or versions.count_changes(gradient) != version:
                raise ConfigurationError(
                    f"The gradient of {self._name(one)} was changed after it was sent: call optimizer.synchronize()"
                    " first, for example before gradients are clipped or unscaled, and make the step in"
                    " `with optimizer.skip_synchronize():`."
                )


class _Distributed(optimizers.BeforeScaledStep):
    """What a distributed optimizer has before the methods of its own class."""

    reducer: Reducer | None
    skips: bool
    is_synchronized: bool

    def synchronize(self) -> None:
        """Average the gradients now, for example to clip them, and not again in a `with skip_synchronize():`."""
        if self.reducer is not None:
            self.reducer.synchronize(_parameters_of(self))
        self.is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this block, `step` leaves the gradients as they are."""
        self.skips = True
        try:
            yield
        finally:
            self.skips = False

    def step(self, closure: Any = None) -> Any:
        """Average the gradients, and make a step. With a closure, those that it makes, and what it returns."""
        if closure is not None and not self.skips:
            return super().step(functools.partial(self._evaluate, closure))
        if not self.skips:
            if self.is_synchronized:
                warnings.warn(
                    "optimizer.step() averages gradients that optimizer.synchronize() has already averaged: put it into"
                    " `with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
            self.synchronize()
        self.is_synchronized = False
        return super().step(closure)

    # super().step calls the hooks of a step: torch would add another call here when a state is loaded.
    step.hooked = True  # type: ignore[attr-defined]

    def before_scaled_step(self) -> None:
        """Raises ConfigurationError while gradients are sent: what a scaler makes of this rank's would be lost."""
        if self.reducer is not None and self.reducer.is_under_way:
            raise ConfigurationError(
                "scaler.step(optimizer) before the gradients of all ranks are averaged: call optimizer.synchronize()"
                " first, also before scaler.unscale_(optimizer), and make the step in"
                " `with optimizer.skip_synchronize():`."
            )

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """The mean loss, so that all ranks decide the same, for example to call the closure again."""
        loss = closure()
        self.synchronize()
        self.is_synchronized = False
        if self.reducer is None or loss is None:
            return loss
        mean = calls.allreduce(torch.as_tensor(loss).detach())
        return mean if torch.is_tensor(loss) else mean.item()

    def zero_grad(self, *args: Any, **options: Any) -> None:
        """Clear the gradients. Raises ConfigurationError while they are sent."""
        if self.reducer is not None and self.reducer.is_under_way:
            raise ConfigurationError(
                "optimizer.zero_grad() between backward() and optimizer.step(): the gradients are being sent. Call it"
                " before the backward pass, or optimizer.synchronize() first."
            )
        super().zero_grad(*args, **options)
        if self.reducer is not None:
            self.reducer.forget()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on so many backward passes are added up before a step."""
        _check_passes(passes)
        if self.reducer is not None:
            self.reducer.passes = passes

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ConfigurationError(
            "A distributed optimizer cannot be copied or pickled, as it belongs to the parameters of this process: save"
            " optimizer.state_dict()."
        )


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
    _check_passes(backward_passes_per_step)
    calls.find_op(None, op)
    parameters = _parameters_of(optimizer)
    names = _read_names(named_parameters, parameters)
    base = optimizer.__class__.__bases__[1] if isinstance(optimizer, _Distributed) else optimizer.__class__
    kind: Any = type(base.__name__, (_Distributed, base), {"__doc__": base.__doc__, "__module__": base.__module__})
    # Another object, as with Horovod, but with the attributes of the given one: a scheduler from before goes
    # on to use them. It has put a `step` of its own there, which would leave the gradients as they are.
    made = kind.__new__(kind)
    made.__dict__ = optimizer.__dict__
    made.__dict__.pop("step", None)
    made.skips = made.is_synchronized = False
    scales = (1 / gradient_predivide_factor, gradient_predivide_factor)
    made.reducer = (
        Reducer(parameters, names, backward_passes_per_step, op, scales, compression, sparse_as_dense)
        if world.size() > 1
        else None
    )
    return made


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _check_passes(passes: int) -> None:
    if passes < 1:
        raise ConfigurationError(f"backward_passes_per_step={passes} must be at least 1.")


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
