"""A sharded model (FSDP2) over worlds of different sizes: made anew in each, filled from the shards of the one before.

Before a world ends in order its ranks put their shards together, one tensor at a time, and each keeps the whole in host
memory until the next world has taken its shards from it. A rank that is lost takes its shards with it: then only the
checkpoint helps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from elasticjob.errors import ConfigurationError
from elasticjob.sessionmodel import StepHooks, hook

try:
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor, distribute_tensor  # type: ignore[attr-defined]

Build = Callable[[DeviceMesh], tuple[torch.nn.Module, torch.optim.Optimizer]]


class ShardedCarrier:
    """A model of which every rank has a part."""

    survives_loss = False

    def __init__(self, build: Build, hooks: StepHooks) -> None:
        self._build = build
        self._hooks = hooks
        self._made: tuple[torch.nn.Module, torch.optim.Optimizer] | None = None
        self._whole: dict[str, Any] | None = None  # between two worlds

    @property
    def model(self) -> Any:
        return self._present()[0]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._present()[1]

    def _present(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        if self._made is None:
            raise ConfigurationError("there is no world now, and so no sharded model")
        return self._made

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # of what travels

    def bind(self, generation: int, sync: bool = False) -> None:
        # torch remembers the shapes of shards by mesh, and takes two meshes for one whatever rank this process has in
        # them: so each world's has a name of its own.
        kind = "cuda" if "nccl" in dist.get_backend() else "cpu"
        mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=(f"generation_{generation}",))
        self._made = self._build(mesh)
        hook(self.optimizer, self._hooks)

    def pack(self) -> None:
        if self._made is not None:
            model, optimizer = self._made
            self._whole = {"model": gather(model.state_dict()), "optimizer": gather(optimizer.state_dict())}

    def unbind(self) -> None:
        self._made = None

    def state(self) -> dict[str, Any]:
        return self._whole or {"model": None, "optimizer": None}

    def load(self, value: dict[str, Any]) -> None:
        self._whole = {"model": value["model"], "optimizer": value["optimizer"]}

    def settle(self) -> None:
        if self._whole is None or self._whole["model"] is None:
            return  # nobody has trained yet: `build` made or loaded what counts
        model, optimizer = self._present()
        model.load_state_dict(shard_like(model.state_dict(), self._whole["model"]))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = self._whole["optimizer"]
        states = {
            index: {name: _shard_like(parameters[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": states})
        self._whole = None

    def accumulate(self, active: bool) -> contextlib.AbstractContextManager[Any]:
        return self._accumulate() if active else contextlib.nullcontext()

    @contextlib.contextmanager
    def _accumulate(self) -> Iterator[None]:
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)


def gather(value: Any) -> Any:
    """Every shard put together and brought to the host, the rest as it is. All ranks call it."""
    if isinstance(value, DTensor):
        return value.full_tensor().detach().cpu()
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: gather(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([gather(item) for item in value])
    return value


def shard_like(pattern: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Each tensor of `whole` cut as the one of its name in `pattern`. All ranks call it."""
    return {name: _shard_like(pattern.get(name), value) for name, value in whole.items()}


def _shard_like(pattern: Any, value: Any) -> Any:
    if not isinstance(pattern, torch.Tensor) or not isinstance(value, torch.Tensor) or value.shape != pattern.shape:
        return value  # for example an optimizer's count of steps
    data = pattern.data
    if not isinstance(data, DTensor):
        return value.to(data.device)
    return distribute_tensor(value.to(data.device), data.device_mesh, data.placements)
