"""The members of a group: its size, ranks and device, and sub-groups. A rank is always the rank *in the group*.

(In some calls torch expects the global rank, whatever the group.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.errors import ConfigurationError

Group = Any  # dist.ProcessGroup | None: builds of torch without distributed do not have the class


def size_and_rank(group: Group = None) -> tuple[int, int]:
    """The size of the group and this process's rank in it. Raises ConfigurationError if it is not a member."""
    members: Any = dist.group.WORLD if group is None else group
    try:  # query the group directly: torch's functions check three times that it exists
        return members.size(), members.rank()
    except AttributeError:  # no group, or torch's marker for non-members
        pass
    if not dist.is_initialized():
        raise ConfigurationError("torch.distributed is not set up: call elasticjob.init() or init_process_group().")
    raise ConfigurationError(f"rank {dist.get_rank()} is not in this group: only members may call its collectives.")


def global_rank(group_rank: int, group: Group = None) -> int:
    """The rank in the world of a rank in the group. Raises ConfigurationError if the group has no such rank."""
    size, _ = size_and_rank(group)
    if not 0 <= group_rank < size:
        raise ConfigurationError(f"rank {group_rank} does not exist: the group has ranks 0 to {size - 1}.")
    return group_rank if group is None else int(dist.get_global_rank(group, group_rank))


def new_groups(members: Sequence[Sequence[int]], **options: Any) -> list[Group]:
    """Create a sub-group for each list of ranks of the world, and return the groups that this rank is in.

    torch requires every rank of the world to create every group, in the same order, including groups that it is not in.
    This function does that; call it on all ranks with the same argument. `options` are those of torch's `new_group`.
    """
    rank = dist.get_rank()
    made = [(list(ranks), dist.new_group(list(ranks), **options)) for ranks in members]
    return [group for ranks, group in made if rank in ranks]


def group_device(group: Group) -> torch.device:
    """The device that the group's tensors must be on: this process's CUDA device for NCCL, otherwise the CPU."""
    if "nccl" in str(dist.get_backend(group)) and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
