"""What the adapters need of the other ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist


def agree(wants: bool, device: torch.device | str) -> bool:
    """Whether any rank wants it: one all-reduce of one number."""
    if not dist.is_initialized():
        return wants
    flag = torch.tensor([float(wants)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def wait_for_all() -> None:
    """The agent ends the world when every rank has said that its part is written, so no rank may say it too early."""
    if dist.is_initialized():
        dist.barrier()
