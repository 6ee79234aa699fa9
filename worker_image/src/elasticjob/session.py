"""A training session that outlives the worlds it runs in: the process keeps its memory when members come and go.

    session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler)
    for x, y in session.batches(loader):
        with session.step():
            loss = loss_function(session.model(x), y) * session.scale
            loss.backward()
            if session.ends_step:
                optimizer.step()
                optimizer.zero_grad()

An announced change ends the world at a step that all ranks agree on: no step is lost. After a loss the broken step
is rolled back and repeated in the new world. On entering a world the ranks compare what they have; where it differs
the most advanced whole state is sent to all, so parameters are bitwise equal after every regroup. In an ElasticJob the
agent learns of the session and keeps the process; elsewhere it is plain DDP, and a change of the world is a restart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from elasticjob import control, state
from elasticjob.env import GENERATION, is_in_process
from elasticjob.errors import ConfigurationError, WorldLostError
from elasticjob.interrupt import Interrupter
from elasticjob.sessionmemory import Memory
from elasticjob.sessionmodel import Carrier, PlainCarrier, StepHooks
from elasticjob.sessionsharded import Build, ShardedCarrier
from elasticjob.sessionworld import ProcessGroups, first_line, is_world_failure, world_of

logger = logging.getLogger("elasticjob")


class Session:
    """Everything of a training run that must survive a change of the world.

    `extras` are further objects with `state_dict` and `load_state_dict`, such as a learning-rate scheduler. A sharded
    model (FSDP2) belongs to one world: for it give, instead of model and optimizer, a function `build(mesh)` that makes
    both in each world. Then use `session.model` and `session.optimizer`: they are others after each change. `shards` is
    the number of ranks that have to share one copy of the model; more ranks hold further copies (HSDP), by which it
    survives a loss. Without it all ranks share one.

    `on_world(session)` is called on all ranks of each new world, before it trains: the place for what belongs to one
    world, such as a `Checkpointer`. Where `session.committed` is -1 nobody has a state: load the checkpoint there, and
    set `session.committed` to the number of its last step.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        sampler: Any = None,
        backend: str | None = None,
        timeout: float = 600.0,
        build: Build | None = None,
        shards: int | None = None,
        on_world: Callable[[Session], None] | None = None,
        **extras: Any,
    ) -> None:
        carrier: Carrier
        hooks: StepHooks = (self._begin_apply, self._end_apply)
        if build is not None and model is None and optimizer is None:
            if shards is not None and shards < 1:
                raise ConfigurationError(f"Session(shards={shards}): a model is cut over 1 rank or more.")
            carrier = ShardedCarrier(build, hooks, shards)
            on_cuda = torch.cuda.is_available()
        elif build is None and shards is None and model is not None and optimizer is not None:
            carrier = PlainCarrier(model, optimizer, hooks)
            on_cuda = carrier.device.type == "cuda"
        else:
            raise ConfigurationError("Session takes a model and an optimizer, or build= (and shards=) alone.")
        self._memory = Memory(carrier, sampler, extras)
        self._carrier = carrier
        self.sampler = sampler
        self.regroups = 0
        self.generation = int(os.environ.get(GENERATION, "0") or 0)
        self._groups = ProcessGroups(backend or ("nccl" if on_cuda else "gloo"), timeout)
        self._on_world = on_world
        self._client = control.connect() if self._may_keep_memory() else None
        self._worlds: queue.Queue[control.Message | None] = queue.Queue()
        # The newest generations that the agent called over: announced or not, and lost without notice.
        self._over = self._lost = -1
        self._broken: str | None = None  # why this world does not work any more
        self._interrupted = False
        self._ready = False  # this rank has all gradients of the step, and waits for the others to have them
        self._flag: tuple[Any, torch.Tensor] | None = None
        self._interrupter = Interrupter(self._is_lost)
        self._micro: Any = None
        self._closed = False
        if self._client is not None:
            self._client.listen(self._hear)
            self._client.want(control.SESSION)
            self._regroup(world_of(os.environ) if self.generation > 0 else None)
        else:
            self._groups.enter_fixed(alone=build is not None)  # shards need a group, even alone
            self._carrier.connect(self.generation)
            self._carrier.bind(self.generation, sync=True)
            self._tell_of_world()

    @staticmethod
    def _may_keep_memory() -> bool:
        """A process group that the script made itself is bound to its world, and the script to restarts."""
        return is_in_process(os.environ) is not False and not dist.is_initialized()

    # What the training loop uses.

    @property
    def model(self) -> Any:
        """The model of the present world."""
        return self._carrier.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._carrier.optimizer

    @property
    def committed(self) -> int:
        """The last step that is applied here; -1: none, or a newcomer that has no state yet."""
        return self._memory.committed

    @committed.setter
    def committed(self, step: int) -> None:
        self._memory.committed = step

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def scale(self) -> float:
        """What to multiply the mean loss of this batch by, so that the global batch counts as one mean."""
        return 1.0 if self._micro is None else float(self._micro.scale)

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer steps after this batch; False while gradients are accumulated."""
        return self._micro is None or bool(self._micro.ends_step)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches that are left of this epoch, whatever happens to the world meanwhile."""
        epoch = getattr(self.sampler, "epoch", None)
        while True:
            for micro, batch in self._items(loader):
                if self._is_lost():
                    self._break(WorldLostError("a member was lost"))
                    break
                self._micro = micro
                yield batch
                if self._interrupted:
                    break
            if not self._interrupted:
                self._micro = None
                return
            self._regroup()
            if getattr(self.sampler, "epoch", None) != epoch:
                return

    def _items(self, loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        if hasattr(self.sampler, "steps"):
            yield from self.sampler.steps(loader)
        else:
            for batch in loader:
                yield None, batch

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One forward and backward pass, and the optimizer's step. A world that breaks in it is mended after it."""
        self._memory.begin()
        try:
            with self._carrier.accumulate(not self.ends_step):
                self._interrupter.allowed = True  # until the optimizer begins to apply the step
                yield
            self._interrupter.allowed = False
            if self.ends_step:
                self._commit()
        except Exception as error:
            self._interrupter.allowed = False
            if self._client is None or not is_world_failure(error):
                raise
            self._break(error)
        finally:
            self._interrupter.allowed = False

    def close(self) -> None:
        """Leave the world in order: everybody has finished the last step."""
        if self._closed or not dist.is_initialized():
            return
        self._closed = True
        try:
            if self._flag is not None:
                self._flag[0].wait()
            dist.barrier()
        except RuntimeError as error:
            logger.warning("The world broke after the last step: %s", error)
        self._leave()

    # The step boundary.

    def _begin_apply(self, *_: Any) -> None:
        self._interrupter.allowed = False
        if self._carrier.has_copies and self._client is not None and self._broken is None:
            # Shards that are left are of use where they are of one step: nobody applies it before all can.
            self._ready = True
            dist.all_reduce(torch.zeros(1), group=self._groups.flags)
            self._ready = False

    def _end_apply(self, *_: Any) -> None:
        self._memory.note_applied()

    def _commit(self) -> None:
        """The step is applied here; learn whether all agreed to stop at this boundary, and ask for the next one."""
        self._memory.commit()
        if self._client is None:
            return
        if self._flag is not None:
            work, flag = self._flag
            self._flag = None
            work.wait()
            if flag.item() > 0:
                self._interrupted = True
                return
        if self.world_size == 1:
            self._interrupted = self._over >= self.generation
            return
        flag = torch.tensor([float(self._over >= self.generation)])
        self._flag = (dist.all_reduce(flag, group=self._groups.flags, async_op=True), flag)

    def _break(self, error: Exception) -> None:
        """The world is gone in the middle of a step."""
        logger.warning("Step %d: the world broke (%s).", self.committed + 1, first_line(error))
        self._broken = first_line(error)
        self._interrupted = True
        was_ready, self._ready = self._ready, False
        self._memory.take_back(self.generation, self.ends_step, was_ready)

    # From world to world.

    def _hear(self, message: control.Message) -> None:
        """In the channel's thread."""
        if message.get("type") == "world":
            self._worlds.put(message)
        elif message.get("type") == "regroup":
            generation = int(message.get("generation", self.generation))
            self._over = max(self._over, generation)
            if not message.get("announced"):
                self._lost = max(self._lost, generation)
                self._groups.abort()
                self._interrupter.interrupt()

    def _regroup(self, world: control.Message | None = None) -> None:
        """Leave this world, wait for the next, and enter it with the state that counts.

        `world` is the one in which the process was started.
        """
        assert self._client is not None
        while True:
            if world is None:
                self._pack()
                self._leave()
                self._client.send({"type": "idle", "step": self.committed, "error": self._broken})
                self._broken, self._interrupted = None, False
                world = self._await_world()
            try:
                self._enter(world)
                self._memory.agree(self._groups.flags)
                self._tell_of_world()
            except state.StateLostError as lost:
                self._give_up(lost)
            except Exception as error:
                if not is_world_failure(error):
                    raise
                self._broken, world = first_line(error), None
                continue
            self.regroups += 1
            return

    def _pack(self) -> None:
        """Save over the end of this world what is not on every rank."""
        if self.committed < 0 or not dist.is_initialized():
            return
        try:
            if self._broken is None:
                self._carrier.pack()
                return
        except Exception as error:
            if not is_world_failure(error):
                raise
            self._broken = first_line(error)
        if not self._carrier.keep(self.committed, self.generation):
            self._give_up(f"the world broke ({self._broken}), and a lost rank takes its shards with it")

    @staticmethod
    def _give_up(reason: object) -> NoReturn:
        """End as a process that was killed from outside: the agent starts it again."""
        logger.warning("%s: going back to the last checkpoint.", reason)
        raise SystemExit(1)

    def _await_world(self) -> control.Message:
        assert self._client is not None
        while True:
            try:
                world = self._worlds.get(timeout=1.0)
            except queue.Empty:
                if self._client.closed.is_set():
                    raise SystemExit(1) from None  # the agent is gone, and with it the world
                continue
            if world is not None and int(world["generation"]) > self.generation:
                return world

    def _enter(self, world: control.Message) -> None:
        self.generation = int(world["generation"])
        self._groups.enter(world, self._is_lost, lambda: self._carrier.connect(self.generation))
        if self._is_lost():  # it was too early to abort when the agent said so
            raise WorldLostError("a member was lost while the process group was made")
        if hasattr(self.sampler, "world_size"):
            self.sampler.rank, self.sampler.world_size = self.rank, self.world_size
        self._carrier.bind(self.generation)

    def _is_lost(self) -> bool:
        return self._lost >= self.generation

    def _leave(self) -> None:
        self._flag = None
        self._carrier.unbind()
        self._groups.leave(broken=self._broken is not None)

    def _tell_of_world(self) -> None:
        if self._on_world is None:
            return
        before = self.committed
        self._on_world(self)
        if self.committed != before:
            self._memory.keep_place()
