"""The in-pod runtime of ElasticJob. Importing it starts nothing, writes nothing and does not import torch.

It provides everything for a training script by name, loaded on first use:

    import elasticjob

    world = elasticjob.init()
    elasticjob.report(step=1, total=100, loss=0.5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from elasticjob.channel.progress import report as report
    from elasticjob.checkpoint.checkpointer import Checkpointer as Checkpointer
    from elasticjob.checkpoint.requests import on_signal as on_signal
    from elasticjob.collectives.checked import checked as checked
    from elasticjob.collectives.members import new_groups as new_groups
    from elasticjob.collectives.point_to_point import isend as isend
    from elasticjob.collectives.point_to_point import recv as recv
    from elasticjob.collectives.point_to_point import send as send
    from elasticjob.collectives.tensors import all_gather as all_gather
    from elasticjob.collectives.tensors import all_reduce as all_reduce
    from elasticjob.collectives.tensors import gather as gather
    from elasticjob.collectives.unequal import all_gather_unequal as all_gather_unequal
    from elasticjob.collectives.unequal import gather_unequal as gather_unequal
    from elasticjob.context.context import Context as Context
    from elasticjob.context.context import current as current
    from elasticjob.context.setup import World as World
    from elasticjob.context.setup import init as init
    from elasticjob.data.batch_growth import BatchGrowth as BatchGrowth
    from elasticjob.data.parquet import ParquetDataset as ParquetDataset
    from elasticjob.data.samplers import ElasticDistributedSampler as ElasticDistributedSampler
    from elasticjob.data.samplers import learning_rate_factor as learning_rate_factor
    from elasticjob.data.samplers import scale_learning_rate as scale_learning_rate
    from elasticjob.data.virtual_ranks import VirtualRanks as VirtualRanks
    from elasticjob.errors import ElasticJobError as ElasticJobError
    from elasticjob.sessions.session import Session as Session

_HOME = {
    "checked": "collectives.checked",
    "Checkpointer": "checkpoint",
    "on_signal": "checkpoint",
    "all_gather": "collectives.tensors",
    "all_gather_unequal": "collectives.unequal",
    "all_reduce": "collectives.tensors",
    "gather": "collectives.tensors",
    "gather_unequal": "collectives.unequal",
    "isend": "collectives.point_to_point",
    "new_groups": "collectives.members",
    "recv": "collectives.point_to_point",
    "send": "collectives.point_to_point",
    "Context": "context.context",
    "current": "context.context",
    "BatchGrowth": "data.batch_growth",
    "ParquetDataset": "data.parquet",
    "ElasticDistributedSampler": "data.samplers",
    "learning_rate_factor": "data.samplers",
    "scale_learning_rate": "data.samplers",
    "ElasticJobError": "errors",
    "report": "channel.progress",
    "Session": "sessions.session",
    "VirtualRanks": "data.virtual_ranks",
    "World": "context.setup",
    "init": "context.setup",
}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604 - the names are strings


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'elasticjob' has no attribute {name!r}")
    value = getattr(import_module(f"elasticjob.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
