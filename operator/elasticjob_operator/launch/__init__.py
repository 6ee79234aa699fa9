"""Code that travels: a script, a folder or a function of this machine becomes a job.

    from elasticjob_operator.launch import launch

    run = launch("train.py", workers=(1, 4), image="my/training:1", on="cluster")
    run.wait()

`bundle` reads files, `function` writes a function down as a module, `attach` adds both to a manifest (all three without
a cluster); `send` creates the objects, `local` starts a cluster on this machine, and `run` is the handle of a job.
`distributor` has the interface of PySpark's TorchDistributor.

The names below are imported when they are used: the command line needs only a part of the modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticjob_operator.launch.bundle import CodeError
    from elasticjob_operator.launch.distributor import TorchDistributor
    from elasticjob_operator.launch.local import LocalError
    from elasticjob_operator.launch.run import ResultError, Run
    from elasticjob_operator.launch.start import launch, stop_local

_HOME = {
    "CodeError": "bundle",
    "LocalError": "local",
    "ResultError": "run",
    "Run": "run",
    "TorchDistributor": "distributor",
    "launch": "start",
    "stop_local": "start",
}
__all__ = ["CodeError", "LocalError", "ResultError", "Run", "TorchDistributor", "launch", "stop_local"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
