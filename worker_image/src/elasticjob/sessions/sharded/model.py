"""A sharded model (FSDP2) in worlds of different sizes: rebuilt in each, and filled from the shards of the last one.

Before a world ends in order, its ranks gather their shards one tensor at a time, and one rank of each pod keeps the
whole model in host memory until the next world has taken its shards from it. A lost rank takes its shards with it: if
other ranks have copies, live ones (HSDP) or those of an earlier step (`copies`), the remaining ranks keep theirs;
otherwise only the checkpoint helps. In the next world each rank gets what it needs of what the others have kept
(`resharding`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from elasticjob.collectives import messages
from elasticjob.context.leaving import Whole
from elasticjob.errors import ConfigurationError
from elasticjob.sessions import recovery
from elasticjob.sessions.model_state import ModelState, ReplicatedModelState, StepHooks, hook
from elasticjob.sessions.recovery import Piece, RecoveryPlan
from elasticjob.sessions.sharded import parts
from elasticjob.sessions.sharded.copies import ShardCopies
from elasticjob.sessions.sharded.parts import Leaf
from elasticjob.sessions.sharded.resharding import Need, Resharding
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

Build = Callable[[DeviceMesh], tuple[torch.nn.Module, torch.optim.Optimizer]]


class ShardedModelState:
    """A model of which every rank has a part; at least `shards` ranks together have all of it."""

    def __init__(self, build: Build, hooks: StepHooks, least: int | None, copies: ShardCopies | None = None) -> None:
        self._build = build
        self._hooks = hooks
        self._least = least
        self._mesh: DeviceMesh | None = None
        self._made: tuple[torch.nn.Module, torch.optim.Optimizer] | None = None
        self._left: tuple[weakref.ref[torch.nn.Module], weakref.ref[torch.optim.Optimizer]] | None = None  # last built
        self._groups = 0  # that `build` has made in this world
        self._filled = False  # the built model has the shared state
        self._copies = copies
        self._flags: Any = None  # the group for small messages
        self._plan = RecoveryPlan(-1)  # where the state of this world comes from
        # Parts of the state in host memory: between two worlds, and those in which a world began, until it has copies.
        self._held: dict[Piece, dict[str, Any]] = {}
        self._base: int | None = None  # the step of those
        self._is_judged = True  # those that were taken in a step which was partially applied are gone
        self._is_lost = False  # the last world did not end in order

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
        if not self._is_lost:
            return ()
        cuts: dict[tuple[int, int], set[int]] = {}
        for piece in self._held:
            cuts.setdefault((piece.world, piece.count), set()).add(piece.index)
        # Until its copies are there, a world could only go back to what it began with.
        known = [found for _, found in sorted(cuts.items())]
        return tuple(sorted(known[0] if len(known) > 1 and len(known[-1]) == 1 else known[-1])) if known else ()

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

    def pack(self, step: int, generation: int, hold: Callable[[], None]) -> None:
        if self._copies is not None:
            self._copies.finish()
        if self._made is not None:
            is_kept = int(os.environ.get("LOCAL_RANK", "0")) == 0  # the ranks of a pod would have the same
            whole = {name: gather(value, is_kept) for name, value in self._read().items()}
            hold()
            self._held = {Piece(step, generation, 1, 0): whole} if is_kept else {}
            self._filled = self._is_lost = False  # what is trained now is not the state any more
            self._is_judged = True

    def keep(self, step: int, generation: int) -> bool:
        assert self._mesh is not None
        self._is_lost = True
        self._is_judged = self._is_judged and not self._filled
        if self._copies is not None:
            for at, found in self._copies.take().items():
                self._held |= {Piece(at, generation, self.shards, index): part for index, part in found.items()}
        if self._filled and self.has_copies:
            self._keep_own(Piece(step, generation, self.shards, self._mesh.get_local_rank(1)))
        return bool(self._held) or not self._filled  # otherwise others may have it

    def _keep_own(self, mine: Piece) -> None:
        if mine not in self._held:
            try:
                self._held[mine] = {name: parts.take_local(value) for name, value in self._read().items()}
            except ValueError as error:
                logger.warning("%s.", error)

    def _read(self) -> dict[str, Any]:
        model, optimizer = self._present()
        trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "trainable": trainable}

    def unbind(self) -> None:
        if self._made is not None:
            self._left = (weakref.ref(self.model), weakref.ref(self.optimizer))
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
        if self._copies is not None:
            self._copies.flush(step, self._read)
        return self._find_places(self._copies)

    def _find_places(self, copies: ShardCopies | None) -> tuple[int, ...]:
        """The steps to which the model can go back."""
        if copies is None:
            return ()
        if copies.is_complete and self._base is not None:
            self._base, self._held = None, {}
        return (*copies.steps, *((self._base,) if self._base is not None else ()))

    def restore(self, step: int, clean: bool, places: Collection[int], group: Any) -> tuple[int, bool]:
        self._flags = group
        mine = self._take_inventory(step, clean, places)
        rows = messages.all_gather_integers(mine.to_row(), group)
        inventories = [recovery.ShardInventory.from_row(row) for row in rows]
        if all(one.step < 0 for one in inventories):  # later, a joiner alone would be to blame
            self._refuse_stages(group)
        self._plan = recovery.plan_recovery(inventories)
        if step < 0:
            return step, clean
        return self._plan.step, self._plan.step in mine.find_steps()

    def find_alone(self, step: int, clean: bool, places: Collection[int]) -> tuple[int, Whole | None] | None:
        if not self._held and not self._is_lost:
            return None
        plan = recovery.plan_recovery([self._take_inventory(step, clean, places)])
        held = [self._held[plan.find_piece(index)] for index in range(len(plan.holders))]
        model, optimizer = (None, None) if self._left is None else (one() for one in self._left)
        return plan.step, Whole(model, optimizer, parts.put_together(held))

    def _refuse_stages(self, group: Any) -> None:
        """Raises ConfigurationError unless all ranks have built the same model."""
        described = [(name, tuple(parameter.shape)) for name, parameter in self.model.named_parameters()]
        rows = messages.all_gather_integers([zlib.crc32(repr(described).encode())], group)
        if len(set(map(tuple, rows))) > 1:
            raise ConfigurationError(_STAGES)

    def _take_inventory(self, step: int, clean: bool, places: Collection[int]) -> recovery.ShardInventory:
        # A part that was taken when a step was partially applied is not of this step. If the next world is lost, too,
        # `clean` says only whether this rank has all else of a step.
        if not self._is_judged and not clean:
            self._held = {piece: part for piece, part in self._held.items() if piece.step in places}
        self._is_judged = True
        return recovery.ShardInventory(step, clean, tuple(places), tuple(self._held))

    def state(self) -> dict[str, Any]:
        """Nothing: `settle` gives each rank its part."""
        return {}

    def load(self, value: dict[str, Any]) -> None:
        pass

    def settle(self, step: int) -> tuple[int, ...]:
        count = len(self._plan.holders)
        if count:
            mine = [index for index, having in enumerate(self._plan.holders) if dist.get_rank() in having]
            held = {index: self._held[self._plan.find_piece(index)] for index in mine}
            self._fill(Resharding(self._plan, held, self._flags))
        # Otherwise no rank has trained yet: `build` created or loaded the state.
        is_on = self._copies is not None and self._copies.enter(self._flags)
        self._base = step if count and is_on else None
        kept = map(self._plan.find_piece, range(count)) if self._base is not None else ()
        self._held = {piece: self._held[piece] for piece in kept if piece in self._held}
        self._filled = True
        if self._copies is not None and self._base is not None:
            self._copies.after_step(step, self._read)  # what a loss has left may be with one pod each
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

    def _fill(self, resharding: Resharding) -> None:
        model, optimizer = self._present()
        self._refuse_others(resharding.count_groups())
        named = model.state_dict()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        cuts = {path: find_cut(path, leaf, named, parameters) for path, leaf in resharding.leaves.items()}
        received = dict(zip(cuts, resharding.run([cut.need for cut in cuts.values()]), strict=True))

        def make(path: parts.Path) -> torch.Tensor:
            return cuts[path].make(received.pop(path))

        model.load_state_dict(resharding.fill("model", make))
        trainable = resharding.fill("trainable", make)
        for name, parameter in model.named_parameters():  # the script may have unfrozen some since they were built
            parameter.requires_grad_(name in trainable)
        load_state(optimizer, resharding.fill("optimizer", make))

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


def gather(value: Any, is_kept: bool) -> Any:
    """Gather every shard on the host, if it `is_kept`; other values stay as they are. All ranks call it."""
    if isinstance(value, DTensor):
        whole = value.full_tensor()
        return parts.mark_whole(whole.detach().cpu()) if is_kept else None
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone() if is_kept else None
    if isinstance(value, dict):
        return {key: gather(item, is_kept) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([gather(item, is_kept) for item in value])
    return value


@dataclass(frozen=True)
class Cut:
    """What this rank needs of a tensor, and how it becomes what the model or its optimizer has in this world."""

    need: Need
    make: Callable[[torch.Tensor], torch.Tensor]


def find_cut(path: parts.Path, leaf: Leaf, named: Mapping[str, Any], parameters: Sequence[torch.Tensor]) -> Cut:
    """By its namesake in the model, or the parameter that it is the optimizer's state of."""
    pattern = (
        named.get(path[1])
        if path[0] == "model"
        else parameters[path[2]]
        if path[:2] == ("optimizer", "state")
        else None
    )
    if not isinstance(pattern, torch.Tensor) or pattern.shape != leaf.shape:
        return Cut(Need(), lambda value: value)  # for example an optimizer's step count
    data = pattern.data
    if not isinstance(data, DTensor):
        return Cut(Need(), lambda value: value.to(data.device))
    span = parts.find_range(data)
    if span is None:
        return Cut(Need(), lambda value: sharding.distribute_like(value.to(data.device), data))
    return Cut(Need(*span), lambda value: sharding.wrap_like(value.to(data.device), data))


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
