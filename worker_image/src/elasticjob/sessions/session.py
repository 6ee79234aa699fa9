"""A training session that outlives its worlds: the process keeps its memory when members join and leave.

    session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler)
    for x, y in session.batches(loader):
        with session.step():
            session.backward(loss_function(session.model(x), y))
            if session.ends_step:
                optimizer.step()
                optimizer.zero_grad()

An announced change ends the world after a step that all ranks agree on: no step is lost. After the loss of a member the
broken step is rolled back and repeated in the new world, which starts with bitwise equal parameters. Outside of an
ElasticJob a session is plain DDP, and a change of the world is a restart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from elasticjob.channel import completion, control, progress
from elasticjob.context import agreement
from elasticjob.data.batch_growth import BatchGrowth
from elasticjob.data.virtual_ranks import VirtualRanks
from elasticjob.env import is_in_process
from elasticjob.errors import ConfigurationError, StepsDifferError, WorldLostError
from elasticjob.sessions import alike, arguments, late_groups, meetings
from elasticjob.sessions.advice import TWICE, Adviser, check_sampler, find_here, has_gradients, judge_outside
from elasticjob.sessions.early import Early
from elasticjob.sessions.fence import Fence, Seen
from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState, check_layers, hook
from elasticjob.sessions.process_groups import ProcessGroups, find_cause, first_line
from elasticjob.sessions.replicas import Replicas, digest, read_every
from elasticjob.sessions.sharded.model import Build, make_model_state
from elasticjob.sessions.step_buffers import StepBuffers
from elasticjob.sessions.worlds import Worlds
from elasticjob.torchcompat import devices, graphs, optimizers, waits
from elasticjob.torchcompat import groups as groups_of_torch
from elasticjob.torchcompat.groups import count_by_kind, count_messages, count_queued

logger = logging.getLogger("elasticjob")

_SEEN = (
    "Sessions on CUDA devices were seen to work on single ones (NVIDIA H100 and H200) whose ranks shared them, and not"
    " yet over NVLink or InfiniBand."
)


@dataclass
class Block:
    """A block of code between two steps."""

    is_whole: bool = False  # it has come to its end, and no member was lost until then
    failure: Exception | None = None  # of a collective in it, which the script may have caught


_ONE_AFTER_THE_OTHER = (
    "train the models together in one session (torch.nn.ModuleDict, or further optimizers by name), or one after the"
    " other in jobs of their own. A script without a session, with a Checkpointer for each model, restarts at each"
    " change and trains them in one job."
)
_ONE = f"this process has had a session, and can have only one: {_ONE_AFTER_THE_OTHER}"
_ANOTHER = f"An ElasticJob refuses a second session in one process, as this one is: {_ONE_AFTER_THE_OTHER}"
_CAPTURED = (
    "a CUDA graph records this step of {}. Its replays call nobody, so that after a loss they would apply gradients"
    " that were not reduced, and the session could not take that back. Capture the passes only, for example by"
    " torch.cuda.make_graphed_callables, and call the optimizer itself in each step."
)
_IN_BACKWARD = (
    "{} steps inside of the backward pass, in a hook such as register_post_accumulate_grad_hook: a loss in the pass"
    " would leave a part of the step applied, which a session of several ranks cannot take back. Call the optimizer"
    " after session.backward()."
)
_has_been = False  # a session with an agent
_has_tried = False  # one without


def has_been() -> bool:
    """Whether this process has had its only session."""
    return _has_been


def _note_session(has_agent: bool) -> None:
    """Without an agent there may be several, as in tests of a script or in a notebook: a script is told."""
    global _has_been, _has_tried
    if not has_agent and _has_tried and not hasattr(sys, "ps1"):
        logger.warning(_ANOTHER)
    _has_been, _has_tried = has_agent, not has_agent


class Session:
    """Everything in a training run that must survive a change of the world.

    `extras` are further objects with `state_dict` and `load_state_dict`, such as a learning-rate scheduler. A sharded
    model (FSDP2) belongs to one world: instead of a model and an optimizer, pass a function `build(mesh)` that creates
    both in each world, and use `session.model` and `session.optimizer`, which change with the world. `shards` is the
    minimum number of ranks that share one copy of the model; more ranks hold further copies (HSDP), which lets the
    model survive a loss. By default all ranks share one copy. With `copy_every`, each rank sends its shards to the next
    pod after every so many steps: a loss then costs a few steps, and not all since the last checkpoint.

    If the sampler has `virtual_ranks`, parameters after each step are bitwise the same in worlds of any size, and
    `backward(loss)` replaces `loss.backward()` (see `VirtualRanks`). `growth` fits the learning rate to a larger batch
    (see `BatchGrowth`).

    `ddp` are further arguments of the DistributedDataParallel of each world, such as `find_unused_parameters`,
    `static_graph`, `broadcast_buffers` and `gradient_as_bucket_view`. A model with trainable parameters that a backward
    pass does not use needs the first one: otherwise the first step of several ranks raises ConfigurationError.

    `on_world(session)` is called on all ranks of each new world, before training starts: the place to create objects
    that belong to one world, such as a `Checkpointer`. If `session.committed` is -1 there, no rank has a state: load
    the checkpoint, and set `session.committed` to the number of its last step.

    On CUDA devices, this was seen for minutes, on single devices that several ranks shared: never over NVLink or
    InfiniBand, and not in whole pods.

    Raises ConfigurationError if the arguments do not fit together, or if this process has a session already, or has had
    one: its agent tells one session of the worlds.
    """

    _went_back = False  # to a step before the last one, in the same world
    _is_used = False  # a block has begun since a batch was read
    _begun = 0  # steps that optimizers have begun to apply in this world
    _entered: alike.Entered | None = None  # what this rank had in its first world, until its first step

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        sampler: Any = None,
        backend: str | None = None,
        timeout: float = 600.0,
        build: Build | None = None,
        shards: int | None = None,
        copy_every: int = 0,
        on_world: Callable[[Session], None] | None = None,
        growth: BatchGrowth | None = None,
        ddp: Mapping[str, Any] | None = None,
        **extras: Any,
    ) -> None:
        if _has_been:
            raise ConfigurationError(_ONE)
        arguments.check(model, optimizer, sampler, extras)
        self._is_virtual = getattr(sampler, "virtual_ranks", None) is not None
        hooks = (self._begin_apply, self._end_apply)
        self._model_state = make_model_state(
            model, optimizer, build, shards, copy_every, hooks, not self._is_virtual, ddp
        )
        self._further = [one for one in extras.values() if isinstance(one, torch.optim.Optimizer)]
        for further in self._further:
            hook(further, hooks)
        for scaler in (one for one in extras.values() if isinstance(one, torch.amp.GradScaler)):
            self._guard(scaler)
        self._growth = progress.batches.growth = growth
        # A process group that the script created itself is bound to its world.
        keeps_memory = is_in_process(os.environ) is not False and not dist.is_initialized()
        client = control.connect() if keeps_memory else None
        if client is not None and model is not None:
            check_layers(model)
        _note_session(client is not None)
        kept = {**extras, **({} if growth is None else {"growth": growth})}
        self._memory = Memory(self._model_state, sampler, kept, can_go_back=client is not None)
        self._is_replicated, self._on_world = build is None, on_world
        self.sampler = sampler
        self._micro: Any = None
        # Ready: this rank has all gradients of the step, and waits for the other ranks.
        self._in_batches = self._closed = self._ready = False
        on_cuda = torch.cuda.is_available() if build is not None else self._model_state.device.type == "cuda"
        device = _bind(self._model_state.device if build is None else None) if on_cuda else torch.device("cpu")
        groups = ProcessGroups(backend or ("nccl" if on_cuda else "gloo"), timeout, device)
        if on_cuda and client is not None:
            logger.info(_SEEN)
        self._tells = client is not None and groups.is_queued  # how far the device is, as its agent cannot see it
        if client is not None and self._tells:
            client.want(control.DEVICE)
            graphs.watch()
        self._worlds = Worlds(self._memory, groups, client, self._enter_world)
        self._fence = self._make_fence(groups)
        self._buffers = StepBuffers(None)
        can_go_back = client is not None and model is not None
        self._early = Early(model, extras.values()) if can_go_back else Early(None, ())
        # The same in a block between two steps, behind the optimizers of a step, between two epochs, and in `on_world`.
        self._aside, self._trail, self._between, self._entry = _watch(model if can_go_back else None)
        self._replicas = Replicas(self._memory, self._worlds, 0 if client is None else read_every(os.environ))
        lasting = [*self._further, *([] if optimizer is None else [optimizer])]
        self._adviser = Adviser(
            extras,
            lasting,
            self._memory.knows,
            self._is_reduced,
            lambda: self.rank == 0,
            self._memory.read_groups,
        )
        self._block: Block | None = None  # between two steps, of the script's
        self._left_by: str | None = None  # the exception that has ended the last block, but not what it holds
        if client is not None:
            late_groups.allow_repeats(lasting)
            waits.tell(self._note, self._look_at_wait)
            self._forget_strangers = optimizers.hook_all(self._begin_stranger, self._end_stranger)
            if self._is_replicated:
                self.model.watch(self._begin_pass, self._survive_pass)
        # Shards need a group even with one rank, and so does what `on_world` creates.
        self._worlds.enter_first(alone=build is not None or on_world is not None)
        self._entered = None if client is None else self._memory.note_entered()
        self._stop_watching = groups_of_torch.watch_use(self._look_at_use) if client is not None else lambda: None

    @property
    def model(self) -> Any:
        """The model of the current world."""
        return self._model_state.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the current world."""
        return self._model_state.optimizer

    @property
    def committed(self) -> int:
        """The last step that is applied here; -1: none, or a joiner that has no state yet."""
        return self._memory.committed

    @committed.setter
    def committed(self, step: int) -> None:
        self._memory.committed = step

    @property
    def generation(self) -> int:
        """The generation of the current world."""
        return self._worlds.state.generation

    @property
    def regroups(self) -> int:
        """The number of worlds that this session has entered; 0 without an agent that regroups."""
        return self._worlds.entered

    @property
    def rank(self) -> int:
        """This process's rank in the current world."""
        return self._worlds.rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the current world."""
        return self._worlds.size

    @property
    def scale(self) -> float:
        """The factor for this batch's mean loss, so that the gradient is the mean over the global batch."""
        return 1.0 if self._micro is None else float(self._micro.scale)

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer steps after this batch; False while gradients are accumulated."""
        return self._micro is None or bool(self._micro.ends_step)

    @property
    def loss(self) -> float | None:
        """The mean loss of the last global batch, on all ranks: with virtual ranks, if `backward` was used."""
        return None if self._memory.virtual is None else self._memory.virtual.loss

    def backward(self, loss: torch.Tensor) -> None:
        """Differentiate the mean loss of this batch. With virtual ranks, the last one of a step adds up all gradients.

        It is `(loss * session.scale).backward()` otherwise.
        """
        if self._memory.virtual is None:
            scale = self.scale
            torch.autograd.backward(loss if scale == 1 else loss * scale)
        else:
            self._memory.virtual.backward(loss)
        if self.ends_step:
            # All gradients are here. What follows changes objects that a broken step does not take back, in no time.
            self._worlds.interrupter.allowed = False

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The remaining batches of this epoch, across changes of the world."""
        if self._worlds.can_change:
            check_sampler(loader, self.sampler)
        self._in_batches = True
        self._adviser.look_at(loader, self.sampler)
        try:
            yield from self._remaining(loader)
        finally:
            self._in_batches = False

    def _remaining(self, loader: Iterable[Any]) -> Iterator[Any]:
        self._settle()
        self._memory.keep_draws()  # what the script has done since the last epoch is not done again
        self._replicas.keep()
        self._memory.begin_epoch()
        epoch = getattr(self.sampler, "epoch", None)
        while True:
            if not self._worlds.is_running:
                self._look_at_buffers()
                self._worlds.change()
            if epoch is not None and self.sampler.epoch < epoch:
                self.sampler.set_epoch(epoch)  # back to an epoch that the script left before its end: it stays here
            if getattr(self.sampler, "epoch", None) != epoch:
                return
            self._went_back = False
            for micro, batch in self._memory.read_batches(loader):
                if self._worlds.state.is_lost:
                    self._break("a member was lost")
                    break
                self._micro, self._is_used = micro, False
                before = self.committed
                if not self._fence.is_open:
                    self._memory.begin_batch()
                yield batch
                self._adviser.look_at_batch(self._is_used)
                if self._left_by is not None:
                    self._settle()
                self._memory.take_back_again()
                if self.committed > before:
                    self._memory.keep_draws()  # nor is what it has done since the step
                if not self._worlds.is_running or self._went_back:
                    break
            if not self._went_back and self._is_epoch_over():
                self._micro = None
                with self._surviving():
                    self._memory.end_epoch()
                self._early.look_again()
                self._aside.look_again()
                if self._worlds.is_whole:
                    self._begin_between()
                    return

    def _is_epoch_over(self) -> bool:
        """Whether the script is to leave this epoch in the present world.

        If the world ends after the last step of an epoch, its ranks still do together what the script does between two
        epochs, and change before they read the next batch. So joiners begin with an epoch.
        """
        if self._worlds.is_running:
            return True
        return self._worlds.is_whole and hasattr(self.sampler, "is_over") and bool(self.sampler.is_over())

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One forward and backward pass, and the optimizer's step. Recovers afterwards if the world is lost.

        In a loop without `batches`, the next world is entered here, before the block. In an ElasticJob, raises
        ConfigurationError if such a loop has an ElasticDistributedSampler.
        """
        self._settle()
        if not self._in_batches and self._worlds.can_change and hasattr(self.sampler, "steps"):
            raise ConfigurationError(
                "step() needs a batch from session.batches(loader): a loop over the loader itself, or over"
                " sampler.steps(loader), goes on with the shares of a world that has ended, and one that reads ahead"
                " with those of another batch: let it read ahead of the loader, session.batches(Prefetcher(loader))."
                " A loop that makes its own data passes no such sampler to the session."
            )
        if not self._in_batches and self._worlds.is_running and self._worlds.state.is_lost:
            self._break("a member was lost")
        if not self._in_batches and not self._worlds.is_running:
            self._worlds.change()
        if self._worlds.can_change:
            if not self._fence.is_open:
                self._model_state.check_groups()
                self._memory.begin_step(self._in_batches)
                self._early.begin()
            self._worlds.begin_block(begins_step=not self._fence.is_open)
        self._use_batch()
        self._memory.begin()
        self._fence.begin()
        self._adviser.begin(self.regroups)
        if self._tells:
            completion.steps.begin(self._worlds.groups.count_collectives())
        self._buffers.keep()
        virtual = self._memory.virtual
        if virtual is not None:
            self._begin_virtual(virtual)
        before = self.committed
        try:
            with self._surviving():
                with self._model_state.accumulate(virtual is None and not self.ends_step):
                    try:
                        self._worlds.interrupter.begin()  # until the optimizer starts to apply the step
                        yield
                    except SystemExit as error:
                        self._weigh_exit(error, self._fence.failure)
                self._worlds.interrupter.allowed = False
                if virtual is not None:
                    virtual.finish()
                if self.ends_step:
                    if not self._memory.applied and not self._fence.is_skipped and getattr(self.model, "has_run", True):
                        self._adviser.look_at_gradients((self.optimizer, *self._further))
                    self._commit(self._memory.have_all_stepped(self._fence.is_skipped))
        except BaseException as error:
            self._left_by = _describe(error) if self.committed == before else None
            raise
        self._adviser.end(self.regroups)

    def _use_batch(self) -> None:
        if self._in_batches and self._is_used and not self._fence.is_open:
            self._adviser.tell("twice", TWICE)
        self._is_used = True

    def _begin_virtual(self, virtual: VirtualRanks) -> None:
        if self._micro is None:
            raise ConfigurationError("with virtual ranks, step() needs a batch from session.batches(loader).")
        virtual.begin(self._micro)

    def _commit(self, is_applied: bool) -> None:
        if self._buffers.is_unsure:
            self._worlds.hold()
        if self._fence.commit(is_applied and not self._worlds.has_met_less()):
            self._trail.look()
        self._trail.forget()
        self._memory.commit(self._fence.is_divided)
        self._buffers.forget()
        self._early.forget()
        self._memory.note_committed()
        completion.steps.end()
        self._went_back = self._replicas.check()
        self._worlds.end_step()

    def _settle(self) -> None:
        """If an exception has ended the last block, and the script goes on: all ranks have to have left it so."""
        if self._entered is not None:
            self._look_since_entry(self._entered)
        self._memory.take_back_again()
        if self._left_by is None:
            if not self._fence.is_open:
                self._end_between()
                self._look_at_buffers()
            return
        if not self._worlds.can_change and self.world_size > 1:
            self._adviser.note_left(self._left_by)
        with self._surviving():
            if self._memory.virtual is not None:
                self._memory.virtual.take_back()
            if self.ends_step:
                self._commit(is_applied=False)
            else:
                self._meet()
        self._adviser.end(self.regroups)
        self._left_by = None

    def _look_since_entry(self, entered: alike.Entered) -> None:
        """The script begins to train. What it has changed since `Session(...)`, a joiner has changed alone."""
        self._entered = None
        self._stop_watching()
        if put_back := entered.put_back():
            logger.warning("Session: %s", alike.tell_put_back(put_back))
        if changed := entered.find_changed():
            text = alike.tell_changed(changed, is_joiner=entered.is_joiner)
            if entered.is_joiner:
                raise ConfigurationError(text)
            if self.rank == 0:
                logger.warning("Session: %s", text)

    def _look_at_use(self) -> None:
        """The script is about to speak to other ranks. Until its first step, a joiner does so alone, and kills them."""
        if self._entered is None or not self._adviser.is_of_script():
            return
        text = alike.tell_together(find_here(), is_joiner=self._entered.is_joiner)
        if self._entered.is_joiner:
            self._stop_watching()  # what it does while it ends is its own
            raise ConfigurationError(text)
        self._adviser.tell("together", text)

    def _compare_settings(self) -> None:
        """Before the first optimizer of a step, whosoever it is: a loss between two of them would tear the step. Raises
        ConfigurationError if this rank would train another model.
        """
        if self.world_size == 1 or not self._worlds.can_change or self._fence.has_stepped:
            return
        self._begun += 1
        if not alike.is_due(self._begun):
            return
        rows = self._worlds.exchange_settings([int(self._memory.was_there), *self._memory.summarize_settings()])
        if wrong := alike.judge(rows, self.rank):
            self._worlds.hold()  # or the values are those of a lost world
            raise ConfigurationError(wrong)

    def _meet(self) -> None:
        failure = self._fence.failure
        reason = self._left_by or (_describe(failure) if failure else "no optimizer has applied gradients")
        self._worlds.meet(meetings.SKIPPED, reason)

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """If the world is lost in this block, roll the step back."""
        try:
            yield
        except Exception as error:
            self._worlds.interrupter.allowed = False
            cause = self._find_cause(error, self._fence.failure)
            if cause is None:
                raise
            self._raise_meant_by_signal(error)
            self._break(cause)
        finally:
            self._worlds.interrupter.allowed = False

    def _weigh_exit(self, error: SystemExit, noted: Exception | None) -> NoReturn:
        """In the script's own code, `sys.exit()` is an error like others: it may be a consequence of a loss."""
        self._worlds.interrupter.allowed = False
        if self._worlds.interrupter.find_meant_by_signal(error) is not None or self._find_cause(error, noted) is None:
            raise error
        raise WorldLostError("a member was lost, and the script ended itself") from error

    def _raise_meant_by_signal(self, error: BaseException) -> None:
        """A loss may become known while a script ends because of a signal, which is sent once."""
        if (meant := self._worlds.interrupter.find_meant_by_signal(error)) is not None:
            try:
                raise meant
            finally:
                del meant  # an error that a frame of its own keeps would keep them all

    def _find_cause(self, error: BaseException, failure: Exception | None) -> str | None:
        """The words that say that the world is lost, if the script's block has ended with `error` for that reason."""
        return find_cause(error, failure, self._worlds.is_failure) if self._worlds.can_change else None

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[Block]:
        """Code between two steps, for example an evaluation, which ends at once if the world is lost meanwhile.

        The rest of the block is skipped then, and no step is repeated. What it computed from other ranks' values is
        right if `is_whole` of the block is true afterwards. Code outside of any block of a session runs to its end
        first, and ends the process if one of its collectives fails.
        """
        self._settle()
        self._buffers.begin_block()
        if self._worlds.can_change:
            self._aside.begin()
            self._memory.begin_block()
        block = self._block = Block()
        try:
            try:
                self._worlds.interrupter.begin()
                yield block
            except SystemExit as error:
                self._weigh_exit(error, block.failure)
            self._worlds.interrupter.allowed = False
            if block.failure is not None:
                raise WorldLostError("a collective of this block has failed") from block.failure
            self._worlds.hold(also_begun=True)
            self._buffers.forget()
            self._aside.look()
            block.is_whole = True
            self._fence.leave()
        except Exception as error:
            self._worlds.interrupter.allowed = False
            cause = self._find_cause(error, block.failure)
            if cause is None:
                raise
            self._raise_meant_by_signal(error)
            logger.warning("After step %d: the world broke (%s).", self.committed, cause)
            self._worlds.break_off(cause)
            self._buffers.take_back()
            self._memory.take_back_block()
            if not self._aside.take_back():
                self._memory.note_torn()
        finally:
            self._worlds.interrupter.allowed = False
            self._block = block.failure = None
            self._buffers.end_block()
            self._aside.forget()
            self._memory.end_block()

    def close(self) -> None:
        """Leave the world in order, once every rank has finished the last step.

        Raises StepsDifferError if other ranks make further steps, unless an exception ends the script anyway.
        """
        self._adviser.close()
        self._entered = None
        self._stop_watching()
        if self._worlds.can_change:
            self._forget_strangers()
        if self._closed or not dist.is_initialized():
            return
        error = sys.exc_info()[1]  # which ends the script, or so it seems
        try:
            if error is None:
                self._settle()
                if self._fence.has_left_more() and self._worlds.is_lost():
                    # It may have ended for a value that a lost world has left, such as a goal that seems to be reached.
                    self._worlds.begin_again("a member was lost behind the last step, and the script has ended since")
            self._closed = True
            self._worlds.close()
        except StepsDifferError:
            self._worlds.give_up()
            if error is None:
                raise

    def _begin_pass(self, *_: Any) -> None:
        """Of the model. In a step, its buffers are kept, until the optimizers have applied it."""
        if self._entered is not None and self.world_size > 1 and next(self.model.buffers(), None) is not None:
            self._look_at_use()  # DDP sends them
        if not self._fence.is_open or self._memory.is_applied:
            self._buffers.keep_again()
        self._early.begin_pass()
        self._aside.begin_pass()

    def _survive_pass(self, error: Exception) -> bool:
        """A pass of the model has failed. Outside of any block, where DDP has only sent buffers, it goes on without."""
        if self._block is not None or self._fence.is_open:
            return False
        cause = self._find_cause(error, None)
        if cause is None:
            return False
        if self._worlds.is_whole:
            text = "After step %d: the world broke (%s). Until the next step, passes have the buffers of this rank."
            logger.warning(text, self.committed, cause)
            self._worlds.break_off(cause)
        self._model_state.unbind()
        self._buffers.take_back()
        return True

    def _look_at_buffers(self) -> None:
        """What passes of the model between two steps have done to them counts only if no member was lost meanwhile."""
        if self._buffers.is_unsure:
            try:
                self._worlds.hold()
                self._buffers.forget()
            except WorldLostError:
                self._buffers.take_back()

    def _begin_between(self) -> None:
        """The script goes on outside of any block, and not only to the next batch."""
        if self._worlds.groups.is_queued and self._worlds.can_change and self._is_replicated:
            self._between.begin()
            self._buffers.keep_here()
            self._memory.begin_block()

    def _end_between(self) -> None:
        """What collectives outside of any block have made of the state counts only if no member was lost meanwhile."""
        if not self._between.is_open:
            return
        try:
            if self._fence.has_left_more():
                self._worlds.hold(also_begun=True)
                self._between.look()
            if not self._buffers.is_unsure:
                self._buffers.forget()
        except WorldLostError:
            self._memory.take_back_followers()
            self._buffers.take_back()
            if not self._between.take_back():
                self._memory.note_torn()
        self._between.forget()
        self._memory.end_block()

    def _begin_apply(self, optimizer: torch.optim.Optimizer, given: tuple[Any, ...], more: Mapping[str, Any]) -> None:
        """`given` and `more` are the arguments of its `step`, the optimizer itself included."""
        if self._memory.virtual is not None:
            self._memory.virtual.finish()
        self._worlds.interrupter.allowed = False
        if self._fence.is_open:
            self._ask_to_apply()
        makes_them = _has_closure(given, more)
        if makes_them:
            self._early.begin_applying()
        else:
            self._look_at_passes()
        if self._fence.is_open and self._is_replicated and not makes_them and not has_gradients([optimizer]):
            self._fence.is_empty = True
        self._memory.note_applying(optimizer, makes_them)

    def _ask_to_apply(self) -> None:
        self._compare_settings()
        self._fence.begin_applying(self._agree)

    def _begin_stranger(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer that the session was not given does not apply what was not reduced either.

        Any optimizer of the process begins its step here, and nobody hears of one that a replay makes.
        """
        for is_so, text in ((devices.is_capturing, _CAPTURED), (self._is_in_shared_pass, _IN_BACKWARD)):
            if is_so() and (self._memory.knows(optimizer) or self._memory.is_trained_by(optimizer)):
                raise ConfigurationError(text.format(type(optimizer).__name__))
        if self._fence.is_open and self._memory.is_trained_by(optimizer):
            self._worlds.interrupter.allowed = False
            self._ask_to_apply()

    def _is_in_shared_pass(self) -> bool:
        """Whether this is in a backward pass of several ranks, any of which may be lost before it ends."""
        return self.world_size > 1 and optimizers.is_in_backward()

    def _end_stranger(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._fence.is_open and self._memory.is_trained_by(optimizer):
            self._fence.end_applying()

    def _is_reduced(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether what this optimizer trains gets the gradients of all ranks."""
        return self.world_size == 1 or self._memory.is_of_model(optimizer)

    def _agree(self) -> None:
        if self._model_state.has_copies and self._worlds.can_change:
            # Surviving shards are useful only if they are of one step: no rank applies it before all ranks can.
            self._ready = True
            dist.all_reduce(torch.zeros(1), group=self._worlds.groups.flags)
            self._ready = False

    def _look_at_passes(self) -> None:
        """All gradients of this optimizer are made. A script may drop them between the steps of two optimizers."""
        if not self._memory.applied:
            self._model_state.check_gradients()
        self._early.look()

    def _end_apply(self, optimizer: torch.optim.Optimizer, given: tuple[Any, ...], more: Mapping[str, Any]) -> None:
        if self._fence.is_open:
            self._fence.end_applying()
        if _has_closure(given, more):
            self._look_at_passes()
        self._memory.note_applied(optimizer)
        if self._fence.has_trail and self._fence.is_open and self._memory.is_applied:
            self._trail.begin()
            self._buffers.keep_here()

    def _guard(self, scaler: torch.amp.GradScaler) -> None:
        """Note which optimizers a scaler skips, and ask the fence before it learns from the gradients of a step."""
        step, update = scaler.step, scaler.update

        def step_and_note(optimizer: torch.optim.Optimizer, *given: Any, **more: Any) -> Any:
            found = step(optimizer, *given, **more)
            self._memory.note_passed(optimizer)
            return found

        def update_if_reduced(*given: Any, **more: Any) -> None:
            if self._fence.is_open:
                self._fence.skip()
                self._memory.note_learning()
            update(*given, **more)

        scaler.step = step_and_note  # type: ignore[method-assign]
        scaler.update = update_if_reduced  # type: ignore[method-assign]

    def _break(self, cause: str) -> None:
        """The world was lost during a step: roll the step back."""
        logger.warning("Step %d: the world broke (%s).", self.committed + 1, cause)
        self._worlds.break_off(cause)
        was_skipped, was_trailed = self._fence.is_skipped, self._fence.is_trailed() and self._memory.is_applied
        self._fence.close()
        completion.steps.drop()
        was_ready, self._ready = self._ready, False
        before = self.committed
        if was_trailed and self._is_replicated:
            is_known = self._fence.has_trail and self._trail.is_open  # or nobody has looked what it was before
            if not (self._trail.take_back() and is_known):
                self._memory.note_torn()
        self._trail.forget()
        self._early.break_off()
        self._memory.take_back(self.generation, self.ends_step, was_ready, was_skipped, was_trailed)
        if self.committed > before:
            self._early.forget()
        elif not self._early.take_back():
            self._memory.note_torn()
        if self.committed > before and not self._buffers.is_unsure and not was_trailed:
            self._buffers.forget()
        self._buffers.take_back()

    def _note(self, error: Exception) -> None:
        """A backward pass or a collective of a block has failed; the script may catch the error."""
        if self._block is not None and self._worlds.is_failure(error):
            self._block.failure = error
        elif self._fence.is_open and self._worlds.is_failure(error):
            self._fence.note_failure(error)

    def _look_at_wait(self) -> None:
        """Somebody begins to wait for a collective."""
        if self._block is None and not self._fence.is_open and not self._closed:
            self._adviser.look_at_wait()

    def _make_fence(self, groups: ProcessGroups) -> Fence:
        if not self._worlds.can_change:  # nobody could repeat a step
            return Fence(self._worlds.hold, lambda: Seen(entered=None), lambda: None, is_queued=False)

        def count() -> Seen:
            """A value counts from when it is waited for, which may be long after its collective was begun."""
            (entered, queued), replayed = count_by_kind(), graphs.count()
            entered = None if entered is None else entered + replayed
            return Seen(entered, waits.count(), count_messages(), queued + replayed)

        fence = Fence(
            self._worlds.hold, count, self._meet, groups.is_queued, lambda: self._worlds.hold(also_begun=True)
        )
        fence.is_followed = bool(self._further)
        return fence

    @contextlib.contextmanager
    def _entering(self) -> Iterator[None]:
        if not isinstance(self._model_state, ReplicatedModelState):
            yield
            return
        self._model_state.is_entering = True
        try:
            yield
        finally:
            self._model_state.is_entering = False

    def _enter_world(self) -> None:
        """Call `on_world`, for example to load a checkpoint."""
        if self._is_virtual:
            fixed = not self._worlds.can_change
            known = [self.optimizer, *self._further]
            for one in known:
                if not self._memory.is_of_model(one):
                    raise ConfigurationError(judge_outside(one, is_virtual=True))
            self._memory.virtual = VirtualRanks(
                self.model, self.sampler, growth=self._growth, send=fixed, optimizers=known
            )
            self._buffers = StepBuffers(self.model, copies=False)  # the virtual ranks have copies of their own
        elif self._is_replicated:
            self._buffers = StepBuffers(self.model)
        self._begun = 0
        before = self.committed
        agreement.enter(has_state=before >= 0)
        try:
            if self._on_world is not None:
                with self._entering(), self._judging_entry():
                    self._on_world(self)
        finally:  # a loss may end it after it has loaded a checkpoint
            if self.committed != before:
                self._memory.keep_place()
        self._replicas.enter()
        self._fence.enter_world()

    @contextlib.contextmanager
    def _judging_entry(self) -> Iterator[None]:
        """A script may send a state in `on_world`. What it has got of a lost world is none."""
        if not (self._worlds.groups.is_queued and self._worlds.can_change):
            yield
            return
        before, begun = self.committed, (count_queued(), count_messages())
        shards = None if self._is_replicated else digest(self._memory)
        self._entry.begin()
        try:
            yield
            if (count_queued(), count_messages()) != begun:
                self._worlds.hold(also_begun=count_messages() == begun[1])
        except Exception:
            is_wrong = self._worlds.is_lost() and (count_queued(), count_messages()) != begun
            if is_wrong and not (
                self._entry.take_back()
                and self.committed == before
                and (shards is None or digest(self._memory) == shards)
            ):
                self._memory.note_torn()
            raise
        finally:
            self._entry.forget()


def _watch(model: torch.nn.Module | None) -> tuple[Early, Early, Early, Early]:
    """The last one sees the buffers of the model too, of which nobody else has copies then."""
    return Early(model, ()), Early(model, ()), Early(model, ()), Early(None, () if model is None else (model,))


def _has_closure(given: tuple[Any, ...], more: Mapping[str, Any]) -> bool:
    """Whether an optimizer makes the gradients itself: the arguments of its `step`, the optimizer included."""
    return (*given[1:], more.get("closure"))[0] is not None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _bind(device: torch.device | None) -> torch.device:
    """Make the model's device, or that of this process's local rank, the current one, and return it.

    What a script or torch does on "the current device" would otherwise be done on the first one, by all processes.
    """
    if device is None or device.index is None:
        chosen = torch.cuda.current_device()
        if chosen == 0:  # perhaps nobody has chosen
            chosen = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        device = torch.device("cuda", chosen)
    torch.cuda.set_device(device)
    return device
