"""The in-pod runtime of ElasticJob. Importing it starts nothing, writes nothing and does not import torch.

Everything a training script needs is here by name and is loaded when it is first used:

    import elasticjob

    world = elasticjob.init()
    elasticjob.report(step=1, total=100, loss=0.5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from elasticjob.checked import checked as checked
    from elasticjob.checkpoint import Checkpointer as Checkpointer
    from elasticjob.checkpoint import on_signal as on_signal
    from elasticjob.collectives import all_gather as all_gather
    from elasticjob.collectives import all_gather_unequal as all_gather_unequal
    from elasticjob.collectives import all_reduce as all_reduce
    from elasticjob.collectives import gather as gather
    from elasticjob.collectives import gather_unequal as gather_unequal
    from elasticjob.collectives import isend as isend
    from elasticjob.collectives import new_groups as new_groups
    from elasticjob.collectives import recv as recv
    from elasticjob.collectives import send as send
    from elasticjob.context import Context as Context
    from elasticjob.context import current as current
    from elasticjob.data import ElasticDistributedSampler as ElasticDistributedSampler
    from elasticjob.data import learning_rate_factor as learning_rate_factor
    from elasticjob.data import scale_learning_rate as scale_learning_rate
    from elasticjob.errors import ElasticJobError as ElasticJobError
    from elasticjob.progress import report as report
    from elasticjob.session import Session as Session
    from elasticjob.setup import World as World
    from elasticjob.setup import init as init

_HOME = {
    "checked": "checked",
    "Checkpointer": "checkpoint",
    "on_signal": "checkpoint",
    "all_gather": "collectives",
    "all_gather_unequal": "collectives",
    "all_reduce": "collectives",
    "gather": "collectives",
    "gather_unequal": "collectives",
    "isend": "collectives",
    "new_groups": "collectives",
    "recv": "collectives",
    "send": "collectives",
    "Context": "context",
    "current": "context",
    "ElasticDistributedSampler": "data",
    "learning_rate_factor": "data",
    "scale_learning_rate": "data",
    "ElasticJobError": "errors",
    "report": "progress",
    "Session": "session",
    "World": "setup",
    "init": "setup",
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
