"""Snapshots of a training state in memory: taken while the next step computes, and restored without a disk.

`take` notes the state and returns. A thread copies the parameters and the optimizer's state, which nothing changes
before the next `optimizer.step()`: that waits for the copy. Everything else (buffers, samplers, schedulers) is copied
at once. A snapshot whose tensors changed meanwhile is dropped, so a snapshot is always of one step.

What is on a device is copied by the device, beside the training, if the memory of the snapshot is registered with it
(`lanes`). That is begun in a thread after the first `optimizer.step()`, and until it is done snapshots are left out.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.channel import progress
from elasticjob.checkpoint.copies import Copies
from elasticjob.checkpoint.lanes import Lane, find_lane
from elasticjob.checkpoint.shelf import Shelf, SnapshotError, place
from elasticjob.checkpoint.snapshots import WHOLE, Choice, Held, find_choices
from elasticjob.checkpoint.state import compare_kinds, name_kind
from elasticjob.collectives import deliveries, messages, plaindata, skeletons
from elasticjob.protocol.steps import MEMORY
from elasticjob.torchcompat.optimizers import load_state
from elasticjob.torchcompat.versions import count_changes

_log = logging.getLogger("elasticjob.checkpoint.memory")
Pair = tuple[torch.Tensor, torch.Tensor]  # a place in a snapshot, and what is copied there
_ABSENT = -1
_ELSEWHERE = "another rank could not read its part"


class Snapshots:
    """The snapshots of one Checkpointer. All ranks create and call it in the same order."""

    def __init__(
        self,
        shelf: Shelf | None,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        others: dict[str, Any],
        *,
        local_rank: int,
        per_pod: int,
        world: str,
        group: Any,
    ) -> None:
        """`world`: unique, and equal on all ranks. `per_pod`: ranks of a pod.

        `group`: of all ranks, for CPU tensors, used by `restore` only.
        """
        self._shelf, self._others, self._world, self._group = shelf, others, world, group
        self._model = getattr(model, "module", model) if _is_wrapper(model) else model
        self._optimizer = optimizer
        self._is_sharded = any(hasattr(tensor, "to_local") for tensor in self._model.parameters())
        self._part = dist.get_rank() if self._is_sharded else WHOLE
        self._is_writer = shelf is not None and (self._is_sharded or local_rank == 0)
        self._copies = Copies(shelf, per_pod, world) if self._is_sharded else None
        self.thread: threading.Thread | None = None
        self.misfit = ""  # why an intact snapshot could not be used
        self._copied = threading.Event()
        self._copied.set()
        if shelf is None:
            _log.warning("no snapshots in memory: the script was not started by an ElasticJob agent with /dev/shm.")
        self._unchecked: Callable[[], None] = _do_nothing  # looks whether the last snapshot's tensors have changed
        self._checking = threading.Lock()
        self._lane: Lane | None = None
        self._is_prepared = True
        if optimizer is not None and self._is_writer:
            self.use_lane(find_lane([_local(tensor) for tensor in self._model.parameters()]))
            prepare = weakref.WeakMethod(self._prepare)
            optimizer.register_step_post_hook(lambda *_: (found := prepare()) and found())
            wait = weakref.WeakMethod(self._wait_for_copy)  # the optimizer may outlive the Checkpointer
            optimizer.register_step_pre_hook(lambda *_: (found := wait()) and found())

    # Taking.

    @property
    def is_busy(self) -> bool:
        """Whether the last snapshot is still being written."""
        return self.thread is not None and self.thread.is_alive()

    def take(self, step: int) -> None:
        """Take a snapshot of the state after `step`. A pod without memory for it is warned about, once."""
        self.wait()
        began = time.monotonic()
        if not self._is_writer or self._shelf is None:
            self._start(step, lambda: self._copy(None, "", torch.empty(0, dtype=torch.uint8)))
            return
        tensors: list[torch.Tensor] = []
        text = plaindata.encode(skeletons.split(self._state(), tensors), "state")
        offsets, size = place([tensor.numel() * tensor.element_size() for tensor in tensors])
        try:
            slot = self._shelf.begin(self._part, size)
        except SnapshotError as error:
            _log.warning("No more snapshots in memory from this rank: %s.", error)
            self._is_writer = False
            self.take(step)
            return
        lane = self._lane if self._shelf.is_registered(self._part, size) else None
        later, queued, own = self._copy_now(zip(_view(slot.data, tensors, offsets), tensors, strict=True), lane)
        versions = [count_changes(tensor) for tensor in own]
        held = Held(self._world, step, self._part, dist.get_world_size())
        found: list[bool] = []

        def check() -> None:
            """Whoever is first: the thread, when all is copied; or the optimizer, before it changes what was copied."""
            with self._checking:
                if not found:
                    found.append(versions != [count_changes(tensor) for tensor in own])

        def finish() -> None:
            try:
                for target, tensor in later:
                    target.copy_(tensor)
                if lane is not None:
                    self._copied.set()  # the optimizer checks first, and the device holds it back
                    lane.wait()
                    queued.clear()  # not before: the device has read them
                check()
            finally:
                self._copied.set()
            if found[0]:
                _log.warning("Step %d: no snapshot: the state was changed outside of optimizer.step().", step)
            is_whole = not found[0] and slot.commit(held, text)
            if is_whole:
                progress.saves.note(MEMORY, began)
            self._copy(held if is_whole else None, text, slot.data)

        if lane is not None:
            lane.queue(queued)
            progress.saving.seconds += lane.take_stalls()
            self._unchecked = check
        self._copied.clear()
        self._start(step, finish)

    def _copy_now(self, pairs: Iterable[Pair], lane: Lane | None) -> tuple[list[Pair], list[Pair], list[torch.Tensor]]:
        """Copy what may change before the optimizer's next step. Returns what the thread and the device copy later.

        And the tensors of these that must not change meanwhile: a tensor of the device that may is first copied on it.
        """
        steady = self._find_steady()
        later: list[Pair] = []
        queued: list[Pair] = []
        own: list[torch.Tensor] = []
        for target, tensor in pairs:
            is_steady = tensor.data_ptr() in steady
            if lane is not None and lane.takes(tensor):
                queued.append((target, tensor if is_steady else tensor.clone()))
                own += [tensor] if is_steady else []
            elif is_steady and tensor.device.type == "cpu":
                later.append((target, tensor))
                own.append(tensor)
            else:
                target.copy_(tensor)
        return later, queued, own

    def _start(self, step: int, target: Callable[[], None]) -> None:
        self.thread = threading.Thread(target=target, name=f"snapshot-{step}")
        self.thread.start()

    def _copy(self, held: Held | None, text: str, data: torch.Tensor) -> None:
        if self._copies is not None:
            self._copies.exchange(held, text, data)

    def wait(self) -> None:
        """Wait until the last snapshot is complete."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _wait_for_copy(self) -> None:
        """Before the optimizer changes what is copied."""
        if not self._copied.is_set():
            with progress.saving:
                self._copied.wait()
        if self._lane is not None:
            self._unchecked()
            self._unchecked = _do_nothing
            if self._lane.is_capturing():
                self.use_lane(None)
            else:
                self._lane.hold_back()

    # On a device.

    def use_lane(self, lane: Lane | None) -> None:
        """Let this device copy what is on it; None: copies are waited for, in the order of the training."""
        self._lane, self._is_prepared = lane, lane is None
        if self._shelf is not None:
            self._shelf.registrar = lane

    def _prepare(self) -> None:
        """After the first step of the optimizer: now it has its state."""
        if self._is_prepared or self._shelf is None or self.is_busy:
            return
        self._is_prepared = True
        if self._lane is None or self._lane.is_capturing():
            return
        tensors: list[torch.Tensor] = []
        skeletons.split(self._state(), tensors)
        _, size = place([tensor.numel() * tensor.element_size() for tensor in tensors])
        shelf = self._shelf

        def prepare() -> None:
            try:
                shelf.prepare(self._part, size)
            except SnapshotError as error:
                _log.warning("No more snapshots in memory from this rank: %s.", error)
                self._is_writer = False
                return
            if not shelf.is_registered(self._part, size):
                _log.info("The device cannot register the memory of snapshots: training waits for each copy.")

        self._start(0, prepare)

    def _state(self) -> dict[str, Any]:
        """This rank's part of the state, without copies."""
        optimizer = None if self._optimizer is None else self._optimizer.state_dict()
        others = {name: one.state_dict() for name, one in self._others.items()}
        return {
            "model": _localize(self._model.state_dict()),
            "optimizer": _localize(optimizer),
            "kind": name_kind(self._optimizer),
            "others": others,
        }

    def _find_steady(self) -> set[int]:
        """The addresses of the tensors that only `optimizer.step()` changes."""
        if self._optimizer is None:
            return set()
        found = [p for group in self._optimizer.param_groups for p in group["params"]]
        found += [v for state in self._optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
        return {_local(tensor.detach()).data_ptr() for tensor in found}

    # Restoring.

    def find_choices(self) -> list[Choice]:
        """The snapshots that the pods of this world can restore, the newest first; equal on all ranks."""
        held = [] if self._shelf is None else self._shelf.held()
        rows = messages.all_gather_json([[one.world, one.step, one.part, one.parts] for one in held], self._group)
        return find_choices([[Held(*row) for row in inventory] for inventory in rows])

    def restore(self, choice: Choice) -> str | None:
        """Load a snapshot; the problem if that is not possible, and then nothing has changed. Equal on all ranks."""
        problem: str | None = None
        misfit: str | None = None
        state: dict[str, Any] = {}
        try:
            text, data = self._receive(choice)
            state = _join(text, data)
            problem = misfit = self._find_misfit(state)
        except (SnapshotError, ValueError) as error:
            problem = str(error)
        said = messages.all_gather_json([problem, misfit], self._group)
        self.misfit = next((one for _, one in said if one), self.misfit)
        problems = [one for one, _ in said if one]
        problem = min(problems, key=lambda one: one == _ELSEWHERE, default=None)
        if problem is None:
            self._apply(state)
            self.keep_only(choice.world, choice.step)
        return problem

    def keep_only(self, world: str, step: int) -> None:
        """Forget every other snapshot. Call it on all ranks once they all go on from this one."""
        if self._shelf is not None:
            self._shelf.keep_only(world, step)

    def _receive(self, choice: Choice) -> tuple[str, torch.Tensor]:
        """This rank's part, from this pod or from the rank that has it. Raises SnapshotError."""
        me, mine, problem = dist.get_rank(), None, _ELSEWHERE
        for rank, source in enumerate(choice.sources):  # in one order, so that nobody waits in a circle
            if me == source:
                try:
                    if self._shelf is None:
                        raise SnapshotError("there is no memory for snapshots")
                    found = self._shelf.read(choice.world, choice.step, choice.part_of(rank))
                except SnapshotError as error:
                    found, problem = None, str(error)
                if rank == me:
                    mine = found
                else:
                    self._send(found, rank)
            elif me == rank:
                mine = self._receive_from(source)
        if mine is None:
            raise SnapshotError(problem)
        return mine

    def _send(self, found: tuple[str, torch.Tensor] | None, rank: int) -> None:
        if found is None:
            dist.send(torch.tensor([_ABSENT, 0]), rank, group=self._group)
            return
        text = messages.to_tensor(found[0])
        dist.send(torch.tensor([text.numel(), found[1].numel()]), rank, group=self._group)
        deliveries.send(text, rank, self._group).wait()
        if found[1].numel():
            deliveries.send(found[1], rank, self._group).wait()

    def _receive_from(self, source: int) -> tuple[str, torch.Tensor] | None:
        sizes = torch.zeros(2, dtype=torch.int64)
        dist.recv(sizes, source, group=self._group)
        if int(sizes[0]) == _ABSENT:
            return None
        text, data = (torch.empty(int(size), dtype=torch.uint8) for size in sizes)
        deliveries.receive(text, source, self._group).wait()
        if data.numel():
            deliveries.receive(data, source, self._group).wait()
        return messages.to_text(text), data

    def _find_misfit(self, state: dict[str, Any]) -> str | None:
        own = _localize(self._model.state_dict())
        saved = state["model"]
        if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
            return "the model in the snapshot is another one"
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        theirs = [] if state["optimizer"] is None else state["optimizer"]["param_groups"]
        if [len(one["params"]) for one in groups] != [len(one["params"]) for one in theirs]:
            return "the snapshot has another optimizer"
        return next(iter(compare_kinds(self._optimizer, state.get("kind", ""))), None)

    def _apply(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in _localize(self._model.state_dict()).items():
                tensor.copy_(state["model"][name])
        if self._optimizer is not None:
            load_state(self._optimizer, self._shard(state["optimizer"]))
        for name, one in self._others.items():
            if name in state["others"]:
                load_state(one, state["others"][name])

    def _shard(self, saved: dict[str, Any]) -> dict[str, Any]:
        """The optimizer's state with the local tensors of sharded parameters as sharded tensors again."""
        assert self._optimizer is not None
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        return saved | {
            "state": {
                index: {key: _like(value, parameters[index]) for key, value in state.items()}
                for index, state in saved["state"].items()
            }
        }


def _view(data: torch.Tensor, tensors: list[torch.Tensor], offsets: list[int]) -> Iterator[torch.Tensor]:
    """The places of these tensors in the bytes of a snapshot."""
    for tensor, offset in zip(tensors, offsets, strict=True):
        target = data[offset : offset + tensor.numel() * tensor.element_size()]
        yield target.view(tensor.dtype).view(tensor.shape)


def _do_nothing() -> None:
    """There is nothing to check."""


def _is_wrapper(model: torch.nn.Module) -> bool:
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)


def _local(tensor: Any) -> torch.Tensor:
    """This rank's part of a tensor."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _localize(value: Any) -> Any:
    """Nested dicts and lists with this rank's part of each tensor, detached."""
    if isinstance(value, torch.Tensor):
        return _local(value.detach())
    if isinstance(value, dict):
        return {key: _localize(one) for key, one in value.items()}
    return [_localize(one) for one in value] if isinstance(value, list) else value


def _like(value: Any, parameter: Any) -> Any:
    """A local tensor as a shard, if the parameter is sharded and the tensor has the form of its shard."""
    if not hasattr(parameter, "to_local") or not torch.is_tensor(value) or not value.dim():
        return value
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        value, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _join(text: str, data: torch.Tensor) -> dict[str, Any]:
    """The state from its plain data and its bytes. Raises ValueError if they do not fit together."""
    skeleton = plaindata.decode(text)
    slots = list(skeletons.find_slots(skeleton))
    offsets, size = place([slot.size for slot in slots])
    if size != data.numel():
        raise ValueError("the snapshot has another size than it says")
    tensors = [
        data[offset : offset + slot.size].clone().view(slot.dtype).view(slot.shape)
        for slot, offset in zip(slots, offsets, strict=True)
    ]
    state: dict[str, Any] = skeletons.join(skeleton, tensors)
    return state
