"""The shards that the ranks of a lost world still have, and how to reassemble the model from them.

If a model is sharded over some ranks and replicated over others (HSDP), another rank has the shards of a lost rank. But
a step may be applied on some ranks and not on others, and the copies must be of the same step. The choice is a pure
function of the inventories of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from elasticjob.sessions.state import StateLostError
from elasticjob.torchcompat.sharding import DTensor, Replicate, Shard

_LOCAL = "elasticjob.shard"  # the key that marks a shard in the data of a state


@dataclass(frozen=True)
class ShardInventory:
    """What one rank has in memory."""

    step: int = -1  # the last step applied to it; -1 for a joiner
    clean: bool = True  # no step is partially applied
    whole: bool = False  # it has the complete model
    world: int = -1  # the generation in which the model was sharded
    shard: int = -1  # the index of its shard; -1: none
    shards: int = 0  # the number of shards of the model
    ahead: bool = False  # it also has its shard as of the next step

    def to_row(self) -> torch.Tensor:
        return torch.tensor([int(value) for value in astuple(self)], dtype=torch.int64)

    @classmethod
    def from_row(cls, row: torch.Tensor) -> ShardInventory:
        step, clean, whole, world, shard, shards, ahead = row.tolist()
        return cls(step, bool(clean), bool(whole), world, shard, shards, bool(ahead))


@dataclass(frozen=True)
class RecoveryPlan:
    """The step from which the ranks continue, and which ranks have it."""

    step: int  # -1: no rank has trained yet
    sources: tuple[int, ...] = ()  # a rank for each shard; empty if one rank has the whole model


def count_shards(world_size: int, shards: int | None) -> int:
    """The number of shards: the smallest divisor of the world size that is at least `shards`."""
    least = world_size if shards is None else min(shards, world_size)
    return next(n for n in range(least, world_size + 1) if world_size % n == 0)


def plan_recovery(shard_inventories: Sequence[ShardInventory]) -> RecoveryPlan:
    """The latest step of which all shards exist. Raises StateLostError if there is none.

    A step counts only if some rank has completed it: that rank also has the sampler's position and the effects of the
    script's code after the optimizer. The other ranks had all gradients of the step before any rank applied it.
    """
    if all(shard_inventory.step < 0 for shard_inventory in shard_inventories):
        return RecoveryPlan(-1)
    ended = [
        shard_inventory for shard_inventory in shard_inventories if shard_inventory.clean and shard_inventory.step >= 0
    ]
    for step in sorted({shard_inventory.step for shard_inventory in ended}, reverse=True):
        here = [shard_inventory for shard_inventory in ended if shard_inventory.step == step]
        if any(shard_inventory.whole for shard_inventory in here):
            return RecoveryPlan(step)
        for world in sorted(
            {shard_inventory.world for shard_inventory in here if shard_inventory.shard >= 0}, reverse=True
        ):
            sources = _find_sources(shard_inventories, step, world)
            if sources:
                return RecoveryPlan(step, sources)
    raise StateLostError("lost ranks took their shards with them, and not all had a copy of the same step")


def _find_sources(shard_inventories: Sequence[ShardInventory], step: int, world: int) -> tuple[int, ...]:
    """A rank for each shard of one world; empty if a shard is missing."""
    holders: dict[int, int] = {}
    count = 0
    for rank, shard_inventory in enumerate(shard_inventories):
        has_step = shard_inventory.step == step or (shard_inventory.ahead and shard_inventory.step + 1 == step)
        if shard_inventory.clean and has_step and shard_inventory.world == world and shard_inventory.shard >= 0:
            holders.setdefault(shard_inventory.shard, rank)
            count = shard_inventory.shards
    return tuple(holders[i] for i in range(count)) if len(holders) == count else ()


def take_local(value: Any) -> Any:
    """A state in which each sharded tensor is replaced by a copy of this rank's part in host memory.

    Raises ValueError for a placement that is not supported.
    """
    if isinstance(value, DTensor):
        return {_LOCAL: value.to_local().detach().cpu().clone(), "dim": _find_dim(value)}
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: take_local(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([take_local(item) for item in value])
    return value


def _find_dim(tensor: Any) -> int:
    """The sharded dimension; -1 if every rank has the whole tensor."""
    cuts = [placement for placement in tensor.placements if not isinstance(placement, Replicate)]
    if not cuts:
        return -1
    if len(cuts) > 1 or type(cuts[0]) is not Shard or tensor.placements[-1] is not cuts[0]:
        raise ValueError(f"a tensor with the placements {tuple(tensor.placements)} cannot be put together")
    return int(cuts[0].dim)


def put_together(parts: Sequence[Any]) -> Any:
    """The whole state, from the parts of each shard's rank, in shard order."""
    first = parts[0]
    if isinstance(first, dict):
        if _LOCAL in first:
            locals = [part[_LOCAL] for part in parts]
            return locals[0] if first["dim"] < 0 else torch.cat(locals, dim=first["dim"])
        return {key: put_together([part[key] for part in parts]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)([put_together(items) for items in zip(*parts, strict=True)])
    return first
