"""Collectives of tensors of one shape: torch's operations, with a safer interface.

- Results are returned with the right shape, instead of written to buffers that the caller must size.
- With `async_op=True` a call returns a `Pending`, whose `wait()` returns the result. Do not change the input before
  that; `wait()` reports a change in place.
- A rank is always the rank *in the group*.
- If a member dies, each call raises `CollectiveFailedError` at once on gloo. With NCCL it is only queued and raises
  nothing: torch's watchdog ends the process when the group's timeout is over.

Nothing here supports autograd.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
import torch.distributed as dist

from elasticjob.collectives.explain import explained, run
from elasticjob.collectives.members import Group, global_rank, size_and_rank
from elasticjob.collectives.pending import Pending
from elasticjob.errors import CollectiveFailedError, ConfigurationError
from elasticjob.torchcompat import groups

_OPERATIONS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


@overload
def all_reduce(
    tensor: torch.Tensor, op: str = "sum", group: Group = None, async_op: Literal[False] = False
) -> torch.Tensor: ...
@overload
def all_reduce(
    tensor: torch.Tensor, op: str = "sum", group: Group = None, *, async_op: Literal[True]
) -> Pending[torch.Tensor]: ...


def all_reduce(
    tensor: torch.Tensor, op: str = "sum", group: Group = None, async_op: bool = False
) -> torch.Tensor | Pending[torch.Tensor]:
    """Reduce over the ranks, in place, and return the tensor. Each rank gets the result, in the shape of its tensor.

    `op`: sum, mean, product, min, max, band, bor or bxor. `mean` works on every backend. (torch's own AVG is only
    for NCCL.) Raises ConfigurationError for another `op`, for the mean of integers and outside of the group, and
    CollectiveFailedError where a rank is gone or the shapes do not fit.
    """
    if not async_op and op in _OPERATIONS:
        if group is not None:
            size_and_rank(group)
        run("all_reduce", group, dist.all_reduce, tensor, _OPERATIONS[op])
        return tensor
    size, _ = size_and_rank(group)
    if op != "mean" and op not in _OPERATIONS:
        raise ConfigurationError(f"op={op!r} is unknown: use mean, {', '.join(_OPERATIONS)}.")
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ConfigurationError(f"op='mean' needs a floating-point tensor, not {tensor.dtype}: convert it first.")
    name = f"all_reduce({op})"
    with explained(name):
        reduce_op = _OPERATIONS["sum" if op == "mean" else op]
        work = dist.all_reduce(tensor, op=reduce_op, group=group, async_op=True)

    def result() -> torch.Tensor:
        return tensor.div_(size) if op == "mean" else tensor

    pending = Pending([work], result, tensor, name)
    return pending if async_op else pending.wait()


@overload
def all_gather(
    tensor: torch.Tensor,
    group: Group = None,
    *,
    stack: bool = False,
    out: torch.Tensor | None = None,
    async_op: Literal[False] = False,
) -> torch.Tensor: ...
@overload
def all_gather(
    tensor: torch.Tensor,
    group: Group = None,
    *,
    stack: bool = False,
    out: torch.Tensor | None = None,
    async_op: Literal[True],
) -> Pending[torch.Tensor]: ...


def all_gather(
    tensor: torch.Tensor,
    group: Group = None,
    *,
    stack: bool = False,
    out: torch.Tensor | None = None,
    async_op: bool = False,
) -> torch.Tensor | Pending[torch.Tensor]:
    """Gather tensors of one shape on every rank: concatenated along dimension 0, or stacked in a new one.

    With `stack=False` and input `[a, b]` in a world of n the result is `[n*a, b]`; with `stack=True` it is `[n, a, b]`.
    `out`, of either shape, takes the result and is returned: a call in a loop needs no new memory. Raises
    ConfigurationError for an `out` that does not fit and outside of the group, and CollectiveFailedError where a rank
    is gone.
    """
    source = tensor.contiguous() if tensor.dim() else tensor.reshape(1)
    if out is None:
        size, _ = size_and_rank(group)
        joined = _make_joined(source, size)
        output = joined.view(size, *source.shape) if stack and tensor.dim() else joined
    else:
        if group is not None:
            size_and_rank(group)
        joined = out if out.dim() == source.dim() else out.view(-1, *source.shape[1:])
        output = out
    name = "all_gather"
    try:
        if not async_op:
            run(name, group, groups.find_all_gather(), joined, source)
            return output
        with explained(name):
            work = groups.find_all_gather()(joined, source, group=group, async_op=True)
    except (CollectiveFailedError, ValueError):
        if out is not None:
            _check_out(out, source, size_and_rank(group)[0])
        raise
    return Pending([work], lambda: output, source, name)


def _check_out(out: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """Explain a failure; called only afterwards, because torch checks `out` itself."""
    wanted = size * source.numel()
    if out.numel() != wanted or out.dtype != source.dtype or out.device != source.device:
        raise ConfigurationError(
            f"out has {out.numel()} elements of {out.dtype} on {out.device}: "
            f"{wanted} of {source.dtype} on {source.device} are needed."
        )


def _make_joined(source: torch.Tensor, size: int) -> torch.Tensor:
    """A buffer for the tensors of all ranks of a group of this size, one after the other."""
    if source.dim() == 1:
        return source.new_empty(size * source.numel())
    first, *rest = source.shape
    return source.new_empty(size * first, *rest)  # separate arguments are faster than a tuple


@overload
def gather(
    tensor: torch.Tensor, dst: int = 0, group: Group = None, async_op: Literal[False] = False
) -> list[torch.Tensor] | None: ...
@overload
def gather(
    tensor: torch.Tensor, dst: int = 0, group: Group = None, *, async_op: Literal[True]
) -> Pending[list[torch.Tensor] | None]: ...


def gather(
    tensor: torch.Tensor, dst: int = 0, group: Group = None, async_op: bool = False
) -> list[torch.Tensor] | Pending[list[torch.Tensor] | None] | None:
    """Gather tensors of one shape on rank `dst` of the group: a list there, in the order of the ranks, None elsewhere.

    Raises ConfigurationError where the group has no such rank, and CollectiveFailedError where a rank is gone.
    """
    size, rank = size_and_rank(group)
    source = tensor.contiguous()
    parts = [torch.empty_like(source) for _ in range(size)] if rank == dst else None
    destination = global_rank(dst, group)
    name = "gather"
    if not async_op:
        run(name, group, dist.gather, source, parts, destination)
        return parts
    with explained(name):
        work = dist.gather(source, parts, dst=destination, group=group, async_op=True)
    return Pending([work], lambda: parts, source, name)
