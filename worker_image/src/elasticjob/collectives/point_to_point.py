"""Sends a tensor of any shape and dtype to one rank of the group. The message contains both.

Nothing here supports autograd. If the other rank dies, each call raises `CollectiveFailedError` within the group's
timeout, and at once on gloo.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from elasticjob.collectives.explain import explained
from elasticjob.collectives.layout import (
    MOST_DIMENSIONS,
    byte_count,
    decode_layout,
    encode_layout,
    from_bytes,
    to_bytes,
)
from elasticjob.collectives.members import Group, global_rank, group_device
from elasticjob.collectives.pending import Pending


def send(tensor: torch.Tensor, dst: int, group: Group = None) -> None:
    """Send a tensor of any shape and dtype to rank `dst` of the group, which calls `recv`.

    Raises CollectiveFailedError if that rank was lost, ConfigurationError for an invalid rank or dtype.
    """
    isend(tensor, dst, group).wait()


def recv(src: int, group: Group = None, device: torch.device | str | None = None) -> torch.Tensor:
    """Receive the tensor that rank `src` of the group sent with `send` or `isend`, with its shape and dtype.

    `device` is the device of the result, by default that of the group's tensors. Raises like `send`.
    """
    source = global_rank(src, group)
    place = torch.device(device) if device is not None else group_device(group)
    with explained(f"recv from rank {src}"):
        header = torch.empty(MOST_DIMENSIONS + 2, dtype=torch.int64, device=place)
        dist.recv(header, source, group=group)
        shape, dtype = decode_layout(header.tolist())
        payload = torch.empty(byte_count(shape, dtype), dtype=torch.uint8, device=place)
        if payload.numel():
            dist.recv(payload, source, group=group)
    return from_bytes(payload, shape, dtype)


def isend(tensor: torch.Tensor, dst: int, group: Group = None) -> Pending[None]:
    """Start to send. Do not change the tensor until `wait()`, which reports a change in place.

    Raises like `send`, here or in `wait()`.
    """
    destination = global_rank(dst, group)
    header = torch.tensor(encode_layout(tensor), dtype=torch.int64, device=tensor.device)
    payload = to_bytes(tensor)
    name = f"send to rank {dst}"
    with explained(name):
        works = [dist.isend(header, destination, group=group)]
        if payload.numel():
            works.append(dist.isend(payload, destination, group=group))
    keep = (header, payload)  # kept alive: the backend reads both until wait()
    return Pending(works, lambda: (keep, None)[1], tensor, name)
