"""Gathers tensors whose shapes differ by rank in any dimension, even in the number of dimensions or the dtype.

Tensors may be empty. Nothing here supports autograd. If a member dies, each call raises `CollectiveFailedError` within
the group's timeout, and at once on gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives.explain import explained
from elasticjob.collectives.layout import byte_count, decode_layout, encode_layout, from_bytes, to_bytes
from elasticjob.collectives.members import Group, global_rank, size_and_rank
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import groups

_ALIGNMENT = 16  # bytes, so that a part of the byte buffer can be viewed as any dtype


def all_gather_unequal(tensor: torch.Tensor, group: Group = None) -> list[torch.Tensor]:
    """Gather tensors whose shapes differ by rank: every rank gets the list, in rank order.

    Each item has the shape and dtype of its rank's tensor, and is on the device of `tensor`. Raises
    CollectiveFailedError if a rank was lost, ConfigurationError outside of the group or for a dtype that cannot be
    sent.
    """
    size, _ = size_and_rank(group)
    with explained("all_gather_unequal"):
        layouts = _exchange_layouts(tensor, group)
        sizes = [byte_count(shape, dtype) for shape, dtype in layouts]
        if max(sizes) == 0:
            chunks = [torch.empty(0, dtype=torch.uint8, device=tensor.device)] * size
        elif should_pad(sizes):
            chunks = _all_gather_padded(tensor, sizes, group)
        else:
            chunks = _all_gather_by_broadcast(tensor, sizes, group)
    return [from_bytes(chunk, *layout) for chunk, layout in zip(chunks, layouts, strict=True)]


def gather_unequal(tensor: torch.Tensor, dst: int = 0, group: Group = None) -> list[torch.Tensor] | None:
    """Gather tensors whose shapes differ by rank on rank `dst` of the group: a list there, None elsewhere.

    Nothing is padded. Raises like `all_gather_unequal`.
    """
    _, rank = size_and_rank(group)
    destination = global_rank(dst, group)
    with explained("gather_unequal"):
        layouts = _exchange_layouts(tensor, group)
        if rank != dst:
            payload = to_bytes(tensor)
            if payload.numel():
                dist.send(payload, destination, group=group)
            return None
        parts: list[torch.Tensor] = []
        works = []
        for source, (shape, dtype) in enumerate(layouts):
            if source == rank:
                parts.append(to_bytes(tensor).clone())
                continue
            part = torch.empty(byte_count(shape, dtype), dtype=torch.uint8, device=tensor.device)
            if part.numel():
                works.append(_started(dist.irecv(part, global_rank(source, group), group=group)))
            parts.append(part)
        for work in works:
            work.wait()
    return [from_bytes(part, *layout) for part, layout in zip(parts, layouts, strict=True)]


def should_pad(sizes: Sequence[int]) -> bool:
    """Whether one padded all_gather moves less than twice the `sizes` (bytes); otherwise each rank
    broadcasts its own.
    """
    return max(sizes) * len(sizes) <= 2 * sum(sizes)


def _started(work: Any) -> Any:
    if work is None:
        raise ConfigurationError("this rank is not in the group")
    return work


def _exchange_layouts(tensor: torch.Tensor, group: Group) -> list[tuple[tuple[int, ...], torch.dtype]]:
    mine = torch.tensor(encode_layout(tensor), dtype=torch.int64, device=tensor.device)
    every = torch.empty(dist.get_world_size(group) * len(mine), dtype=torch.int64, device=tensor.device)
    groups.find_all_gather()(every, mine, group=group)
    return [decode_layout(row) for row in every.reshape(-1, len(mine)).tolist()]


def _all_gather_padded(tensor: torch.Tensor, sizes: Sequence[int], group: Group) -> list[torch.Tensor]:
    stride = -(-max(sizes) // _ALIGNMENT) * _ALIGNMENT
    mine = torch.zeros(stride, dtype=torch.uint8, device=tensor.device)
    payload = to_bytes(tensor)
    mine[: payload.numel()] = payload
    every = torch.empty(stride * len(sizes), dtype=torch.uint8, device=tensor.device)
    groups.find_all_gather()(every, mine, group=group)
    # Copies, so that a small part does not keep the whole padded buffer alive.
    return [every[i * stride : i * stride + size].clone() for i, size in enumerate(sizes)]


def _all_gather_by_broadcast(tensor: torch.Tensor, sizes: Sequence[int], group: Group) -> list[torch.Tensor]:
    rank = dist.get_rank(group)
    chunks = []
    for source, size in enumerate(sizes):
        chunk = torch.empty(size, dtype=torch.uint8, device=tensor.device)
        if source == rank:
            chunk = to_bytes(tensor).clone()
        if size:
            dist.broadcast(chunk, global_rank(source, group), group=group)
        chunks.append(chunk)
    return chunks
