"""Modules that only wrap another one: their names are no part of the names in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_COMPILED = "_orig_mod"  # of torch.compile
_RECOMPUTED = "_checkpoint_wrapped_module"  # of activation checkpointing


class Transparent(torch.nn.Module):
    """A module around another one, with the attributes of that, and its names in a state."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # it is being made
                raise
            return getattr(self.module, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _get, (self.module,)  # a copy, or what is saved, is the module alone

    # The names of all these have no "module." in front, so what is saved of it fits the module without a session.

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Module]]:
        found: Iterator[tuple[str, torch.nn.Module]] = self.module.named_modules(*args, **kwargs)
        return found

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(*args, **kwargs)


def _get(module: torch.nn.Module) -> torch.nn.Module:
    return module


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The model without what only wraps it: below that, torch cannot set a state with modules that are used twice."""
    while True:
        inner = dict(model.named_children())
        if isinstance(model, (torch.nn.parallel.DistributedDataParallel, Transparent)):
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
