"""Collectives and point to point: what torch has, where its use is error-prone, and what it lacks.

- Results are returned, with the right shape, instead of written into buffers that the caller must size.
- `gather_unequal` and `all_gather_unequal` take tensors whose shapes differ by rank in any dimension, even in the
  number of dimensions or the dtype. Empty tensors are fine.
- `async_op=True` gives a `Pending`. Its `wait()` gives the result. Until then the input is not yours: a change
  made in place is found and reported by `wait()`.
- A rank is always the rank *in the group*. (torch wants the global rank in some calls, whatever the group.)
- If a member dies, each call raises `CollectiveFailedError` within the group's timeout, and at once on gloo.

Nothing here takes part in autograd.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from elasticjob.errors import BufferTouchedError, CollectiveFailedError, ConfigurationError

T = TypeVar("T")
Group = Any  # dist.ProcessGroup | None: its class is missing in builds of torch without distributed

_ALIGNMENT = 16  # bytes: a part of a byte buffer can be viewed as any dtype
_MOST_DIMENSIONS = 32
# Order is part of the wire format between ranks of one world, which run the same torch.
_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
_OPERATIONS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


class Pending(Generic[T]):
    """A transfer under way. `wait()` gives its result; the tensors it uses must not be changed before."""

    def __init__(self, works: Sequence[Any], finish: Callable[[], T], buffer: torch.Tensor, name: str) -> None:
        self._works = works
        self._finish = finish
        self._buffer = buffer  # kept alive: the backend reads or writes it
        self._version = buffer._version
        self._name = name

    def done(self) -> bool:
        """Whether `wait()` would return at once."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> T:
        """Wait for the transfer and return its result."""
        touched = self._buffer._version != self._version
        with _explained(self._name):
            for work in self._works:
                work.wait()
        if touched:
            raise BufferTouchedError(
                f"{self._name}: the tensor was changed in place before wait(). What was transferred is undefined. "
                "Call wait() first, or pass tensor.clone()."
            )
        return self._finish()


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn a backend's error into one sentence that names the call, this rank and the remedy."""
    started = time.monotonic()
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        raise _explain(name, started, error) from error


def _explain(name: str, started: float, error: Exception) -> Exception:
    """The error for the user; one that says enough by itself stays as it is."""
    if isinstance(error, (CollectiveFailedError, NotImplementedError, torch.cuda.OutOfMemoryError)):
        return error
    rank = dist.get_rank() if dist.is_initialized() else "?"
    first_line = str(error).strip().partition("\n")[0]
    return CollectiveFailedError(
        f"{name} failed on rank {rank} after {time.monotonic() - started:.1f} s: {first_line} -- "
        "If another rank ended, look at its output first: it is the cause. Otherwise check that every rank "
        "makes the same calls with the same shapes: `with elasticjob.checked():` names the one that does not."
    )


def _run(name: str, group: Group, call: Callable[..., Any], *args: Any) -> None:
    """The synchronous path: torch's call and next to nothing else, because small messages take only microseconds.

    The caller has made sure that this rank is in the group: torch only warns where it is not.
    """
    started = time.monotonic()
    try:
        call(*args, group)
    except (RuntimeError, ConnectionError, ValueError) as error:
        size_and_rank(group)  # there may be no group at all
        if isinstance(error, ValueError):
            raise
        explained = _explain(name, started, error)
        if explained is error:
            raise
        raise explained from error


def _finish(works: Sequence[Any], result: Callable[[], T], buffer: torch.Tensor, name: str, wait: bool) -> Any:
    pending = Pending(works, result, buffer, name)
    return pending.wait() if wait else pending


def _all_gather_flat(output: torch.Tensor, source: torch.Tensor, group: Group, async_op: bool = False) -> Any:
    return _gather_function()(output, source, group=group, async_op=async_op)


def _gather_function() -> Any:
    # all_gather_into_tensor(output, input) is the name up to torch 2.12; newer ones warn and say all_gather_single.
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def size_and_rank(group: Group = None) -> tuple[int, int]:
    """The size of the group and this process's rank in it; an error if it is not a member."""
    members: Any = dist.group.WORLD if group is None else group
    try:  # the group itself is asked: torch's functions look three times whether it is there
        return members.size(), members.rank()
    except AttributeError:  # no group, or the mark that torch gives to those outside
        pass
    if not dist.is_initialized():
        raise ConfigurationError("torch.distributed is not set up: call elasticjob.init() or init_process_group().")
    raise ConfigurationError(f"rank {dist.get_rank()} is not in this group: only members may call its collectives.")


def global_rank(group_rank: int, group: Group = None) -> int:
    """The rank in the world of a rank in the group."""
    size, _ = size_and_rank(group)
    if not 0 <= group_rank < size:
        raise ConfigurationError(f"rank {group_rank} does not exist: the group has ranks 0 to {size - 1}.")
    return group_rank if group is None else int(dist.get_global_rank(group, group_rank))


def new_groups(members: Sequence[Sequence[int]], **options: Any) -> list[Group]:
    """Make sub-groups, and return those that this rank is in.

    Every rank of the world must make every group, in the same order, also the groups it is not in. This
    function does that; call it on all ranks with the same argument.
    """
    rank = dist.get_rank()
    made = [(list(ranks), dist.new_group(list(ranks), **options)) for ranks in members]
    return [group for ranks, group in made if rank in ranks]


def all_reduce(tensor: torch.Tensor, op: str = "sum", group: Group = None, async_op: bool = False) -> Any:
    """Reduce over the ranks, in place, and return the tensor. Each rank gets the result.

    `op`: sum, mean, product, min, max, band, bor or bxor. `mean` works on every backend. (torch's own AVG is only
    for NCCL.)
    """
    if not async_op and op in _OPERATIONS:
        if group is not None:
            size_and_rank(group)
        _run("all_reduce", group, dist.all_reduce, tensor, _OPERATIONS[op])
        return tensor
    size, _ = size_and_rank(group)
    if op != "mean" and op not in _OPERATIONS:
        raise ConfigurationError(f"op={op!r} is unknown: use mean, {', '.join(_OPERATIONS)}.")
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ConfigurationError(f"op='mean' needs a floating-point tensor, not {tensor.dtype}: convert it first.")
    name = f"all_reduce({op})"
    with _explained(name):
        reduce_op = _OPERATIONS["sum" if op == "mean" else op]
        work = dist.all_reduce(tensor, op=reduce_op, group=group, async_op=True)

    def result() -> torch.Tensor:
        return tensor.div_(size) if op == "mean" else tensor

    return _finish([work], result, tensor, name, wait=not async_op)


def all_gather(
    tensor: torch.Tensor,
    group: Group = None,
    *,
    stack: bool = False,
    out: torch.Tensor | None = None,
    async_op: bool = False,
) -> Any:
    """Gather tensors of one shape on every rank: concatenated along dimension 0, or stacked in a new one.

    With `stack=False` and input `[a, b]` in a world of n the result is `[n*a, b]`; with `stack=True` it is `[n, a, b]`.
    `out`, of either shape, takes the result and is returned: a call in a loop needs no new memory.
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
            _run(name, group, _gather_function(), joined, source)
            return output
        with _explained(name):
            work = _all_gather_flat(joined, source, group=group, async_op=True)
    except (CollectiveFailedError, ValueError):
        if out is not None:
            _check_out(out, source, size_and_rank(group)[0])
        raise
    return _finish([work], lambda: output, source, name, wait=False)


def _check_out(out: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """Only after a failure: torch has looked at it already."""
    wanted = size * source.numel()
    if out.numel() != wanted or out.dtype != source.dtype or out.device != source.device:
        raise ConfigurationError(
            f"out has {out.numel()} elements of {out.dtype} on {out.device}: "
            f"{wanted} of {source.dtype} on {source.device} are needed."
        )


def _make_joined(source: torch.Tensor, size: int) -> torch.Tensor:
    """Memory for the tensors of all ranks of a group of this size, one after the other."""
    if source.dim() == 1:
        return source.new_empty(size * source.numel())
    first, *rest = source.shape
    return source.new_empty(size * first, *rest)  # lengths one by one are faster than as a tuple


def gather(tensor: torch.Tensor, dst: int = 0, group: Group = None, async_op: bool = False) -> Any:
    """Gather tensors of one shape on one rank: a list there, in the order of the ranks, None elsewhere."""
    size, rank = size_and_rank(group)
    source = tensor.contiguous()
    parts = [torch.empty_like(source) for _ in range(size)] if rank == dst else None
    destination = global_rank(dst, group)
    name = "gather"
    if not async_op:
        _run(name, group, dist.gather, source, parts, destination)
        return parts
    with _explained(name):
        work = dist.gather(source, parts, dst=destination, group=group, async_op=True)
    return _finish([work], lambda: parts, source, name, wait=False)


def all_gather_unequal(tensor: torch.Tensor, group: Group = None) -> list[torch.Tensor]:
    """Gather tensors whose shapes differ by rank: every rank gets the list, in the order of the ranks."""
    size, _ = size_and_rank(group)
    with _explained("all_gather_unequal"):
        layouts = _exchange_layouts(tensor, group)
        sizes = [_byte_count(shape, dtype) for shape, dtype in layouts]
        if max(sizes) == 0:
            chunks = [torch.empty(0, dtype=torch.uint8, device=tensor.device)] * size
        elif should_pad(sizes):
            chunks = _all_gather_padded(tensor, sizes, group)
        else:
            chunks = _all_gather_by_broadcast(tensor, sizes, group)
    return [_from_bytes(chunk, *layout) for chunk, layout in zip(chunks, layouts, strict=True)]


def gather_unequal(tensor: torch.Tensor, dst: int = 0, group: Group = None) -> list[torch.Tensor] | None:
    """Gather tensors whose shapes differ by rank on one rank: a list there, None elsewhere. Nothing is padded."""
    _, rank = size_and_rank(group)
    destination = global_rank(dst, group)
    with _explained("gather_unequal"):
        layouts = _exchange_layouts(tensor, group)
        if rank != dst:
            payload = _to_bytes(tensor)
            if payload.numel():
                dist.send(payload, destination, group=group)
            return None
        parts: list[torch.Tensor] = []
        works = []
        for source, (shape, dtype) in enumerate(layouts):
            if source == rank:
                parts.append(_to_bytes(tensor).clone())
                continue
            part = torch.empty(_byte_count(shape, dtype), dtype=torch.uint8, device=tensor.device)
            if part.numel():
                works.append(_started(dist.irecv(part, global_rank(source, group), group=group)))
            parts.append(part)
        for work in works:
            work.wait()
    return [_from_bytes(part, *layout) for part, layout in zip(parts, layouts, strict=True)]


def send(tensor: torch.Tensor, dst: int, group: Group = None) -> None:
    """Send a tensor of any shape and dtype. The other side calls `recv`, which learns both from the message."""
    isend(tensor, dst, group).wait()


def recv(src: int, group: Group = None, device: torch.device | str | None = None) -> torch.Tensor:
    """Receive what `send` or `isend` sent, with its shape and dtype."""
    source = global_rank(src, group)
    place = torch.device(device) if device is not None else group_device(group)
    with _explained(f"recv from rank {src}"):
        header = torch.empty(_MOST_DIMENSIONS + 2, dtype=torch.int64, device=place)
        dist.recv(header, source, group=group)
        shape, dtype = _decode_layout(header.tolist())
        payload = torch.empty(_byte_count(shape, dtype), dtype=torch.uint8, device=place)
        if payload.numel():
            dist.recv(payload, source, group=group)
    return _from_bytes(payload, shape, dtype)


def isend(tensor: torch.Tensor, dst: int, group: Group = None) -> Pending[None]:
    """Start to send. The tensor must stay as it is until `wait()`; a change in place is reported there."""
    destination = global_rank(dst, group)
    header = torch.tensor(_encode_layout(tensor), dtype=torch.int64, device=tensor.device)
    payload = _to_bytes(tensor)
    name = f"send to rank {dst}"
    with _explained(name):
        works = [dist.isend(header, destination, group=group)]
        if payload.numel():
            works.append(dist.isend(payload, destination, group=group))
    keep = (header, payload)  # the backend reads both until wait()
    return Pending(works, lambda: (keep, None)[1], tensor, name)


def should_pad(sizes: Sequence[int]) -> bool:
    """Whether one padded all_gather moves less than twice what is needed; else each rank broadcasts its own."""
    return max(sizes) * len(sizes) <= 2 * sum(sizes)


def group_device(group: Group) -> torch.device:
    if "nccl" in str(dist.get_backend(group)) and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _started(work: Any) -> Any:
    if work is None:
        raise ConfigurationError("this rank is not in the group")
    return work


def _byte_count(shape: Sequence[int], dtype: torch.dtype) -> int:
    count = 1
    for length in shape:
        count *= length
    return count * dtype.itemsize


def _encode_layout(tensor: torch.Tensor) -> list[int]:
    if tensor.dim() > _MOST_DIMENSIONS:
        raise ConfigurationError(f"the tensor has {tensor.dim()} dimensions; at most {_MOST_DIMENSIONS} work.")
    if tensor.dtype not in _DTYPES:
        raise ConfigurationError(f"{tensor.dtype} cannot be sent: convert the tensor first.")
    padding = [0] * (_MOST_DIMENSIONS - tensor.dim())
    return [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *padding]


def _decode_layout(numbers: Sequence[int]) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(numbers[2 : 2 + numbers[1]]), _DTYPES[numbers[0]]


def _exchange_layouts(tensor: torch.Tensor, group: Group) -> list[tuple[tuple[int, ...], torch.dtype]]:
    mine = torch.tensor(_encode_layout(tensor), dtype=torch.int64, device=tensor.device)
    every = torch.empty(dist.get_world_size(group) * len(mine), dtype=torch.int64, device=tensor.device)
    _all_gather_flat(every, mine, group=group)
    return [_decode_layout(row) for row in every.reshape(-1, len(mine)).tolist()]


def _to_bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)


def _from_bytes(chunk: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if chunk.numel() == 0:
        return torch.empty(tuple(shape), dtype=dtype, device=chunk.device)
    return chunk.view(dtype).reshape(tuple(shape))


def _all_gather_padded(tensor: torch.Tensor, sizes: Sequence[int], group: Group) -> list[torch.Tensor]:
    stride = -(-max(sizes) // _ALIGNMENT) * _ALIGNMENT
    mine = torch.zeros(stride, dtype=torch.uint8, device=tensor.device)
    payload = _to_bytes(tensor)
    mine[: payload.numel()] = payload
    every = torch.empty(stride * len(sizes), dtype=torch.uint8, device=tensor.device)
    _all_gather_flat(every, mine, group=group)
    # Copies, so that a kept small part does not keep the whole padded buffer alive.
    return [every[i * stride : i * stride + size].clone() for i, size in enumerate(sizes)]


def _all_gather_by_broadcast(tensor: torch.Tensor, sizes: Sequence[int], group: Group) -> list[torch.Tensor]:
    rank = dist.get_rank(group)
    chunks = []
    for source, size in enumerate(sizes):
        chunk = torch.empty(size, dtype=torch.uint8, device=tensor.device)
        if source == rank:
            chunk = _to_bytes(tensor).clone()
        if size:
            dist.broadcast(chunk, global_rank(source, group), group=group)
        chunks.append(chunk)
    return chunks
