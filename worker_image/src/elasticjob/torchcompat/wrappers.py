"""Modules that only wrap another one: their names are no part of the names in a checkpoint."""

from __future__ import annotations

import torch

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_COMPILED = "_orig_mod"  # of torch.compile
_RECOMPUTED = "_checkpoint_wrapped_module"  # of activation checkpointing


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The model without what only wraps it: below that, torch cannot set a state with modules that are used twice."""
    while True:
        inner = dict(model.named_children())
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = inner["module"]
        elif _COMPILED in inner:
            model = inner[_COMPILED]
        else:
            return model


def strip(name: str) -> str:
    """The name of a parameter without the modules that only wrap others."""
    return ".".join(part for part in name.split(".") if part not in (_COMPILED, _RECOMPUTED))


PROBES = (
    Probe(
        "names in a checkpoint do not depend on torch.compile and activation checkpointing",
        (
            f"torch._dynamo.OptimizedModule.{_COMPILED}",
            f"torch.distributed.algorithms._checkpoint.checkpoint_wrapper.{_RECOMPUTED}",
        ),
        "a checkpoint can only be restored into a model that is wrapped in the same way; else restore() says so",
        probe.has_all("torch.distributed.algorithms._checkpoint.checkpoint_wrapper._CHECKPOINT_WRAPPED_MODULE"),
    ),
)
