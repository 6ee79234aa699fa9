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
import datetime
import logging
import os
import queue
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from elasticjob import control, state
from elasticjob.env import GENERATION, is_in_process
from elasticjob.sessionmodel import ElasticModel, check_model

logger = logging.getLogger("elasticjob")

_FORM_TIMEOUT = datetime.timedelta(seconds=30)
_SIGNS = ("gloo", "nccl", "connection", "socket", "peer", "process group", "store", "timed out", "aborted")


class Session:
    """Everything of a training run that must survive a change of the world.

    `extras` are further objects with `state_dict` and `load_state_dict`, such as a learning-rate scheduler.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        sampler: Any = None,
        backend: str | None = None,
        timeout: float = 600.0,
        **extras: Any,
    ) -> None:
        check_model(model)
        self.optimizer = optimizer
        self.sampler = sampler
        self.committed = -1  # the last step that is applied here; -1: none, or a newcomer
        self.regroups = 0
        self.generation = int(os.environ.get(GENERATION, "0") or 0)
        self._module = model
        self._extras = extras
        self._backend = backend or ("nccl" if next(model.parameters()).is_cuda else "gloo")
        self._timeout = datetime.timedelta(seconds=timeout)
        self._client = control.connect() if self._may_keep_memory() else None
        self._worlds: queue.Queue[control.Message | None] = queue.Queue()
        # The newest generations that the agent called over: announced or not, and lost without notice.
        self._over = self._lost = -1
        self._broken: str | None = None  # why this world does not work any more
        self._interrupted = False
        self._flag: tuple[Any, torch.Tensor] | None = None
        self._flags_group: Any = None
        self._applied = 0
        self._clean = True
        self._micro: Any = None
        self._closed = False
        self.model = ElasticModel(model)
        optimizer.register_step_post_hook(self._count_step)
        self._position: Any = self._save_position()
        self._random = torch.get_rng_state()
        if self._client is not None:
            self._client.listen(self._hear)
            self._client.want(control.SESSION)
            self._regroup(_world_of(os.environ) if self.generation > 0 else None)
        else:
            self._join_fixed_world()

    @staticmethod
    def _may_keep_memory() -> bool:
        """A process group that the script made itself is bound to its world, and the script to restarts."""
        return is_in_process(os.environ) is not False and not dist.is_initialized()

    # What the training loop uses.

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
                if self._lost >= self.generation:
                    self._break(RuntimeError("the agent said that a member was lost"))
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
            with self.model.accumulate(not self.ends_step):
                yield
            if self.ends_step:
                self._commit()
        except Exception as error:
            if self._client is None or not is_world_failure(error):
                raise
            self._break(error)

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

    def _count_step(self, *_: Any) -> None:
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
        self._flag = (dist.all_reduce(flag, group=self._flags_group, async_op=True), flag)

    def _note_applied(self) -> None:
        self.committed += 1
        self._applied = 0
        self._position = self._save_position()
        self._random = torch.get_rng_state()

    def _break(self, error: Exception) -> None:
        """The world is gone in the middle of a step: keep the step if it was applied, else take it back."""
        logger.warning("Step %d: the world broke (%s).", self.committed + 1, _first_line(error))
        self._broken = _first_line(error)
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
                self._abort()

    def _abort(self) -> None:
        """Free the main thread from a collective that waits for somebody who is gone."""
        if not dist.is_initialized():
            return
        for group in {id(g): g for g in (dist.group.WORLD, self._flags_group) if g is not None}.values():
            with contextlib.suppress(RuntimeError, AttributeError, ValueError):
                group.abort()

    def _regroup(self, world: control.Message | None = None) -> None:
        """Leave this world, wait for the next, and enter it with the state that counts.

        `world` is the one in which the process was started.
        """
        assert self._client is not None
        while True:
            if world is None:
                self._leave()
                self._client.send({"type": "idle", "step": self.committed, "error": self._broken})
                self._broken, self._interrupted = None, False
                world = self._await_world()
            try:
                self._enter(world)
                self._agree()
            except state.StateLostError as lost:
                logger.warning("%s: going back to the last checkpoint.", lost)
                raise SystemExit(1) from None
            except Exception as error:
                if not is_world_failure(error):
                    raise
                self._broken, world = _first_line(error), None
                continue
            self.regroups += 1
            return

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
        os.environ.update(
            {
                "RANK": str(world["rank"]),
                "WORLD_SIZE": str(world["worldSize"]),
                "GROUP_RANK": str(world["groupRank"]),
                "GROUP_WORLD_SIZE": str(world["groupWorldSize"]),
                "MASTER_ADDR": str(world["address"]),
                "MASTER_PORT": str(world["port"]),
                "TORCHELASTIC_RESTART_COUNT": str(world["restarts"]),
                GENERATION: str(self.generation),
            }
        )
        connect: Any = dist.TCPStore  # type: ignore[attr-defined]
        store = connect(world["address"], int(world["port"]), None, False, _FORM_TIMEOUT, wait_for_workers=False)
        self._init_group(store, int(world["rank"]), int(world["worldSize"]))
        if self._lost >= self.generation:  # it was too early to abort when the agent said so
            raise RuntimeError("the process group is over: a member was lost while it was made")
        if hasattr(self.sampler, "world_size"):
            self.sampler.rank, self.sampler.world_size = self.rank, self.world_size
        self.model.bind(self.world_size)

    def _init_group(self, store: Any, rank: int, world_size: int) -> None:
        prefixed: Any = dist.PrefixStore("elasticjob/session", store)  # type: ignore[attr-defined]
        dist.init_process_group(self._backend, store=prefixed, rank=rank, world_size=world_size, timeout=self._timeout)
        # Flags travel on the CPU; with gloo the same group serves both.
        self._flags_group = dist.group.WORLD if self._backend == "gloo" else dist.new_group(backend="gloo")

    def _join_fixed_world(self) -> None:
        """Without an agent that regroups: the world of the launcher's variables, or this process alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            dist.init_process_group(self._backend, timeout=self._timeout)
        self.model.bind(self.world_size, sync=True)

    def _leave(self) -> None:
        self._flag = None
        self.model.unbind()
        if dist.is_initialized():
            if self._broken is not None:
                self._abort()
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        self._flags_group = None

    # The state that counts.

    def _agree(self) -> None:
        """Compare the memories and send the one that counts where they differ."""
        if self.world_size == 1:
            if not self._clean:
                raise state.StateLostError("the only rank was interrupted in the middle of applying a step")
            return
        tensors: list[torch.Tensor] = []
        state.split(self._state(), tensors)
        mine = torch.tensor([self.committed, int(self._clean), state.digest(tensors)], dtype=torch.int64)
        everybody = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everybody, mine, group=self._flags_group)
        standings = [state.Standing(int(a), bool(b), int(c)) for a, b, c in (t.tolist() for t in everybody)]
        if not state.are_equal(standings):
            self._receive(state.choose_source(standings))

    def _state(self) -> dict[str, Any]:
        return {
            "model": self._module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "extras": {name: extra.state_dict() for name, extra in self._extras.items()},
            "position": self._position,
        }

    def _receive(self, source: int) -> None:
        """Everybody gets the state of `source`."""
        tensors: list[torch.Tensor] = []
        skeleton: list[Any] = [None, self.committed]
        if self.rank == source:
            skeleton[0] = state.split(self._state(), tensors)
        dist.broadcast_object_list(skeleton, src=source, group=self._flags_group)
        if self.rank != source:
            tensors = [
                torch.empty(slot.shape, dtype=slot.dtype, device=self._device(slot))
                for slot in state.find_slots(skeleton[0])
            ]
        for tensor in tensors:
            group = self._flags_group if tensor.device.type == "cpu" else None
            dist.broadcast(tensor.contiguous(), src=source, group=group)
        if self.rank == source:
            return
        value = state.join(skeleton[0], tensors)
        self._module.load_state_dict(value["model"])
        self.optimizer.load_state_dict(value["optimizer"])
        for name, extra in self._extras.items():
            extra.load_state_dict(value["extras"][name])
        if self.sampler is not None and value["position"] is not None:
            self.sampler.load_state_dict(value["position"])
        self._position, self.committed, self._clean = value["position"], skeleton[1], True

    def _device(self, slot: state.Slot) -> torch.device:
        return torch.device(slot.device) if slot.device == "cpu" else next(self._module.parameters()).device


def _world_of(environ: Mapping[str, str]) -> control.Message:
    """The world in which the agent started this process, as the relay would describe it."""
    return {
        "generation": int(environ[GENERATION]),
        "rank": int(environ["RANK"]),
        "worldSize": int(environ["WORLD_SIZE"]),
        "groupRank": int(environ.get("GROUP_RANK", "0")),
        "groupWorldSize": int(environ.get("GROUP_WORLD_SIZE", "1")),
        "address": environ["MASTER_ADDR"],
        "port": int(environ["MASTER_PORT"]),
        "restarts": int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    }


def is_world_failure(error: Exception) -> bool:
    """Whether an exception means that the world broke, rather than that the script has a mistake."""
    if isinstance(error, getattr(dist, "DistError", ())):
        return True
    if not isinstance(error, RuntimeError | OSError) or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS)


def _first_line(error: BaseException) -> str:
    lines: list[str] = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]
