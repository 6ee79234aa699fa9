"""A sharded model (FSDP2) in worlds of different sizes: rebuilt in each, and filled from the shards of the last one.

Before a world ends in order, its ranks gather their shards one tensor at a time, and each keeps the whole model in host
memory until the next world has taken its shards from it. A lost rank takes its shards with it: if other ranks have
copies, live ones (HSDP) or those of an earlier step (`copies`), the remaining ranks keep theirs and reassemble the
model in the next world; otherwise only the checkpoint helps.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from elasticjob.collectives import messages
from elasticjob.errors import ConfigurationError
from elasticjob.sessions import recovery, transfer
from elasticjob.sessions.model_state import ModelState, ReplicatedModelState, StepHooks, hook
from elasticjob.sessions.sharded import parts
from elasticjob.sessions.sharded.copies import ShardCopies
from elasticjob.torchcompat import sharding
from elasticjob.torchcompat.optimizers import load_state
from elasticjob.torchcompat.sharding import DTensor

logger = logging.getLogger("elasticjob")

_PIPELINE = "The stages of a pipeline cannot be in a session: let such a script restart, from checkpoints of its own."
_UNCUT = (
    "Session(build=...): no parameter is cut over the ranks, so nothing reduces the gradients. Call fully_shard(model,"
    " mesh=mesh) in build, or pass a model that every rank has whole as Session(model=..., optimizer=...). " + _PIPELINE
)
_STAGES = (
    "Session(build=...): the ranks have built different models, and a session gives all ranks the same one. Build the"
    " whole model on each rank, and cut it over the mesh. " + _PIPELINE
)
_FLAT = (
    "Session(build=...): FullyShardedDataParallel (FSDP1) has sharded this model, and its parts cannot be cut anew for"
    " another world. Call fully_shard(model, mesh=mesh), which is FSDP2, or let the script restart."
)
_SECTIONS = ("model", "optimizer", "trainable")  # of a state

Build = Callable[[DeviceMesh], tuple[torch.nn.Module, torch.optim.Optimizer]]


class ShardedModelState:
    """A model of which every rank has a part; at least `shards` ranks together have all of it."""

    def __init__(self, build: Build, hooks: StepHooks, least: int | None, copies: ShardCopies | None = None) -> None:
        self._build = build
        self._hooks = hooks
        self._least = least
        self._mesh: DeviceMesh | None = None
        self._made: tuple[torch.nn.Module, torch.optim.Optimizer] | None = None
        self._groups = 0  # that `build` has made in this world
        self._filled = False  # the built model has the shared state
        self._whole: dict[str, Any] | None = None  # between two worlds
        self._copies = copies
        self._flags: Any = None  # the group for small messages
        self._base: tuple[int, dict[str, Any]] | None = None  # the whole model at a step, until there are copies
        # After a loss: the parts of the state, by step and by index of the shard, and how the model was sharded.
        self._held: dict[int, dict[int, dict[str, Any]]] = {}
        self._cut = (-1, 0)  # the generation, and the number of shards

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

    @property
    def groups(self) -> Sequence[Any]:
        return [] if self._mesh is None else self._mesh.get_all_groups()

    @property
    def shards(self) -> int:
        assert self._mesh is not None, "a world is connected first"
        return self._mesh.size(self._mesh.ndim - 1)

    @property
    def lone_shards(self) -> tuple[int, ...]:
        if self._whole is not None or self._base is not None:
            return ()
        return tuple(sorted({index for indices in self._held.values() for index in indices}))

    def connect(self, generation: int) -> None:
        size = dist.get_world_size()
        cut = parts.count_shards(size, self._least)
        shape, names = ((size,), ["shard"]) if self._least is None else ((size // cut, cut), ["replicate", "shard"])
        # torch caches the shapes of shards by mesh, and considers meshes equal even if this process's rank differs.
        # So each world's mesh has unique dimension names.
        kind = "cuda" if "nccl" in dist.get_backend() and torch.cuda.is_available() else "cpu"
        if kind == "cpu" and not sharding.HAS_FSDP_ON_CPU:
            raise ConfigurationError(
                f"Session(build=...) on the CPU needs torch 2.7 or newer, and this is torch {torch.__version__}: its"
                " FSDP2 wants a CUDA device. Use a newer torch, or Session(model=..., optimizer=...)."
            )
        self._mesh = init_device_mesh(kind, shape, mesh_dim_names=tuple(f"{name}_{generation}" for name in names))
        if self._copies is not None:
            self._copies.connect(not self.has_copies)

    def bind(self, generation: int, sync: bool = False) -> None:
        assert self._mesh is not None, "a world is connected first"
        self._filled = False
        self._made = self._build(self._mesh)
        self._groups = len(self.optimizer.param_groups)
        if sharding.is_flat(self.model):
            raise ConfigurationError(_FLAT)
        is_cut = any(isinstance(one, DTensor) for one in self.model.parameters())
        if self._mesh.size() > 1 and not is_cut and not sharding.is_reduced_whole(self.model):
            raise ConfigurationError(_UNCUT)
        hook(self.optimizer, self._hooks)

    def pack(self, hold: Callable[[], None]) -> None:
        if self._copies is not None:
            self._copies.finish()
        if self._made is not None:
            whole = {name: gather(value) for name, value in self._read().items()}
            hold()
            self._whole = whole

    def keep(self, step: int, generation: int) -> bool:
        assert self._mesh is not None
        cut = (generation, self.shards)
        if self._copies is not None and (held := self._copies.take()):
            self._held, self._cut = held, cut
        if self._filled and self.has_copies and step not in self._held:
            try:
                part = {name: parts.take_local(value) for name, value in self._read().items()}
            except ValueError as error:
                logger.warning("%s.", error)
            else:
                self._held[step], self._cut = {self._mesh.get_local_rank(1): part}, cut
        return self._whole is not None or self._base is not None or bool(self._held)

    def _read(self) -> dict[str, Any]:
        model, optimizer = self._present()
        trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "trainable": trainable}

    def unbind(self) -> None:
        self._made = self._flags = None
        if self._copies is not None:
            self._copies.leave()
        self._filled = False
        sharding.forget_meshes()

    def after_step(self, step: int) -> tuple[int, ...]:
        if self._copies is None:
            return ()
        self._copies.after_step(step, self._read)
        return self._find_places(self._copies)

    def end_epoch(self, step: int) -> tuple[int, ...]:
        if self._copies is None or (self._base is not None and self._base[0] == step):
            return self._find_places(self._copies)
        self._copies.flush(step, self._read)
        return self._find_places(self._copies)

    def _find_places(self, copies: ShardCopies | None) -> tuple[int, ...]:
        """The steps to which the model can go back."""
        if copies is None:
            return ()
        if copies.is_complete:
            self._base = None
        return (*copies.steps, *((self._base[0],) if self._base is not None else ()))

    def restore(self, step: int, clean: bool, places: Collection[int], group: Any) -> tuple[int, bool]:
        self._flags = group
        mine = self._take_inventory(step, clean, places)
        rows = messages.all_gather_integers(mine.to_row(), group)
        inventories = [recovery.ShardInventory.from_row(row) for row in rows]
        if all(one.step < 0 for one in inventories):  # later, a joiner alone would be to blame
            self._refuse_stages(group)
        found = recovery.plan_recovery(inventories)
        if found.sources:
            self._reassemble(found, group)
        elif mine.whole != found.step:
            self._whole = None
        elif self._whole is None and self._base is not None:
            self._whole = self._base[1]
        if step < 0:
            return step, clean
        return found.step, found.step in mine.find_steps() and self._whole is not None

    def _refuse_stages(self, group: Any) -> None:
        """Raises ConfigurationError unless all ranks have built the same model."""
        described = [(name, tuple(parameter.shape)) for name, parameter in self.model.named_parameters()]
        rows = messages.all_gather_integers([zlib.crc32(repr(described).encode())], group)
        if len(set(map(tuple, rows))) > 1:
            raise ConfigurationError(_STAGES)

    def _take_inventory(self, step: int, clean: bool, places: Collection[int]) -> recovery.ShardInventory:
        whole = step if self._whole is not None else -1 if self._base is None else self._base[0]
        # A part that was taken when a step was partially applied is not of this step.
        held = [(at, index) for at, indices in self._held.items() if clean or at in places for index in indices]
        return recovery.ShardInventory(step, clean, whole, *self._cut, tuple(places), tuple(held))

    def _reassemble(self, found: recovery.RecoveryPlan, group: Any) -> None:
        """Send every shard of one step to all ranks."""
        held = self._held.get(found.step, {})
        pieces = []
        for index, source in enumerate(found.sources):
            mine = held.get(index, {})
            exchange = transfer.Exchange(dist.get_rank(), source, group, self.device, keep=True)
            received = exchange.run(transfer.take_inventory(mine))
            pieces.append(mine if received is None else received)
        self._whole = parts.put_together(pieces)
        self._held = {}

    def state(self) -> dict[str, Any]:
        return self._whole or dict.fromkeys(_SECTIONS)

    def load(self, value: dict[str, Any]) -> None:
        self._whole = {name: value[name] for name in _SECTIONS}

    def settle(self, step: int) -> tuple[int, ...]:
        has_trained = self._whole is not None and self._whole["model"] is not None
        if self._whole is not None and has_trained:
            self._fill(self._whole)
        # Otherwise no rank has trained yet: `build` created or loaded the state.
        is_on = self._copies is not None and self._copies.enter(self._flags)
        self._base = (step, self._whole) if self._whole is not None and has_trained and is_on else None
        self._whole, self._held, self._filled = None, {}, True
        return self._find_places(self._copies)

    def part(self) -> dict[str, Any]:
        return {name: parts.find_local(value) for name, value in self._read().items()}

    def load_part(self, value: dict[str, Any]) -> None:
        model, optimizer = self._present()
        present = self._read()
        model.load_state_dict(parts.put_back(value["model"], present["model"]))
        load_state(optimizer, parts.put_back(value["optimizer"], present["optimizer"]))

    def compared(self) -> dict[str, Any]:
        state = self._read()  # the parameters are shards after that, also those that FSDP has gathered
        parameters = list(self._present()[0].parameters())
        return {"parameters": parts.find_local(parameters), "optimizer": parts.find_local(state["optimizer"])}

    def _fill(self, whole: dict[str, Any]) -> None:
        model, optimizer = self._present()
        self._refuse_others(len(whole["optimizer"]["param_groups"]))
        model.load_state_dict(shard_like(model.state_dict(), whole["model"]))
        for name, parameter in model.named_parameters():  # the script may have unfrozen some since they were built
            parameter.requires_grad_(name in whole["trainable"])
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = whole["optimizer"]
        states = {
            index: {name: _shard_like(parameters[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        load_state(optimizer, {**state, "state": states})

    def check_groups(self) -> None:
        self._refuse_others(len(self.optimizer.param_groups))

    def _refuse_others(self, count: int) -> None:
        """Raises ConfigurationError unless `build` has made so many groups in this world."""
        if count != self._groups:
            raise ConfigurationError(
                f"the optimizer of Session(build=...) has {count} parameter groups, and build has made it with"
                f" {self._groups}: groups that are added later are not there in the next world. Make all of them in"
                " build(mesh), with requires_grad=False until their parameters are trained."
            )

    def check_gradients(self) -> None:
        """Nothing to check: FSDP2 reduces the gradients of each module when they are there."""

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
    copy_every: int,
    hooks: StepHooks,
    reduces: bool,
    ddp: Mapping[str, Any] | None = None,
) -> ModelState:
    """Raises ConfigurationError if the arguments of a session do not fit together."""
    if ddp is not None and (build is not None or not reduces):
        raise ConfigurationError("Session(ddp=...): neither a sharded model nor virtual ranks use DDP; leave it out.")
    if build is not None and model is None and optimizer is None:
        if shards is not None and shards < 1:
            raise ConfigurationError(f"Session(shards={shards}): shards must be at least 1.")
        if copy_every < 0:
            raise ConfigurationError(f"Session(copy_every={copy_every}): a number of steps, or 0 for no copies.")
        return ShardedModelState(build, hooks, shards, ShardCopies(copy_every) if copy_every else None)
    if build is None and shards is None and not copy_every and model is not None and optimizer is not None:
        return ReplicatedModelState(model, optimizer, hooks, reduces, ddp)
    raise ConfigurationError("Session takes either a model and an optimizer, or build= (with shards=, copy_every=).")
