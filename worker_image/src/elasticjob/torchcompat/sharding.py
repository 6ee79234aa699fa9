"""Sharded tensors (DTensor, FSDP2): where their classes are, and how to free torch's caches of old meshes."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor import distribute_tensor as _distribute
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor, Replicate, Shard  # type: ignore[attr-defined]
    from torch.distributed._tensor import distribute_tensor as _distribute  # type: ignore[attr-defined]

__all__ = [
    "HAS_FSDP_ON_CPU",
    "PROBES",
    "DTensor",
    "Replicate",
    "Shard",
    "distribute_like",
    "find_fsdp_modules",
    "forget_meshes",
    "has_custom_reduce",
    "is_flat",
    "is_reduced_whole",
    "wrap_like",
]

HAS_FSDP_ON_CPU = hasattr(torch.cpu.Stream, "record_event")  # since torch 2.7; FSDP2 calls it in every forward pass

# Every rank takes its shards from its own copy; before torch 2.6 rank 0 sends them.
_CUTS_ITS_OWN = probe.takes("torch.distributed.tensor.distribute_tensor", "src_data_rank")
_OWN_COPY: dict[str, Any] = {"src_data_rank": None} if _CUTS_ITS_OWN else {}

_FSDP = "torch.distributed.fsdp"
_APPLIED = "torch.distributed._composable.contract._get_registry"

_TENSOR = "torch.distributed.tensor"
_MEMORIES = (
    f"{_TENSOR}.debug._clear_sharding_prop_cache",
    f"{_TENSOR}._redistribute.clear_redistribute_planner_cache",
    f"{_TENSOR}._redistribute._gen_transform_infos.cache_clear",
    f"{_TENSOR}._collective_utils.MeshTopoInfo.build_from_mesh.cache_clear",
)


def distribute_like(value: torch.Tensor, pattern: DTensor) -> DTensor:
    """Shard `value`, which every rank has completely, like `pattern`. All ranks call it."""
    return _distribute(value, pattern.device_mesh, pattern.placements, **_OWN_COPY)


def wrap_like(local: torch.Tensor, pattern: DTensor) -> DTensor:
    """A sharded tensor like `pattern`, of which this is the rank's part."""
    return DTensor.from_local(
        local,
        pattern.device_mesh,
        pattern.placements,
        run_check=False,
        shape=pattern.shape,
        stride=pattern.stride(),
    )


def find_fsdp_modules(model: torch.nn.Module) -> list[Any]:
    """The modules of a model that FSDP2 shards; none in a torch without FSDP2's public name."""
    kind = getattr(sys.modules.get(_FSDP), "FSDPModule", None)  # a sharded model has imported it, and it is large
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def is_flat(model: torch.nn.Module) -> bool:
    """Whether FSDP1 shards the model, or a part of it."""
    kind = getattr(sys.modules.get(_FSDP), "FullyShardedDataParallel", None)
    return kind is not None and any(isinstance(module, kind) for module in model.modules())


def is_reduced_whole(model: torch.nn.Module) -> bool:
    """Whether DDP or `replicate` reduces gradients of the model: there need be no DTensor then."""
    find_applied = probe.find(_APPLIED) or (lambda _: None)
    return any(
        isinstance(module, DistributedDataParallel) or "replicate" in (find_applied(module) or ())
        for module in model.modules()
    )


def has_custom_reduce() -> bool:
    """Whether the reduce-scatter of FSDP2 can be replaced by a public method. It imports FSDP2."""
    kind = f"{_FSDP}.FSDPModule"
    return probe.has_all(f"{kind}.set_custom_reduce_scatter", f"{kind}.set_gradient_divide_factor")()


def forget_meshes() -> None:
    """Free torch's sharding caches, which keep every mesh with its groups, threads and sockets alive."""
    forgetting = [probe.find(path) for path in _MEMORIES]
    for forget in forgetting:
        if forget is not None:
            forget()
    if None in forgetting:
        for cache in _find_caches():
            cache.cache_clear()
    gc.collect()  # objects of earlier worlds are in reference cycles


def _find_caches() -> Iterator[Any]:
    """Every cached function of torch's DTensor package and of its classes."""
    for name, module in list(sys.modules.items()):
        if name == _TENSOR or name.startswith(f"{_TENSOR}."):
            for value in list(vars(module).values()):
                inner = list(vars(value).values()) if isinstance(value, type) else []
                for one in (value, *inner):
                    function = getattr(one, "__func__", one)  # the function of a static method
                    if isinstance(function, functools._lru_cache_wrapper):
                        yield function


PROBES = (
    Probe(
        "the sockets and threads of a sharded model's last world are freed",
        _MEMORIES,
        "all caches of torch's sharded tensors are emptied at each change, and one that is no cached function stays",
        probe.has_all(*_MEMORIES),
    ),
    Probe(
        "FSDP2 on the CPU",
        ("torch.cpu.Stream.record_event",),
        "Session(build=...) asks for a newer torch where there is no CUDA device",
        lambda: HAS_FSDP_ON_CPU,
    ),
    Probe(
        "a built model that `replicate` reduces is told from the stages of a pipeline",
        (_APPLIED,),
        "Session(build=...) refuses such a model in a world of several ranks",
        probe.has_all(_APPLIED),
    ),
    Probe(
        "each rank cuts its shards out of its own copy",
        ("torch.distributed.tensor.distribute_tensor(src_data_rank)",),
        "rank 0 sends every shard at each change of a sharded session",
        lambda: _CUTS_ITS_OWN,
    ),
)
