"""The collectives: `hvd.allreduce` and others, which return once their result is there, or a handle.

Those that do not work in place are differentiable, as Horovod's are. If a member of the world is lost, each raises
CollectiveFailedError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from elasticjob.collectives.explain import explained
from elasticjob.collectives.unequal import all_gather_unequal
from elasticjob.compat.horovod import world
from elasticjob.errors import ConfigurationError

Average: Final = "Average"
Sum: Final = "Sum"
Adasum: Final = "Adasum"
Min: Final = "Min"
Max: Final = "Max"
Product: Final = "Product"

_OPS: Final = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


class Compressor:
    """Sends tensors of floating-point numbers as `wire`; None: as they are."""

    wire: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor to send, and the dtype to which `decompress` takes it back."""
        if cls.wire is None or not tensor.is_floating_point():
            return tensor, tensor.dtype
        return tensor.to(cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """The tensor that was received, in the dtype that it had."""
        return tensor.to(ctx)


class _HalfCompressor(Compressor):
    wire = torch.float16


class Compression:
    """What gradients are sent as."""

    none = Compressor
    fp16 = _HalfCompressor


class Handle:
    """A collective under way. `synchronize` gives its result."""

    def __init__(self, name: str, work: Any, finish: Callable[[], Any]) -> None:
        self._name, self._work, self._finish = name, work, finish
        self._result: Any = None

    def wait(self) -> Any:
        """The result, once it is there."""
        if self._result is None:
            with explained(self._name):
                if self._work is not None:
                    self._work.wait()
                self._result = self._finish()
        return self._result

    def then(self, finish: Callable[[Any], Any]) -> Handle:
        """This one, with a last part of `wait`."""
        first = self._finish
        self._finish = lambda: finish(first())
        return self

    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._result is not None or self._work is None or bool(self._work.is_completed())


class _Works(list[Handle]):
    """Several collectives, as one for a handle."""

    def wait(self) -> None:
        for one in self:
            one.wait()

    def is_completed(self) -> bool:
        return all(one.is_done() for one in self)


def synchronize(handle: Handle) -> Any:
    """Wait for an asynchronous call, and return its result: a tensor, or a list of them for a grouped call."""
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    return handle.is_done()


def barrier(process_set: Any = None) -> None:
    """Wait until every rank has called this."""
    world.require(process_set)
    with explained("barrier"):
        dist.barrier()


def find_op(average: bool | None, op: str | None) -> str:
    """The operation of these two arguments, of which the first one is Horovod's old way. Raises ConfigurationError."""
    if average is not None and op is not None:
        raise ConfigurationError("allreduce(average=..., op=...): give only `op`.")
    found = op or (Sum if average is False else Average)
    if found not in _OPS:
        raise ConfigurationError(f"op={found}: only hvd.Average, Sum, Min, Max and Product are here.")
    return found


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compressor,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """Reduce a tensor over the ranks, by default to the mean. The argument is not changed."""
    world.require(process_set)
    wire, kind = compression.compress(tensor)
    reduced: torch.Tensor = _AllReduce.apply(wire, find_op(average, op), prescale_factor, postscale_factor)  # type: ignore[no-untyped-call]
    return compression.decompress(reduced, kind)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Start an `allreduce`. Returns a handle for `synchronize`."""
    world.require(process_set)
    return _start_reduction(tensor.detach().clone(), find_op(average, op), prescale_factor, postscale_factor)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """Reduce a tensor over the ranks in place, by default to the mean."""
    reduced: torch.Tensor = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()
    return reduced


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Start an `allreduce_`. The tensor may not be used before `synchronize`."""
    world.require(process_set)
    started = _start_reduction(tensor.detach(), find_op(average, op), prescale_factor, postscale_factor)
    return started.then(lambda result: _return(tensor, result))


def grouped_allreduce(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> list[torch.Tensor]:
    """`allreduce` of several tensors."""
    return [allreduce(tensor, *args, **options) for tensor in tensors]


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> list[torch.Tensor]:
    """`allreduce_` of several tensors."""
    reduced: list[torch.Tensor] = grouped_allreduce_async_(tensors, *args, **options).wait()
    return reduced


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> Handle:
    """`allreduce_async` of several tensors, with one handle."""
    return _join([allreduce_async(tensor, *args, **options) for tensor in tensors])


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> Handle:
    """`allreduce_async_` of several tensors, with one handle."""
    return _join([allreduce_async_(tensor, *args, **options) for tensor in tensors])


def _join(handles: list[Handle]) -> Handle:
    return Handle("grouped_allreduce", _Works(handles), lambda: [one.wait() for one in handles])


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """The tensors of all ranks one after the other along the first dimension, in which alone they may differ."""
    world.require(process_set)
    gathered: torch.Tensor = _AllGather.apply(tensor)  # type: ignore[no-untyped-call]
    return gathered


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> Handle:
    """An `allgather` as a handle for `synchronize`. It is complete when this returns."""
    gathered = allgather(tensor.detach(), name, process_set)
    return Handle("allgather", None, lambda: gathered)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """The tensor of rank `root_rank`, on every rank. The argument is not changed."""
    world.require(process_set)
    _check_root(root_rank)
    received: torch.Tensor = _Broadcast.apply(tensor, root_rank)  # type: ignore[no-untyped-call]
    return received


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Handle:
    """Start a `broadcast`. Returns a handle for `synchronize`."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """Overwrite the tensor with that of rank `root_rank`."""
    received: torch.Tensor = broadcast_async_(tensor, root_rank, name, process_set).wait()
    return received


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Handle:
    """Start a `broadcast_`. The tensor may not be used before `synchronize`."""
    world.require(process_set)
    _check_root(root_rank)
    inner = tensor.detach()
    sent = inner.contiguous()
    with explained("broadcast"):
        work = dist.broadcast(sent, root_rank, async_op=True)
    return Handle("broadcast", work, lambda: _return(tensor, sent))


def _return(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The tensor of the script, with the result in it: one that is not contiguous was sent as a copy."""
    if tensor.data_ptr() != result.data_ptr():
        tensor.detach().copy_(result)
    return tensor


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < world.size():
        raise ConfigurationError(f"root_rank={root_rank}: the ranks are 0 to {world.size() - 1}.")


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply in place. What is no whole number any more is cut off, as Horovod does."""
    if factor == 1:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_((tensor.double() * factor).trunc())


def _start_reduction(tensor: torch.Tensor, op: str, before: float, after: float) -> Handle:
    sent = tensor.contiguous()
    _scale(sent, before)
    with explained("allreduce"):
        work = dist.all_reduce(sent, _OPS[op], async_op=True)

    def finish() -> torch.Tensor:
        _scale(sent, after / (world.size() if op == Average else 1))
        return sent

    return Handle("allreduce", work, finish)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: str, before: float, after: float) -> torch.Tensor:
        ctx.arguments = op, before, after
        reduced: torch.Tensor = _start_reduction(tensor.detach().clone(), op, before, after).wait()
        return reduced

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _start_reduction(gradients[0].clone(), *ctx.arguments).wait(), None, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim():
            raise ConfigurationError("allgather of a tensor without dimensions: give tensor.reshape(1).")
        parts = all_gather_unequal(tensor.detach())
        wrong = [one for one in parts if one.dtype != tensor.dtype or one.shape[1:] != tensor.shape[1:]]
        if wrong:
            shapes = ", ".join(f"{tuple(one.shape)} of {one.dtype}" for one in parts)
            raise ConfigurationError(
                f"allgather: the ranks may differ in the first dimension only, they have {shapes}."
            )
        ctx.lengths = [len(one) for one in parts]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        whole = _start_reduction(gradients[0].clone(), Average, 1.0, 1.0).wait()  # so does Horovod
        return torch.split(whole, ctx.lengths)[world.rank()]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
        ctx.root_rank = root_rank
        return broadcast_(tensor.detach().clone(), root_rank)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        whole = _start_reduction(gradients[0].clone(), Average, 1.0, 1.0).wait()  # so does Horovod
        return (whole if world.rank() == ctx.root_rank else torch.zeros_like(whole)), None
