"""The model as the training loop calls it: DDP in a world of several, the plain module alone.

DDP is bound to one process group, so each world gets a new one around the same module. The parameters stay the
same objects, so the optimizer never notices.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from elasticjob.errors import ConfigurationError


def check_model(model: torch.nn.Module) -> None:
    """Refuse what a session cannot carry from one world to the next."""
    if isinstance(model, DistributedDataParallel):
        raise ConfigurationError(
            "Session(model=...) got a DistributedDataParallel: it is bound to one world. Give it the plain module;"
            " session.model is the DDP of the present world."
        )
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor":
            raise ConfigurationError(
                f"Session(model=...) cannot keep a sharded model: {name!r} is a DTensor, and a lost rank takes its"
                " shards with it. Use elasticjob.Checkpointer and restarts instead: it reads the shards at any world"
                " size. worker_image/examples/fsdp.py shows it."
            )


class ElasticModel(torch.nn.Module):
    """Calls the module through the DDP of the present world."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        # Not a submodule: its parameters would be counted twice.
        self.__dict__["_ddp"] = None

    def bind(self, world_size: int, sync: bool = False) -> None:
        """Enter a world; `sync` sends rank 0's parameters to all, as DDP does by itself."""
        self.__dict__["_ddp"] = None
        if world_size == 1 or not any(parameter.requires_grad for parameter in self.module.parameters()):
            return
        first = next(self.module.parameters())
        devices = [first.device] if first.is_cuda else None
        self.__dict__["_ddp"] = DistributedDataParallel(self.module, device_ids=devices, init_sync=sync)

    def unbind(self) -> None:
        """Leave the world. The module and its parameters stay."""
        self.__dict__["_ddp"] = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        ddp = self.__dict__["_ddp"]
        return self.module(*args, **kwargs) if ddp is None else ddp(*args, **kwargs)

    def accumulate(self, active: bool) -> contextlib.AbstractContextManager[Any]:
        """While gradients are accumulated they are not reduced."""
        ddp = self.__dict__["_ddp"]
        if ddp is None or not active:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = ddp.no_sync()
        return context
