"""Sending a tensor of any shape and dtype to one rank of the group. The receiver learns both from the message.

Nothing here takes part in autograd. If the other side dies, each call raises `CollectiveFailedError` within the group's
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

    Raises CollectiveFailedError where that rank is gone, ConfigurationError for a rank or a dtype that cannot be.
    """
    isend(tensor, dst, group).wait()


def recv(src: int, group: Group = None, device: torch.device | str | None = None) -> torch.Tensor:
    """Receive what rank `src` of the group sent by `send` or `isend`, with its shape and dtype.

    `device` is where the result is made: by default where the group's tensors are. Raises as `send` does.
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
    """Start to send. The tensor must stay as it is until `wait()`; a change in place is reported there.

    Raises as `send` does, here or in `wait()`.
    """
    destination = global_rank(dst, group)
    header = torch.tensor(encode_layout(tensor), dtype=torch.int64, device=tensor.device)
    payload = to_bytes(tensor)
    name = f"send to rank {dst}"
    with explained(name):
        works = [dist.isend(header, destination, group=group)]
        if payload.numel():
            works.append(dist.isend(payload, destination, group=group))
    keep = (header, payload)  # the backend reads both until wait()
    return Pending(works, lambda: (keep, None)[1], tensor, name)
