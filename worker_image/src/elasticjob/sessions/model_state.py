"""How a session keeps the model and the optimizer from world to world.

`ReplicatedModelState`: every rank has the whole model. DDP is bound to one process group, so each world gets a new DDP
around the same module. The parameters stay the same objects, so the optimizer is unaffected.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elasticjob.context.leaving import Whole
from elasticjob.errors import ConfigurationError
from elasticjob.sessions import recovery, shapes
from elasticjob.torchcompat import ddp as torch_ddp
from elasticjob.torchcompat import optimizers, waits
from elasticjob.torchcompat.wrappers import Transparent

logger = logging.getLogger("elasticjob")

StepHooks = tuple[Callable[..., None], Callable[..., None]]  # before and after the optimizer applies a step


def hook(optimizer: torch.optim.Optimizer, hooks: StepHooks) -> None:
    """Call the hooks around each step of the optimizer, but not around those with which torch fills its state."""
    before, after = hooks
    is_real = True

    def begin(optimizer: torch.optim.Optimizer, *given: Any) -> None:
        nonlocal is_real
        is_real = not optimizers.fills_state(optimizer)
        if is_real:
            before(optimizer, *given)

    def end(optimizer: torch.optim.Optimizer, *given: Any) -> None:
        if is_real:
            after(optimizer, *given)

    optimizer.register_step_pre_hook(optimizers.untraced(begin))
    optimizer.register_step_post_hook(optimizers.untraced(end))


class ModelState(Protocol):
    """The interface between a session and its model, for replicated and sharded models."""

    @property
    def model(self) -> Any: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def has_copies(self) -> bool:
        """Whether another rank of this world also has each part of the state of this rank."""

    @property
    def shards(self) -> int:
        """The number of parts of the model in this world: rank r has part r % shards, and so does each rank like it."""

    @property
    def lone_shards(self) -> tuple[int, ...]:
        """After a loss: the shards of the model that are in the memory of this rank, and not of all; else none."""

    @property
    def groups(self) -> Sequence[Any]:
        """The process groups, besides the default one, in which a step of the model meets other ranks."""

    def connect(self, generation: int) -> None:
        """Create the process groups that this world needs besides the default one, which exists already."""

    def bind(self, generation: int, sync: bool = False) -> None:
        """Enter a world whose groups exist; `sync` sends rank 0's parameters to all."""

    def pack(self, step: int, generation: int, hold: Callable[[], None]) -> None:
        """Prepare for an orderly end of the world after this step: keep what the next world needs. All ranks call it.

        `hold` raises if a member was lost meanwhile, so that what was received may be wrong.
        """

    def keep(self, step: int, generation: int) -> bool:
        """The world is lost: keep this rank's state after this step. Returns whether it may be enough to continue."""

    def unbind(self) -> None:
        """Leave the world."""

    def after_step(self, step: int) -> tuple[int, ...]:
        """This step is applied on this rank. Returns the steps to which the model can go back after a loss.

        The session keeps its other state of these steps, in which this one may be new. All ranks call it.
        """

    def end_epoch(self, step: int) -> tuple[int, ...]:
        """The same before the script leaves an epoch, to which it cannot go back: a loss costs no earlier step."""

    def restore(self, step: int, clean: bool, places: Collection[int], group: Any) -> tuple[int, bool]:
        """Find out what the ranks of a new world have kept; `settle` gives each its part. All ranks call it.

        `step` is this rank's step; `clean` is whether no step is partially applied; `places` are earlier steps of
        which it has the other state. Returns the step of the restored state, and whether this rank has the other state
        of that step. Raises StateLostError if a part is missing.
        """

    def find_alone(self, step: int, clean: bool, places: Collection[int]) -> tuple[int, Whole | None] | None:
        """The latest step of which this rank alone has all of the model, outside of any world; arguments as above.

        And the model, if what a script has of it is a part. None if another process of this pod has the same. Raises
        StateLostError if there is no such step.
        """

    def state(self) -> dict[str, Any]:
        """The state that the ranks of a new world compare."""

    def load(self, value: dict[str, Any]) -> None:
        """Load the state that another rank sent."""

    def settle(self, step: int) -> tuple[int, ...]:
        """All ranks of the new world agree on the state after this step: start to train. Returns like `after_step`."""

    def part(self) -> dict[str, Any]:
        """This rank's part of the state in this world. Its tensors are those that the next step changes."""

    def load_part(self, value: dict[str, Any]) -> None:
        """Go back to an earlier part of this rank in the same world. No other rank takes part in it."""

    def compared(self) -> dict[str, Any]:
        """What must be equal bit by bit on all ranks with the same part: the parameters and the optimizer's state."""

    def check_groups(self) -> None:
        """Raises ConfigurationError if the optimizer has got parameter groups that it will not have in other worlds."""

    def check_gradients(self) -> None:
        """All gradients of a step are here, and none is applied. Raises ConfigurationError if not all were reduced."""

    def accumulate(self, active: bool) -> contextlib.AbstractContextManager[Any]:
        """Do not reduce gradients while they are accumulated."""


def check_model(model: torch.nn.Module) -> None:
    """Raises ConfigurationError for a model that cannot be kept as a whole."""
    if isinstance(model, DistributedDataParallel):
        raise ConfigurationError(
            "Session(model=...) got a DistributedDataParallel: it is bound to one world. Give it the plain module;"
            " session.model is the DDP of the present world."
        )
    shapes.check_made(model)
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor":
            raise ConfigurationError(
                f"Session(model=...) cannot keep a sharded model: {name!r} is a DTensor, bound to one world. Give it a"
                " function that makes model and optimizer anew in each world: Session(build=...). After a loss it goes"
                " back to the last checkpoint, because a lost rank takes its shards with it; with copy_every=1 or"
                " shards=... there are copies of them."
            )


def check_layers(model: torch.nn.Module) -> None:
    """Raises ConfigurationError for a layer that trains in a world of one rank only."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm) and all(one.device.type == "cpu" for one in model.parameters()):
            raise ConfigurationError(
                f"{name!r} is a SyncBatchNorm, and torch runs it on accelerators only: on CPUs each world of several"
                " ranks ends in its first step. Use BatchNorm, whose statistics are of each rank's part of a batch;"
                " with ElasticDistributedSampler(..., virtual_ranks=N) they are the same in worlds of any size."
            )


class ElasticModel(Transparent):
    """Calls the module through the DDP of the current world."""

    def __init__(
        self,
        module: torch.nn.Module,
        find: Callable[[], torch.nn.Module],
        take_comm_hook: Callable[[Any, Callable[..., Any]], None],
    ) -> None:
        """`find` returns what to call now."""
        super().__init__(module)
        self._find, self._take_comm_hook = find, take_comm_hook
        self.has_run = False  # for a backward pass, since somebody looked
        self._survives: Callable[[Exception], bool] = lambda _: False

    def watch(self, begin: Callable[..., None], survives: Callable[[Exception], bool]) -> None:
        """Call `begin` before each pass. One that fails with an error that `survives` takes is made again."""
        self.register_forward_pre_hook(begin)
        self._survives = survives

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.has_run = self.has_run or torch.is_grad_enabled()
        try:
            return self._call(*args, **kwargs)
        except Exception as error:
            if not self._survives(error):
                raise
        return self._call(*args, **kwargs)

    @waits.telling  # of DDP, which sends buffers
    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._find()(*args, **kwargs)

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """As of DDP: the backward passes in this block reduce nothing. In a world without DDP, they do not anyway."""
        found = self._find()
        context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        return found.no_sync() if isinstance(found, DistributedDataParallel) else context

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """As of DDP, for the present world: call it in `on_world`, with a new state. In a world of one, it is not used.

        Raises ConfigurationError elsewhere.
        """
        self._take_comm_hook(state, hook)

    def join_hook(self, **_: Any) -> Any:
        """What torch's `Join` asks for."""
        raise ConfigurationError(
            "torch's Join lets ranks make different numbers of steps, and those of a session make the same: leave it"
            " out, and use ElasticDistributedSampler, with which all ranks have equally many batches."
        )


class ReplicatedModelState:
    """A model that every rank has completely: DDP in a world of several ranks, the plain module in a world of one."""

    has_copies = False  # not needed: every rank has the whole model
    shards = 1
    lone_shards = ()
    groups = ()

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        hooks: StepHooks,
        reduces: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`reduces=False`: somebody else sends the parameters at the start and adds the gradients; there is no DDP.

        `options` are the arguments of each DDP.
        """
        check_model(model)
        self._options = dict(options or {})
        self._reduces = reduces
        self.model = ElasticModel(model, self._find, self._take_comm_hook)
        self._comm_hook: tuple[Any, Callable[..., Any]] | None = None  # of the present world, and its state
        self._last_hook_state: Any = None  # the same, also of an earlier world
        self.is_entering = False  # a world: the script's `on_world` is called
        self.optimizer = optimizer
        hook(optimizer, hooks)
        self._module = model
        self._ddp: DistributedDataParallel | None = None
        self._wrapped: list[tuple[torch.nn.Parameter, bool]] = []  # by the DDP; whether each was trainable then
        self._kept: list[torch.nn.Parameter] = []  # what had a gradient when the step began
        self._is_told = False  # that only one rank can train it
        self._is_told_of_unreduced = False

    @property
    def device(self) -> torch.device:
        return next(self._module.parameters()).device

    def connect(self, generation: int) -> None:
        """Nothing to do: the default group is enough."""

    def bind(self, generation: int, sync: bool = False) -> None:
        self._comm_hook = None
        if sync or torch_ddp.CAN_SKIP_SYNC:
            self._wrap(sync)
        else:
            self.unbind()

    def _wrap(self, sync: bool) -> None:
        self.unbind()
        if not self._reduces or not dist.is_initialized() or dist.get_world_size() == 1:
            return
        self._wrapped = [(one, one.requires_grad) for one in self._module.parameters()]
        if any(is_trainable for _, is_trainable in self._wrapped):
            devices = [self.device] if self.device.type == "cuda" else None
            self._ddp = torch_ddp.make_ddp(self._module, devices, sync, self._options)
            if self._comm_hook is not None:
                torch_ddp.renew_hook_state(self._comm_hook[0])
                self._ddp.register_comm_hook(*self._comm_hook)

    def _take_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        if not self._reduces:
            raise ConfigurationError(
                "session.model.register_comm_hook() got a communication hook, and with virtual ranks there is no DDP to"
                " call it: gradients are added in one order on all ranks. Leave the hook out, or the virtual_ranks."
            )
        if not self.is_entering:
            raise ConfigurationError(
                "session.model.register_comm_hook() is called outside of on_world. Each world has another DDP, and a"
                " joiner knows nothing of the hook's state, with which ranks decide what they send: register it in"
                " Session(..., on_world=...), with a new state for each world."
            )
        if state is not None and state is self._last_hook_state:
            self._judge_old_hook_state(state)
        self._last_hook_state = state
        self._comm_hook = (state, hook)
        if self._ddp is not None:
            self._ddp.register_comm_hook(state, hook)

    def _judge_old_hook_state(self, state: Any) -> None:
        """After a loss it may have what was not reduced, and a joiner has not what it remembers."""
        text = (
            f"session.model.register_comm_hook() got a {type(state).__name__} that was registered in an earlier world."
            " A state that remembers earlier steps differs from that of a joiner then, and may hold what a loss has"
            " left: make a new one in each call of on_world."
        )
        if torch_ddp.is_known_hook_state(state):
            raise ConfigurationError(text)
        is_first = not dist.is_initialized() or dist.get_rank() == 0
        if is_first and not isinstance(state, dist.ProcessGroup):
            logger.warning("Session: %s", text)

    def _find(self) -> torch.nn.Module:
        """What a forward pass calls: a new DDP if other parameters have become trainable, on all ranks alike.

        A DDP never reduces those that were frozen when it was made, and waits for those that are frozen now, unless it
        looks for what a pass does not use.
        """
        if torch.is_grad_enabled() and any(one.requires_grad is not was for one, was in self._wrapped):
            is_more = any(one.requires_grad and not was for one, was in self._wrapped)
            if is_more or not self._options.get("find_unused_parameters"):
                self._wrap(sync=False)
        return self._module if self._ddp is None else self._ddp

    def pack(self, step: int, generation: int, hold: Callable[[], None]) -> None:
        """Nothing to do: every rank has everything in memory."""

    def keep(self, step: int, generation: int) -> bool:
        return True

    def unbind(self) -> None:
        if self._ddp is not None:
            torch_ddp.release(self._ddp)
        self._ddp, self._wrapped = None, []

    def after_step(self, step: int) -> tuple[int, ...]:
        return ()

    def end_epoch(self, step: int) -> tuple[int, ...]:
        return ()

    def restore(self, step: int, clean: bool, places: Collection[int], group: Any) -> tuple[int, bool]:
        return step, clean

    def find_alone(self, step: int, clean: bool, places: Collection[int]) -> tuple[int, Whole | None] | None:
        if not clean:
            raise recovery.StateLostError("this rank was interrupted while it applied a step")
        return step, None

    def state(self) -> dict[str, Any]:
        named = list(self._module.named_parameters())
        trainable = [name for name, parameter in named if parameter.requires_grad]
        kept = [name for name, parameter in named if parameter.grad is not None]
        more = {"trainable": trainable, "gradients": kept, "unsaved": shapes.read_unsaved(self._module)}
        return {**self.part(), **more}

    def load(self, value: dict[str, Any]) -> None:
        """A joiner's script may be past the point at which those of the others have unfrozen a part of the model."""
        self.load_part(value)
        shapes.load_unsaved(self._module, value["unsaved"])
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad is not (name in value["trainable"]):
                parameter.requires_grad_(name in value["trainable"])
            if name not in value["gradients"]:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(
                    parameter
                )  # with which an optimizer steps, and without one it does not

    def part(self) -> dict[str, Any]:
        return {"model": self._module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_part(self, value: dict[str, Any]) -> None:
        shapes.load(self._module, value["model"])
        optimizers.load_state(self.optimizer, value["optimizer"])

    def compared(self) -> dict[str, Any]:
        return {"parameters": list(self._module.parameters()), "optimizer": self.optimizer.state_dict()}

    def settle(self, step: int) -> tuple[int, ...]:
        """Create the DDP if it was postponed: it broadcasts rank 0's parameters, so all must agree first."""
        if self._ddp is None:
            self._wrap(sync=False)
        return ()

    def note_gradients(self) -> None:
        """A step begins. What has a gradient now has one that the script keeps as zeros."""
        if self._options.get("find_unused_parameters"):  # all others get one in each step
            self._kept = [one for one in self._module.parameters() if one.grad is not None]

    def clear_gradients(self, is_applied: bool) -> None:
        """Drop those of a broken step, which may have been applied, as the script does between two steps.

        An optimizer steps with zeros, and leaves out what has no gradient.
        """
        kept = self._kept
        if kept and is_applied:
            kept = [one for one in self._module.parameters() if one.grad is not None]
        self.optimizer.zero_grad()
        self.model.zero_grad()  # also of parameters that another optimizer has
        for one in kept:
            one.grad = torch.zeros_like(one)

    def check_groups(self) -> None:
        """Nothing to check: the optimizer stays the same, and joiners get its groups with its state."""

    def check_gradients(self) -> None:
        has_run, self.model.has_run = self.model.has_run, False
        ddp = self._ddp
        if ddp is not None and not has_run:
            self._look_for_unreduced()
        if not has_run or not self._reduces or (ddp is None and self._is_told):
            return
        named = list(self._module.named_parameters())
        if ddp is not None:
            self._refuse_added(named)
        if self._options.get("find_unused_parameters") or self._options.get("static_graph"):
            return
        ignored = getattr(ddp, "parameters_to_ignore", ())
        unused = [name for name, one in named if one.grad is None and one.requires_grad and name not in ignored]
        if not unused:
            return
        found = f"the backward pass has left {len(unused)} trainable parameters without a gradient ({unused[0]!r})"
        remedy = (
            'Session(..., ddp={"find_unused_parameters": True}) trains such a model; or set requires_grad to False for'
            " parameters that are never used."
        )
        if ddp is not None:
            raise ConfigurationError(
                f"{found}, and DDP has reduced no gradient that shares a message with theirs. {remedy}"
            )
        self._is_told = True
        logger.warning("Session: %s. One rank trains it, and several ranks will raise an error. %s", found, remedy)

    def _refuse_added(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """A DDP knows the parameters of the model that it was made for, and reduces no gradients of others."""
        known = {id(one) for one, _ in self._wrapped}
        added = [name for name, one in named if one.grad is not None and id(one) not in known]
        if added:
            raise ConfigurationError(
                f"{added[0]!r} was not a parameter of the model when this world began, and nobody has reduced its"
                " gradient. Make all parameters before the session, with requires_grad=False until they are trained."
            )

    def _look_for_unreduced(self) -> None:
        """No forward pass has used the DDP. Only the script knows whether it reduces the gradients itself."""
        if self._is_told_of_unreduced or all(one.grad is None for one in self._module.parameters()):
            return
        self._is_told_of_unreduced = True
        if dist.get_rank() == 0:
            logger.warning(
                "Session: the gradients of this step come from no call of session.model, so that DDP has not reduced"
                " them: call session.model(...) and not the model itself, or each rank trains a model of its own."
            )

    def accumulate(self, active: bool) -> contextlib.AbstractContextManager[Any]:
        ddp = self._ddp
        if ddp is None or not active or ddp.static_graph:  # torch has to see a static graph with its reductions
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = ddp.no_sync()
        return context
