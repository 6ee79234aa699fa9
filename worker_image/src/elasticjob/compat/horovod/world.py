"""Who is in the world, and what it is made of: `hvd.init()`, `hvd.rank()` and others."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.context import setup
from elasticjob.context.context import read_integer
from elasticjob.errors import ConfigurationError

global_process_set: Any = None  # the world: what `process_set` is by default


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the world that the launcher describes; alone without one. A second call does nothing.

    Raises ConfigurationError as `elasticjob.init` does, and for `comm` or `process_sets`.
    """
    if comm or process_sets:
        raise ConfigurationError(
            "hvd.init(comm=..., process_sets=...): only the world of all ranks is here. Leave both out, and use groups"
            " of torch.distributed beside it."
        )
    setup.init()


def shutdown() -> None:
    """Leave the world. Also called at exit; repeated calls are harmless."""
    if is_initialized():
        setup.init().close()


def is_initialized() -> bool:
    """Whether this process is in a world."""
    return bool(dist.is_available() and dist.is_initialized())


def rank() -> int:
    """The rank of this process. Raises ConfigurationError before `init`, as all here."""
    require()
    return dist.get_rank()


def size() -> int:
    """The number of ranks."""
    require()
    return dist.get_world_size()


def local_rank() -> int:
    """The rank of this process in its pod."""
    require()
    return read_integer(os.environ, "LOCAL_RANK", 0)


def local_size() -> int:
    """The number of ranks in this pod."""
    require()
    return read_integer(os.environ, "LOCAL_WORLD_SIZE", 1, least=1)


def cross_rank() -> int:
    """The rank of this pod."""
    require()
    return read_integer(os.environ, "GROUP_RANK", 0)


def cross_size() -> int:
    """The number of pods."""
    require()
    return read_integer(os.environ, "GROUP_WORLD_SIZE", 1, least=1)


def _is_absent() -> bool:
    """False: neither MPI nor the libraries of IBM and Intel are here."""
    return False


mpi_built = mpi_enabled = mpi_threads_supported = ddl_built = ccl_built = _is_absent


def gloo_built() -> bool:
    """Whether torch has gloo."""
    return bool(dist.is_available() and dist.is_gloo_available())


def gloo_enabled() -> bool:
    """Whether the world communicates by gloo."""
    return is_initialized() and "gloo" in str(dist.get_backend())


def nccl_built() -> int:
    """1 if torch has NCCL, else 0."""
    return int(dist.is_available() and dist.is_nccl_available() and torch.version.hip is None)


def cuda_built() -> bool:
    """Whether torch was built for CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built for ROCm."""
    return torch.version.hip is not None


def require(process_set: Any = None) -> None:
    """Raises ConfigurationError outside of a world, and for a process set other than the whole world."""
    if not is_initialized():
        raise ConfigurationError("Horovod is not initialized: call hvd.init() first.")
    if process_set is not global_process_set:
        raise ConfigurationError(
            "process_set: only hvd.global_process_set is here. Use a group of torch.distributed: World.subgroup of"
            " elasticjob.init()."
        )


def find_device() -> str:
    """Where a tensor of the runtime's own has to be."""
    return "cuda" if is_initialized() and str(dist.get_backend()) == "nccl" else "cpu"
