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

from elasticjob import control, state, transfer
from elasticjob.env import GENERATION, is_in_process
from elasticjob.errors import ConfigurationError, WorldLostError
from elasticjob.interrupt import Interrupter
from elasticjob.sessionmodel import Carrier, PlainCarrier, StepHooks
from elasticjob.sessionsharded import Build, ShardedCarrier
from elasticjob.sessionworld import ProcessGroups, first_line, is_world_failure, world_of

logger = logging.getLogger("elasticjob")


class Session:
    """Everything of a training run that must survive a change of the world.

    `extras` are further objects with `state_dict` and `load_state_dict`, such as a learning-rate scheduler. A sharded
    model (FSDP2) belongs to one world: for it give, instead of model and optimizer, a function `build(mesh)` that makes
    both in each world. Then use `session.model` and `session.optimizer`: they are others after each change.

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
        on_world: Callable[[Session], None] | None = None,
        **extras: Any,
    ) -> None:
        self._carrier: Carrier
        hooks: StepHooks = (self._begin_apply, self._end_apply)
        if build is not None and model is None and optimizer is None:
            self._carrier = ShardedCarrier(build, hooks)
            on_cuda = torch.cuda.is_available()
        elif build is None and model is not None and optimizer is not None:
            self._carrier = PlainCarrier(model, optimizer, hooks)
            on_cuda = self._carrier.device.type == "cuda"
        else:
            raise ConfigurationError("Session takes a model and an optimizer, or build= alone.")
        self.sampler = sampler
        self.committed = -1  # the last step that is applied here; -1: none, or a newcomer
        self.regroups = 0
        self.generation = int(os.environ.get(GENERATION, "0") or 0)
        self._extras = extras
        self._groups = ProcessGroups(backend or ("nccl" if on_cuda else "gloo"), timeout)
        self._on_world = on_world
        self._client = control.connect() if self._may_keep_memory() else None
        self._worlds: queue.Queue[control.Message | None] = queue.Queue()
        # The newest generations that the agent called over: announced or not, and lost without notice.
        self._over = self._lost = -1
        self._broken: str | None = None  # why this world does not work any more
        self._interrupted = False
        self._flag: tuple[Any, torch.Tensor] | None = None
        self._applied = 0
        self._clean = True
        self._interrupter = Interrupter(self._is_lost)
        self._micro: Any = None
        self._closed = False
        self._position: Any = self._save_position()
        self._random = torch.get_rng_state()
        if self._client is not None:
            self._client.listen(self._hear)
            self._client.want(control.SESSION)
            self._regroup(world_of(os.environ) if self.generation > 0 else None)
        else:
            self._groups.enter_fixed(alone=not self._carrier.survives_loss)  # shards need a group, even alone
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
        self._applied = 0
        try:
            with self._carrier.accumulate(not self.ends_step):
                self._interrupter.allowed = True  # until the optimizer begins to apply the step
                if self._is_lost():
                    raise WorldLostError("a member was lost")
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

    def _end_apply(self, *_: Any) -> None:
        self._applied += 1

    def _commit(self) -> None:
        """The step is applied here; learn whether all agreed to stop at this boundary, and ask for the next one."""
        self._note_applied()
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

    def _note_applied(self) -> None:
        self.committed += 1
        self._applied = 0
        self._position = self._save_position()
        self._random = torch.get_rng_state()

    def _break(self, error: Exception) -> None:
        """The world is gone in the middle of a step: keep the step if it was applied, else take it back."""
        logger.warning("Step %d: the world broke (%s).", self.committed + 1, first_line(error))
        self._broken = first_line(error)
        self._interrupted = True
        if self._applied == 1 and self.ends_step:
            self._note_applied()
        elif self._applied > 1:
            self._clean = False  # one of several optimizer steps may be missing
        if self._position is not None:
            self.sampler.load_state_dict(self._position)
        torch.set_rng_state(self._random)
        self.optimizer.zero_grad()

    def _save_position(self) -> Any:
        return None if self.sampler is None else self.sampler.state_dict()

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
                self._agree()
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
        if self.committed < 0 or not dist.is_initialized() or self._carrier.survives_loss:
            return
        try:
            if self._broken is None:
                self._carrier.pack()
                return
        except Exception as error:
            if not is_world_failure(error):
                raise
            self._broken = first_line(error)
        if self._carrier.state()["model"] is None:
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
        self._groups.enter(world, self._is_lost)
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

    # The state that counts.

    def _agree(self) -> None:
        """Compare the memories, send the one that counts where they differ, and train on with it."""
        if self.world_size > 1:
            self._compare()
        elif not self._clean:
            raise state.StateLostError("the only rank was interrupted in the middle of applying a step")
        self._carrier.settle()
        self._tell_of_world()

    def _tell_of_world(self) -> None:
        if self._on_world is None:
            return
        before = self.committed
        self._on_world(self)
        if self.committed != before:
            self._position = self._save_position()

    def _compare(self) -> None:
        stock = transfer.take_stock(self._state())
        mine = torch.tensor([self.committed, int(self._clean), transfer.digest_stock(stock)], dtype=torch.int64)
        everybody = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everybody, mine, group=self._groups.flags)
        standings = [state.Standing(int(a), bool(b), int(c)) for a, b, c in (t.tolist() for t in everybody)]
        if state.are_equal(standings):
            return
        source = state.choose_source(standings)
        # A newcomer has nothing to lose: it receives into what it has, and is whole again when all has come.
        keep = self.committed >= 0
        self._clean = self._clean and (keep or self.rank == source)
        exchange = transfer.Exchange(self.rank, source, self._groups.flags, self._carrier.device, keep)
        received = exchange.run(stock)
        if received is not None:
            self._take_over(received)
        self.committed, self._clean = standings[source].step, True

    def _state(self) -> dict[str, Any]:
        """What must be equal on all ranks, in the parts in which it is compared and sent."""
        extras = {name: extra.state_dict() for name, extra in self._extras.items()}
        return {**self._carrier.state(), "extras": extras, "position": self._position}

    def _take_over(self, value: dict[str, Any]) -> None:
        self._carrier.load(value)
        for name, extra in self._extras.items():
            extra.load_state_dict(value["extras"][name])
        if self.sampler is not None and value["position"] is not None:
            self.sampler.load_state_dict(value["position"])
        self._position = value["position"]
