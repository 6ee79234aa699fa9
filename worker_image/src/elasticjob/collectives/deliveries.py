"""Large tensors from one rank to another over gloo, whose sender may die at any byte.

gloo tells whoever waits for a message that its sender is gone, but not if a part of the message has arrived: that wait
ends with the group's timeout, and nothing else ends it. So an empty message follows each one, and is waited for first.
It arrives behind the other, and never in part.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Delivery:
    """A tensor that is sent or received, and its end. It keeps the memory."""

    def __init__(self, works: list[Any], *tensors: torch.Tensor) -> None:
        self._works, self._tensors = works, tensors

    def wait(self) -> None:
        """Raises RuntimeError if the other rank is lost. A send may be done before anything has arrived."""
        for work in reversed(self._works):
            if work is not None:
                work.wait()


def send(tensor: torch.Tensor, rank: int, group: Any, tag: int = 0) -> Delivery:
    """Start to send to this rank of the world, which calls `receive`."""
    end = torch.empty(0, dtype=torch.uint8)
    works = [dist.isend(one, rank, group=group, tag=tag) for one in (tensor, end)]
    return Delivery(works, tensor, end)


def receive(tensor: torch.Tensor, rank: int, group: Any, tag: int = 0) -> Delivery:
    """Start to receive into this tensor, which is as large as the one that this rank of the world sends."""
    end = torch.empty(0, dtype=torch.uint8)
    works = [dist.irecv(one, rank, group=group, tag=tag) for one in (tensor, end)]
    return Delivery(works, tensor, end)
