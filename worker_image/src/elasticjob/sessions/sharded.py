"""A sharded model (FSDP2) in worlds of different sizes: rebuilt in each, and filled from the shards of the last one.

Before a world ends in order, its ranks gather their shards one tensor at a time, and each keeps the whole model in host
memory until the next world has taken its shards from it. A lost rank takes its shards with it: if other ranks have
copies (HSDP), the remaining ranks keep theirs and reassemble the model in the next world; otherwise only the checkpoint
helps.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from elasticjob.errors import ConfigurationError
from elasticjob.sessions import shards, transfer
from elasticjob.sessions.model_state import ModelState, ReplicatedModelState, StepHooks, hook
from elasticjob.torchcompat import sharding
from elasticjob.torchcompat.sharding import DTensor

logger = logging.getLogger("elasticjob")

Build = Callable[[DeviceMesh], tuple[torch.nn.Module, torch.optim.Optimizer]]


class ShardedModelState:
    """A model of which every rank has a part; at least `shards` ranks together have all of it."""

    def __init__(self, build: Build, hooks: StepHooks, least: int | None) -> None:
        self._build = build
        self._hooks = hooks
        self._least = least
        self._mesh: DeviceMesh | None = None
        self._made: tuple[torch.nn.Module, torch.optim.Optimizer] | None = None
        self._filled = False  # the built model has the shared state
        self._whole: dict[str, Any] | None = None  # between two worlds
        # After a loss: this rank's part of the state, by step, and its position in the model.
        self._kept: dict[int, dict[str, Any]] = {}
        self._place = shards.ShardInventory()

    @property
    def model(self) -> Any:
        return self._present()[0]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._present()[1]

    def _present(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        if self._made is None:
            raise ConfigurationError("there is no sharded model outside of a world")
        return self._made

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # state is sent from host memory

    @property
    def has_copies(self) -> bool:
        return self._mesh is not None and self._mesh.ndim == 2 and self._mesh.size(0) > 1

    def connect(self, generation: int) -> None:
        size = dist.get_world_size()
        cut = shards.count_shards(size, self._least)
        shape, names = ((size,), ["shard"]) if self._least is None else ((size // cut, cut), ["replicate", "shard"])
        # torch caches the shapes of shards by mesh, and considers meshes equal even if this process's rank differs.
        # So each world's mesh has unique dimension names.
        kind = "cuda" if "nccl" in dist.get_backend() else "cpu"
        if kind == "cpu" and not sharding.HAS_FSDP_ON_CPU:
            raise ConfigurationError(
                f"Session(build=...) on the CPU needs torch 2.7 or newer, and this is torch {torch.__version__}: its"
                " FSDP2 wants a CUDA device. Use a newer torch, or Session(model=..., optimizer=...)."
            )
        self._mesh = init_device_mesh(kind, shape, mesh_dim_names=tuple(f"{name}_{generation}" for name in names))

    def bind(self, generation: int, sync: bool = False) -> None:
        assert self._mesh is not None, "a world is connected first"
        self._filled = False
        self._made = self._build(self._mesh)
        hook(self.optimizer, self._hooks)

    def pack(self) -> None:
        if self._made is not None:
            self._whole = {name: gather(value) for name, value in self._read().items()}

    def keep(self, step: int, generation: int) -> bool:
        if self._filled and self.has_copies and step not in self._kept:
            assert self._mesh is not None
            self._place = shards.ShardInventory(
                world=generation, shard=self._mesh.get_local_rank(1), shards=self._mesh.size(1)
            )
            try:
                self._kept[step] = {name: shards.take_local(value) for name, value in self._read().items()}
            except ValueError as error:
                logger.warning("%s.", error)
        return self._whole is not None or bool(self._kept)

    def _read(self) -> dict[str, Any]:
        model, optimizer = self._present()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def unbind(self) -> None:
        self._made = None
        self._filled = False
        sharding.forget_meshes()

    def restore(self, step: int, clean: bool, group: Any) -> tuple[int, bool]:
        place = self._place if step in self._kept else shards.ShardInventory()
        mine = replace(place, step=step, clean=clean, whole=self._whole is not None, ahead=step + 1 in self._kept)
        rows = [torch.empty_like(mine.to_row()) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, mine.to_row(), group=group)
        found = shards.plan_recovery([shards.ShardInventory.from_row(row) for row in rows])
        if found.sources:
            self._reassemble(found, group)
        if step < 0:
            return step, clean
        return found.step, clean and step == found.step and self._whole is not None

    def _reassemble(self, found: shards.RecoveryPlan, group: Any) -> None:
        """Send every shard of one step to all ranks."""
        mine = self._kept.get(found.step, {})
        inventory = transfer.take_inventory(mine)
        parts = []
        for source in found.sources:
            exchange = transfer.Exchange(dist.get_rank(), source, group, self.device, keep=True)
            received = exchange.run(inventory)
            parts.append(mine if received is None else received)
        self._whole = shards.put_together(parts)
        self._kept = {}

    def state(self) -> dict[str, Any]:
        return self._whole or {"model": None, "optimizer": None}

    def load(self, value: dict[str, Any]) -> None:
        self._whole = {"model": value["model"], "optimizer": value["optimizer"]}

    def settle(self) -> None:
        if self._whole is not None and self._whole["model"] is not None:
            self._fill(self._whole)
        # Otherwise no rank has trained yet: `build` created or loaded the state.
        self._whole, self._kept, self._filled = None, {}, True

    def _fill(self, whole: dict[str, Any]) -> None:
        model, optimizer = self._present()
        model.load_state_dict(shard_like(model.state_dict(), whole["model"]))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = whole["optimizer"]
        states = {
            index: {name: _shard_like(parameters[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": states})

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
    """Gather every shard on the host; values that are not sharded stay as they are. All ranks call it."""
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
    """Shard each tensor of `whole`, which all ranks have, like its namesake in `pattern`. All ranks call it."""
    return {name: _shard_like(pattern.get(name), value) for name, value in whole.items()}


def _shard_like(pattern: Any, value: Any) -> Any:
    if not isinstance(pattern, torch.Tensor) or not isinstance(value, torch.Tensor) or value.shape != pattern.shape:
        return value  # for example an optimizer's step count
    data = pattern.data
    if not isinstance(data, DTensor):
        return value.to(data.device)
    return sharding.distribute_like(value.to(data.device), data)


def make_model_state(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    build: Build | None,
    shards: int | None,
    hooks: StepHooks,
    reduces: bool,
) -> ModelState:
    """Raises ConfigurationError if the arguments of a session do not fit together."""
    if build is not None and model is None and optimizer is None:
        if shards is not None and shards < 1:
            raise ConfigurationError(f"Session(shards={shards}): shards must be at least 1.")
        return ShardedModelState(build, hooks, shards)
    if build is None and shards is None and model is not None and optimizer is not None:
        return ReplicatedModelState(model, optimizer, hooks, reduces)
    raise ConfigurationError("Session takes either a model and an optimizer, or build= (with shards=).")
