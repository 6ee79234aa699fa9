"""What differs between the versions of torch, found by looking for the feature and never by comparing versions.

Here are the names of torch that are not part of its promise. Each has one small function that says what it is for and
does without where the name is gone.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CAN_SKIP_SYNC = "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters  # since torch 2.7
HAS_FSDP_ON_CPU = hasattr(torch.cpu.Stream, "record_event")  # since torch 2.7; FSDP2 calls it in every forward pass


def make_ddp(module: torch.nn.Module, devices: Sequence[torch.device] | None, sync: bool) -> DistributedDataParallel:
    """DDP around a module; with `sync`, or where torch cannot do without, rank 0's parameters go to all ranks."""
    if not CAN_SKIP_SYNC:
        return DistributedDataParallel(module, device_ids=devices)
    return DistributedDataParallel(module, device_ids=devices, init_sync=sync)


def name_groups_anew() -> None:
    """Let the names of process groups begin from the start, as in the ranks that are new.

    torch names groups by counting, and counts those too that it could not make: ranks that failed to enter an earlier
    world would look for the others under another name.
    """
    world: Any = getattr(dist.distributed_c10d, "_world", None)
    if hasattr(world, "group_count"):
        world.group_count = 0


def find_groups() -> list[Any]:
    """All process groups of this process, those of meshes too; none where torch keeps them under another name.

    It is called in another thread than the one that makes and destroys them.
    """
    with contextlib.suppress(AttributeError, TypeError, RuntimeError):
        return list(dist.distributed_c10d._world.pg_map)
    return [dist.group.WORLD] if dist.is_initialized() else []
