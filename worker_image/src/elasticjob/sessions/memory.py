"""What a session keeps from world to world: model, optimizer, extras, the sampler's position and the step.

On entering a world the ranks compare their state; if it differs, the most advanced complete state is sent to all.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import messages, skeletons
from elasticjob.context.leaving import Alone
from elasticjob.data import generators
from elasticjob.data.generators import Generators
from elasticjob.data.virtual_ranks import VirtualRanks
from elasticjob.errors import ConfigurationError
from elasticjob.sessions import late_groups, recovery, schedules, shapes, transfer
from elasticjob.sessions.alike import Entered, summarize
from elasticjob.sessions.model_state import ModelState, ReplicatedModelState
from elasticjob.sessions.undo import Undo
from elasticjob.torchcompat.optimizers import load_state


@dataclass
class Copy:
    """A rank's training state after a step, which no later step changes."""

    step: int
    skeleton: Any
    tensors: list[torch.Tensor]
    random: Generators | None


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])


class Memory:
    """The training state of one rank. A step begins, and is then committed or rolled back."""

    def __init__(self, model_state: ModelState, sampler: Any, extras: dict[str, Any], can_go_back: bool = True) -> None:
        """`can_go_back`: otherwise no step is ever repeated, and nobody pays for that."""
        self._can_go_back = can_go_back
        self.model_state = model_state
        self.sampler = sampler
        self.virtual: VirtualRanks | None = None  # of the current world
        self.committed = -1  # the last step applied on this rank; -1: none, or a joiner
        self._extras = extras
        self._is_applying = False  # the optimizer has begun, and not ended
        # By name, "" for the session's own: calls in the current step, and the most in a complete one.
        self._calls = dict.fromkeys(["", *(name for name, one in extras.items() if _is_optimizer(one))], 0)
        self._passed: dict[str, int] = {}  # how often a GradScaler let it step, or skipped its step
        self._usual = dict.fromkeys(self._calls, 1)
        self._knows_usual = False  # there was a complete step in this process
        self._clean = True  # no step is partially applied
        self._undo = Undo(one for one in extras.values() if not _is_optimizer(one))
        self._schedules = schedules.StepSchedules(extras.values())
        self._together: bool | None = None  # all optimizers have always stepped with one permission; None: no step yet
        self._places: dict[int, Copy] = {}  # the state of earlier steps, to which the model can go back
        self.was_there = False  # in an earlier world than this one
        self.has_received = False  # the state of this world is that of ranks that were in an earlier one
        self._epoch = recovery.NOWHERE  # whose batches the script reads, or has read last
        self.keep_place()

    @property
    def applied(self) -> int:
        """Calls of all optimizers in the current step."""
        return sum(self._calls.values())

    @property
    def is_applied(self) -> bool:
        """Whether all optimizers have applied the current step, as far as anybody knows."""
        return self._is_whole(with_skipped=True)

    def knows(self, optimizer: Any) -> bool:
        """Whether this optimizer is kept from world to world."""
        return optimizer is self.model_state.optimizer or any(one is optimizer for one in self._extras.values())

    def is_trained_by(self, stranger: torch.optim.Optimizer) -> bool:
        """Whether an optimizer that is not kept trains the model by itself, and not as a part of one that is kept."""
        if self._is_applying or self.knows(stranger):
            return False
        mine = {id(parameter) for parameter in self.model_state.model.parameters()}
        return any(id(one) in mine for one in _parameters_of(stranger))

    def note_entered(self) -> Entered:
        """The process enters its first world: what its script does until the first step is done by this rank alone."""
        named = {name.removeprefix(":"): one for name, one in self._name_parameters().items()}
        return Entered(self._lasting_optimizers().values(), named, is_joiner=self.has_received)

    def summarize_settings(self) -> list[int]:
        """The settings of all optimizers, to be compared with those of other ranks."""
        known = [self.model_state.optimizer, *(one for one in self._extras.values() if _is_optimizer(one))]
        groups = [group for one in known for group in one.param_groups]
        return summarize(groups, {name for one in known for name in one.defaults})

    def is_of_model(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether all parameters that this optimizer trains are the model's."""
        mine = {id(parameter) for parameter in self.model_state.model.parameters()}
        return all(id(one) in mine or not one.requires_grad for one in _parameters_of(optimizer))

    def begin(self) -> None:
        self._is_applying = False
        self._calls = dict.fromkeys(self._calls, 0)
        self._passed = {}

    def begin_batch(self) -> None:
        """The script gets the batch of a step, to which a loss lets it come back."""
        if self._can_go_back:
            self._keep_schedules()

    def begin_step(self, has_batch: bool = False) -> None:
        """A step begins, and not only a further micro-batch of it. `has_batch`: it has begun with that."""
        if self._can_go_back:
            if not (has_batch and self._schedules.is_kept):
                self._keep_schedules()
            if isinstance(self.model_state, ReplicatedModelState):
                self.model_state.note_gradients()

    def begin_block(self) -> None:
        """From here on, schedulers may follow what the script gets from other ranks."""
        self._keep_schedules()

    def _keep_schedules(self) -> None:
        further = (one for one in self._extras.values() if _is_optimizer(one))
        self._schedules.keep([self.model_state.optimizer, *further])

    def take_back_block(self) -> None:
        """The world was lost in a block between two steps, which is not repeated."""
        self._schedules.take_back()

    def take_back_again(self) -> None:
        """The script is about to begin a broken step again, if there is one."""
        self._schedules.take_back_again()

    def take_back_followers(self) -> None:
        """The world was lost while the script was outside of any block: what it has done there is not repeated."""
        self._schedules.make_again()

    def end_block(self) -> None:
        self._schedules.forget()

    def note_applying(self, optimizer: Any, makes_gradients: bool = False) -> None:
        """Record that an optimizer begins to step. If another one may fail to follow, the step can be taken back.

        `makes_gradients`: in its step, by a closure. So a loss may well come in there.
        """
        self._is_applying = True
        calls = self._count_calls(with_skipped=True)
        calls[self._find_name(optimizer)] += 1
        if self._may_be_torn(calls) or (makes_gradients and self._can_take_back):
            self._undo.keep(optimizer)
        else:
            self._undo.skip(optimizer)

    def _may_be_torn(self, calls: dict[str, int]) -> bool:
        """Whether a further optimizer is to step after these calls, and may fail to."""
        follows = any(calls[name] < usual for name, usual in self._usual.items())
        return follows and self._can_take_back and not self._together

    @property
    def _can_take_back(self) -> bool:
        return self._can_go_back and isinstance(self.model_state, ReplicatedModelState)

    def go_alone(self) -> Alone | None:
        """Outside of any world, to save it: go to the latest step of which this rank alone has all of the state.

        None if there is nothing to save, or another process of this pod has the same.
        """
        before = self.committed
        if before < 0:
            return None
        try:
            found = self.model_state.find_alone(before, self._clean, self._places.keys())
        except recovery.StateLostError as lost:
            return Alone(before + 1, 0, lacks=str(lost))
        except (RuntimeError, MemoryError) as error:  # such as no memory for the parts and the whole
            return Alone(before + 1, 0, lacks=f"its parts could not be put together ({error})")
        if found is None:
            return None
        self.committed, whole = found
        if self.committed != before:
            self._go_to(self._places[self.committed])
        self._clean = True
        return Alone(before + 1, self.committed + 1, whole)

    def note_torn(self) -> None:
        """A broken step has changed what cannot be taken back."""
        self._clean = False

    def note_applied(self, optimizer: Any) -> None:
        """Record that an optimizer has stepped: one of the extras, or else the session's own."""
        self._is_applying = False
        self._undo.skip(optimizer)
        self._calls[self._find_name(optimizer)] += 1

    def note_passed(self, optimizer: Any) -> None:
        """Record that a GradScaler has let an optimizer step, or has skipped its step."""
        if self.knows(optimizer):
            name = self._find_name(optimizer)
            self._passed[name] = self._passed.get(name, 0) + 1

    def note_learning(self) -> None:
        """A GradScaler is about to learn from the gradients. If an optimizer may fail to follow, that is taken back."""
        if self._may_be_torn(self._count_calls(with_skipped=True)):
            self._undo.keep_others()

    def _find_name(self, optimizer: Any) -> str:
        return next((name for name, one in self._extras.items() if one is optimizer), "")

    def commit(self, is_divided: bool | None = None) -> None:
        """Record that the step is applied on this rank. `is_divided`: its optimizers did not have one permission."""
        self.committed += 1
        if is_divided is not None:
            if self._schedules.has_any:
                self._schedules.note_step()
            self._together = self._together is not False and self._is_whole() and not is_divided
        self._schedules.forget()
        self._undo.forget()
        made = self._count_calls(with_skipped=True)
        self._usual = {name: max(usual, made[name]) for name, usual in self._usual.items()}
        self._knows_usual = self._knows_usual or all(made.values())
        self.begin()
        if self.virtual is not None:
            self.virtual.commit()
        self.keep_place()

    def note_committed(self) -> None:
        """All ranks have committed the step."""
        self._keep_places(self.model_state.after_step(self.committed))

    def begin_epoch(self) -> None:
        """The script begins to read the batches of the sampler's epoch. Raises ConfigurationError if it has read it."""
        if hasattr(self.sampler, "begin_epoch"):
            self.sampler.begin_epoch()
        self._epoch = getattr(self.sampler, "epoch", recovery.NOWHERE)

    def end_epoch(self) -> None:
        """All ranks have committed the last step of an epoch, and the script leaves it."""
        self._keep_places(self.model_state.end_epoch(self.committed))

    def enter_sampler(self, rank: int, world_size: int) -> None:
        """Make the sampler distribute samples over the ranks of this world."""
        if hasattr(self.sampler, "world_size"):
            self.sampler.rank, self.sampler.world_size = rank, world_size

    def read_batches(self, loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """The loader's batches, each with its part in a global batch; None where the sampler does not tell it.

        There may be none left, where the world has ended with the last step of an epoch.
        """
        if hasattr(self.sampler, "go_on_in"):
            self.sampler.go_on_in(self.sampler.epoch)
        return self.sampler.steps(loader) if hasattr(self.sampler, "steps") else ((None, batch) for batch in loader)

    def keep_place(self) -> None:
        """Save the position to which a broken step rolls back."""
        self._position = None if self.sampler is None else self.sampler.state_dict()
        self.keep_draws()

    def keep_draws(self) -> None:
        """A broken step goes on drawing random numbers from here: what was drawn before is not drawn again."""
        self._random = generators.read() if self._can_go_back else None

    def have_all_stepped(self, with_skipped: bool) -> bool:
        """Whether each optimizer has stepped in this step: all ranks say the same, also one that has just joined.

        `with_skipped`: or its GradScaler has skipped it.
        """
        return all(self._count_calls(with_skipped).values())

    def _is_whole(self, with_skipped: bool = False) -> bool:
        """Whether each optimizer has stepped as often as it ever does. With several of them, and blocks in which not
        all step, nobody knows whether one was still to come.
        """
        made = self._count_calls(with_skipped)
        return all(made[name] >= usual for name, usual in self._usual.items())

    def _count_calls(self, with_skipped: bool) -> dict[str, int]:
        """By the name of the optimizer, in this step."""
        if not with_skipped or not self._passed:
            return self._calls.copy()
        return {name: max(made, self._passed.get(name, 0)) for name, made in self._calls.items()}

    def take_back(
        self,
        generation: int,
        was_last_batch: bool,
        was_ready: bool,
        was_skipped: bool = False,
        was_trailed: bool = False,
    ) -> None:
        """The world was lost during a step: keep the step if it was applied; otherwise roll it back.

        `was_skipped`: a GradScaler had the permission to skip what it has skipped of the step. `was_trailed`: what the
        script has got from other ranks behind the optimizers may be wrong.

        Nobody knows in the first step of a process whether a further call of an optimizer was to come.

        `was_ready`: all gradients were present on this rank, but perhaps not on all. Another rank may have applied the
        step, so the state before the step and the state after it are both kept.
        """
        before = self.committed
        is_applied = self._is_whole(with_skipped=True) if was_skipped else self._knows_usual and self._is_whole()
        if is_applied and self._clean and was_last_batch and not self._is_applying:
            if was_trailed:
                self._schedules.make_again()
            self._schedules.catch_up()
            self.commit()
        elif self._undo.is_needed:
            # One of several optimizer calls may be missing, or a part of one.
            self._clean = self._undo.take_back() and self._clean
            self._schedules.take_back()
        elif was_ready and list(self._usual.values()) == [1]:
            if self.virtual is not None:
                self.virtual.buffers.undo()
            with self._schedules.before():
                self.model_state.keep(self.committed, generation)
            with self._undo.leaving_others():  # which hooks of the optimizer may change
                self.model_state.optimizer.step()
            if self.virtual is not None:
                self.virtual.buffers.apply()
            self.model_state.keep(self.committed + 1, generation)
            self._schedules.take_back()
        else:
            self._schedules.take_back()
        if self.virtual is not None:
            self.virtual.take_back()
        self.begin()
        if self._position is not None:
            self.sampler.load_state_dict(self._position)
        generators.restore(self._random)
        if isinstance(self.model_state, ReplicatedModelState):
            self.model_state.clear_gradients(is_applied=self.committed > before)
        else:
            self.model_state.optimizer.zero_grad()
            self.model_state.model.zero_grad()
        for extra in self._extras.values():
            _forget_gradients(extra)

    def copy(self, old: Copy | None = None) -> Copy:
        """A copy of this rank's state after this step; it reuses the memory of an `old` one."""
        return self._copy({**self.model_state.part(), **self._others()}, old)

    def _copy(self, state: dict[str, Any], old: Copy | None = None) -> Copy:
        tensors: list[torch.Tensor] = []
        skeleton = skeletons.split(state, tensors)
        slots = list(skeletons.find_slots(skeleton))
        if old is None or list(skeletons.find_slots(old.skeleton)) != slots:
            return Copy(self.committed, skeleton, [tensor.clone() for tensor in tensors], self._random)
        for kept, tensor in zip(old.tensors, tensors, strict=True):
            kept.copy_(tensor)
        return Copy(self.committed, skeleton, old.tensors, self._random)

    def go_back(self, copy: Copy) -> None:
        """Continue from this copy of the same world, which stays what it is."""
        value = skeletons.join(copy.skeleton, [tensor.clone() for tensor in copy.tensors])
        self._complete_groups(value)
        self.model_state.load_part(value)
        self._load_others(value)
        self.committed, self._random = copy.step, copy.random
        generators.restore(copy.random)
        self.model_state.optimizer.zero_grad()

    def agree(self, group: Any) -> None:
        """Get the state that all ranks of this world share, and train with it.

        `group` is a CPU process group of all ranks; a world of one rank needs none. Raises StateLostError if no rank
        has a complete state, and LeftBehindError if other ranks have gone on to a later epoch.
        """
        before, places = self.committed, self._places
        self.was_there = before >= 0
        self.has_received = False
        self.committed, self._clean = self.model_state.restore(before, self._clean, places.keys(), group)
        if self.committed in places and self.committed != before:
            self._go_to(places[self.committed])
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._compare(group)
        elif not self._clean:
            raise recovery.StateLostError("the only rank was interrupted while it applied a step")
        else:
            self._go_on_in(self._epoch)
        self._keep_places(self.model_state.settle(self.committed))

    def _compare(self, group: Any) -> None:
        inventory = transfer.take_inventory(self._state())
        mine = [self.committed, int(self._clean), transfer.digest_inventory(inventory), self._epoch]
        rows = messages.all_gather_integers(mine, group)
        rank_states = [recovery.RankState(step, bool(clean), digest) for step, clean, digest, _ in rows]
        epoch = recovery.choose_epoch([epoch for *_, epoch in rows], dist.get_rank())
        self.has_received = not self.was_there and any(one.step >= 0 for one in rank_states)
        if not recovery.are_equal(rank_states):
            self._receive(inventory, rank_states, group)
        self._go_on_in(epoch)
        self._compare_schedules(recovery.choose_source(rank_states), group)

    def _compare_schedules(self, source: int, group: Any) -> None:
        """Raises ConfigurationError if this rank's learning rates would be others than those of the source."""
        found = schedules.evaluate(self._extras.values())
        if found:
            rows = messages.all_gather_integers([zlib.crc32(repr(found).encode())], group)
            if rows[dist.get_rank()] != rows[source]:
                raise ConfigurationError(schedules.DIFFERENT)

    def _receive(self, inventory: transfer.Inventory, rank_states: list[recovery.RankState], group: Any) -> None:
        rank, source = dist.get_rank(), recovery.choose_source(rank_states)
        # A joiner has no state to lose: it receives into its own tensors, and is complete when all ranks have theirs.
        keep = self.committed >= 0
        self._clean = self._clean and (keep or rank == source)
        exchange = transfer.Exchange(rank, source, group, self.model_state.device, keep)
        received = exchange.run(inventory)
        if received is not None:
            self._clean = False  # until all of it is loaded
            if exchange.is_aside:
                self._make_room(inventory)
                received = self._bring(received, exchange)
            self._take_groups(received)
            self.model_state.load(received)
            self._load_others(received)
            self.keep_draws()  # an object that was loaded may have set the generators
        self.committed, self._clean = rank_states[source].step, True

    def _make_room(self, inventory: transfer.Inventory) -> None:
        """Free what optimizers have made on a device. What they load is made there anew."""
        for section in inventory.values():
            section.tensors.clear()
        for optimizer in self._lasting_optimizers().values():
            optimizer.state.clear()

    def _bring(self, received: dict[str, Any], exchange: transfer.Exchange) -> dict[str, Any]:
        """What is taken as it is belongs on the device; the rest is copied to where it belongs when it is loaded."""
        copied = [name for name, one in self._extras.items() if isinstance(one, torch.nn.Module) or _is_optimizer(one)]
        extras = {name: one if name in copied else exchange.bring(one) for name, one in received["extras"].items()}
        return {**received, "extras": extras, "unsaved": exchange.bring(received.get("unsaved", {}))}

    def _go_on_in(self, epoch: int) -> None:
        """Be in the epoch in which all scripts are.

        The end of an epoch is the start of the next one, by its state. But who reads the batches of that epoch comes to
        what the script does after them, and all others have to come there too.
        """
        if epoch != recovery.NOWHERE and hasattr(self.sampler, "go_on_in"):
            self.sampler.go_on_in(epoch)

    def _keep_places(self, steps: Sequence[int]) -> None:
        """Keep all but the model of these steps, and of no others. Only the present one may be new."""
        places = self._places
        self._places = {step: places[step] if step in places else self._copy(self._others()) for step in steps}

    def _go_to(self, place: Copy) -> None:
        """Continue from this step; the model is already there."""
        value = skeletons.join(place.skeleton, [tensor.clone() for tensor in place.tensors])
        self._complete_groups(value)
        self._load_others(value)
        self._random = place.random
        generators.restore(place.random)

    def _state(self) -> dict[str, Any]:
        """The state that must be equal on all ranks, in the sections that are compared and sent."""
        return {**self.model_state.state(), **self._others(), "groups": self.read_groups()}

    def read_groups(self) -> dict[str, late_groups.Groups]:
        """The parameter groups of all optimizers that stay the same in all worlds, by the optimizer's name."""
        named = self._name_parameters()
        return {name: late_groups.read(one, named) for name, one in self._lasting_optimizers().items()}

    def _take_groups(self, value: dict[str, Any]) -> None:
        """Make the groups of all optimizers those of the source, whose runtime may be an older one."""
        named, states, groups = self._name_parameters(), _read_states(value), value.get("groups", {})
        for name, one in self._lasting_optimizers().items():
            if name in groups:
                late_groups.take(one, groups[name], states[name], named)

    def _complete_groups(self, value: dict[str, Any]) -> None:
        """Add to an older state of this rank the groups that its optimizers have got since."""
        states = _read_states(value)
        for name, one in self._lasting_optimizers().items():
            late_groups.complete(one, states[name])

    def _lasting_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        own = {"": self.model_state.optimizer} if isinstance(self.model_state, ReplicatedModelState) else {}
        return own | {name: one for name, one in self._extras.items() if _is_optimizer(one)}

    def _name_parameters(self) -> dict[str, torch.nn.Parameter]:
        own = {"": self.model_state.model} if isinstance(self.model_state, ReplicatedModelState) else {}
        return late_groups.name_parameters(
            own | {name: one for name, one in self._extras.items() if isinstance(one, torch.nn.Module)}
        )

    def _others(self) -> dict[str, Any]:
        extras = {name: extra.state_dict() for name, extra in self._extras.items()}
        found = {"extras": extras, "position": self._position}
        loose = self._find_loose()
        return found | {"loose": {name: [one.detach() for one in those] for name, those in loose.items()}}

    def _find_loose(self) -> dict[str, list[torch.Tensor]]:
        """By optimizer, the parameters that are of no module that the session knows, such as weights of losses.

        A sharded model and what trains it belong to one world.
        """
        if not isinstance(self.model_state, ReplicatedModelState):
            return {}
        return late_groups.find_loose(self._lasting_optimizers(), self._name_parameters())

    def _load_others(self, value: dict[str, Any]) -> None:
        for name, extra in self._extras.items():
            if isinstance(extra, torch.nn.Module):
                shapes.load(extra, value["extras"][name])
            else:
                load_state(extra, value["extras"][name])
        late_groups.load_loose(self._find_loose(), value.get("loose", {}))  # the source's runtime may be an older one
        if self.sampler is not None and value["position"] is not None:
            self.sampler.load_state_dict(value["position"])
        self._position = value["position"]


def _read_states(value: dict[str, Any]) -> dict[str, Any]:
    """The states of the extras by name, and that of the session's own optimizer, ""."""
    return {**value["extras"], "": value.get("optimizer")}


def _is_optimizer(extra: Any) -> bool:
    return isinstance(extra, torch.optim.Optimizer)


def _forget_gradients(extra: Any) -> None:
    """A GradScaler refuses to unscale the gradients of one step twice, and the broken step will be repeated."""
    if isinstance(extra, torch.amp.GradScaler):
        with contextlib.suppress(AssertionError):  # it has not scaled anything yet
            extra.update(extra.get_scale())  # the same scale; its count of good steps stays too
    elif isinstance(extra, torch.optim.Optimizer):
        extra.zero_grad()
