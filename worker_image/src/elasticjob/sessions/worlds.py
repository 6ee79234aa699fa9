"""Moves a session from world to world: executes what `machine` decides, and owns the process groups.

It uses two threads: the script's thread trains, leaves and enters worlds; another one reads the agent's messages. When
the end of a world is announced, a third one agrees with the other ranks on its last step.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import NoReturn

import torch.distributed as dist

from elasticjob.channel import control, place, progress, signals
from elasticjob.channel.place import Place
from elasticjob.collectives import messages
from elasticjob.context import leaving
from elasticjob.env import GENERATION
from elasticjob.errors import StepsDifferError, WorldLostError
from elasticjob.sessions import machine, meetings
from elasticjob.sessions.interrupt import Interrupter
from elasticjob.sessions.machine import Stage
from elasticjob.sessions.meetings import Meetings
from elasticjob.sessions.memory import Memory
from elasticjob.sessions.process_groups import ProcessGroups, describe_loss, is_world_failure
from elasticjob.sessions.promises import Promises
from elasticjob.sessions.recovery import LeftBehindError, StateLostError
from elasticjob.torchcompat import groups

logger = logging.getLogger("elasticjob")

_SAVE_SECONDS = 10.0  # for a save that is under way when the world changes: less than the usual grace period


class Worlds:
    """The worlds of one session, one after the other. `client` is None if the world never changes."""

    def __init__(
        self, memory: Memory, groups: ProcessGroups, client: control.Client | None, on_world: Callable[[], None]
    ) -> None:
        """`on_world` is called in each new world, before it trains."""
        # With an agent that regroups, the world in which the process was started is entered like any other.
        self.state = machine.State(generation=0 if client is not None else int(os.environ.get(GENERATION) or 0))
        self.entered = 0  # number of worlds; stays 0 if the world never changes
        self.groups = groups
        self._memory = memory
        self._client = client
        self._on_world = on_world
        self._lock = threading.Lock()  # guards the state and the number of ...
        self._uncounted = 0  # ... steps that the machine does not know of yet
        self._calls: queue.SimpleQueue[Place | None] = queue.SimpleQueue()  # None: only look around
        self._place: Place | None = None  # in the world that was entered last
        self._promises: Promises | None = None
        self._meetings: Meetings | None = None  # of a world of several ranks
        self.interrupter = Interrupter(lambda: self.state.is_lost, self._shut_down)

    @property
    def can_change(self) -> bool:
        return self._client is not None

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def is_running(self) -> bool:
        return self.state.stage is Stage.RUNNING

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the world are there; it may have made its last step."""
        return self.state.stage in (Stage.RUNNING, Stage.INTERRUPTED)

    def enter_first(self, *, alone: bool) -> None:
        """Join the world in which this process was started, or wait for one. `alone`: one rank needs a group too."""
        if self._client is None:
            self.groups.enter_fixed(alone)
            self._memory.model_state.connect(self.state.generation)
            self._memory.model_state.bind(self.state.generation, sync=True)
            self._on_world()
            self._step(machine.Entered())
            return
        groups.watch_messages()
        self._client.listen(self._on_message)
        self._client.want(control.SESSION)
        signals.on_request(lambda: self._calls.put(None))
        started_in = place.from_environ(os.environ)
        first = None if started_in is None else self._take(started_in)
        if first is None or not self._try(first):
            self.change()

    def change(self) -> None:
        """Leave this world, and enter the next one with the shared state. Repeats if that world is lost meanwhile."""
        self._leave_whole()
        while not self._try(self._await_call()):
            self._leave_whole()

    def end_step(self) -> None:
        """The step is applied here: leave the world after it, if all ranks have agreed on that.

        Raises WorldLostError if the world is lost before they can.
        """
        if self._client is None:
            return
        with self._lock:
            if not self.state.is_over:  # there is nothing to decide: each step passes here, so it has to be cheap
                self._uncounted += 1
                return
        for action in self._step(machine.StepDone()):
            if isinstance(action, machine.AwaitLast) and self._promises is not None:
                self._promises.wait()

    def break_off(self, cause: str) -> None:
        """Record that this world is lost."""
        self._step(machine.Broke(cause))

    def exchange(self, digest: int) -> list[int]:
        """The digests of all ranks: one message of eight bytes from each."""
        return [one for (one,) in messages.all_gather_integers([digest], self.groups.flags)]

    def exchange_settings(self, mine: list[int]) -> list[list[int]]:
        """Those of all ranks, in a group of which all ranks know how far each is."""
        rows = messages.all_gather_integers(mine, dist.group.WORLD)
        if self._meetings is not None:
            self._meetings.leave_out()
        return rows

    def give_up_corrupt(self, message: str) -> NoReturn:
        """Tell the agent that the state of this rank is wrong, and exit: another pod takes its place."""
        if self._client is not None:
            self._client.send({"type": control.CORRUPT, "message": message})
        self.groups.leave(broken=True)  # what the script does while it exits reaches no other rank
        raise SystemExit(1)

    def begin_again(self, reason: str) -> NoReturn:
        """Exit: the agent starts this process again, and nobody is blamed for it."""
        logger.warning("%s.", reason[0].upper() + reason[1:])
        if self._client is not None:
            self._client.send({"type": control.RESTART, "message": reason})
        raise SystemExit(1)

    def begin_block(self, begins_step: bool) -> None:
        """A block begins: a step, or a further micro-batch of it. Raises StepsDifferError if this rank is known to make
        other steps than the others.
        """
        if self._meetings is not None:
            self._meetings.begin_block(begins_step)
            if self._meetings.other:
                raise StepsDifferError(self._explain(self._meetings, meetings.SKIPPED, "and the script went on"))

    def has_met_less(self) -> bool:
        """Whether this rank has entered fewer collectives in this step than ever before in this world."""
        return self._meetings is not None and self._meetings.has_met_less()

    def meet(self, waits: str, reason: str = "") -> None:
        """Wait until all ranks of the world are here; `waits` says what for. Raises StepsDifferError if one of them
        will never come, and whatever a collective raises in a world that is lost.
        """
        here = self._meetings
        if here is None or not self.is_whole:
            self.groups.barrier()
            return
        if not here.other:
            with here.waiting() as mine:
                try:
                    # gloo takes the message of a rank that is in another collective of the same kind, and ends the
                    # process if the sizes differ. Only a script's own barrier is of this kind.
                    self.groups.barrier()
                    rows = messages.all_gather_integers(mine.as_row(waits), self.groups.flags)
                    here.other = meetings.judge_rows(rows, self.rank)
                except RuntimeError:
                    if not here.other:
                        raise
        if here.other:
            raise StepsDifferError(self._explain(here, waits, reason)) from None

    def _explain(self, here: Meetings, waits: str, reason: str) -> str:
        return meetings.explain(waits, here.blocks, self.rank, here.other, reason)

    def close(self) -> None:
        """Leave the world in order, once every rank has finished the last step."""
        try:
            self.meet(meetings.OVER)
        except RuntimeError as error:
            logger.warning("The world broke after the last step: %s", error)
        self._leave()

    def give_up(self) -> None:
        """The script ends with an error: leave the world, and let the others notice."""
        self.break_off("the script has ended with an error")
        self._leave()

    def _step(self, event: machine.Event) -> tuple[machine.Action, ...]:
        with self._lock:
            if self._uncounted:
                self.state, _ = machine.step(self.state, machine.StepDone(self._uncounted))
                self._uncounted = 0
            self.state, actions = machine.step(self.state, event)
            for action in actions:
                if isinstance(action, machine.Promise) and self._place is not None:
                    self._promises = self._promise(self._place, action.step)
        return actions

    def _promise(self, place: Place, step: int) -> Promises:
        return Promises(place, step, lambda last: self._learn(place.generation, last), self.is_lost)

    def _learn(self, generation: int, last: int) -> None:
        self._step(machine.LastAgreed(generation, last))

    # In the channel's reader thread.

    def _on_message(self, message: control.Message) -> None:
        if message.get("type") == "world":
            self._calls.put(place.from_message(message))
        elif message.get("type") == "regroup":
            generation = int(message.get("generation", self.state.generation))
            called = machine.CalledOver(generation, message.get("announced") is True)
            if machine.Abort() in self._step(called):
                self.interrupter.interrupt()
                self.groups.abort()

    # In the interrupter's thread.

    def _shut_down(self) -> None:
        """A connection that was just being made outlives an abort, and then waits for the lost member."""
        with self._lock:  # no other world begins meanwhile
            if self.state.is_lost:
                self.groups.shut_down()

    # In the script's thread.

    def _leave_whole(self) -> None:
        """Leave the world and inform the agent; keep state that not every rank has."""
        self._pack()
        self._leave()
        for action in self._step(machine.Left()):
            if isinstance(action, machine.SayIdle) and self._client is not None:
                shards = list(self._memory.model_state.lone_shards)
                committed = self._memory.committed
                self._client.send({"type": "idle", "step": committed, "error": action.error, "shards": shards})

    def _leave(self) -> None:
        if self._promises is not None:
            self._promises.leave()
        if self._meetings is not None:
            self._meetings.leave()
            self._meetings = None
        if self.state.stage is not Stage.BROKEN:
            leaving.leave(_SAVE_SECONDS)
        self._memory.model_state.unbind()
        self.groups.leave(broken=self.state.stage is Stage.BROKEN)

    def is_lost(self) -> bool:
        """Whether the agent has reported a lost member of this world."""
        return self.state.is_lost

    def hold(self, also_begun: bool = False) -> None:
        """Raises WorldLostError unless everything is right that this rank has computed from other ranks' values.
        `also_begun`: and what it will compute from collectives that it has begun, and nobody waits for yet.

        A loss is known before its world is aborted, so the device is waited for first.
        """
        if self.can_change:
            self.groups.wait_for_device(also_begun)
            if self.is_lost():
                raise WorldLostError("a member was lost")

    def is_failure(self, error: BaseException) -> bool:
        """Whether an exception means that the world is lost, and not that the script has a bug.

        After an abort a device goes on with wrong values. A script, or the decoding of a message, may fail at them in
        any way, also by a lack of memory for as many values as they say; if it was a bug, it is raised again in the
        next world.
        """
        return (self.groups.is_queued and self.is_lost()) or is_world_failure(error, self.is_lost)

    def _pack(self) -> None:
        if self._memory.committed < 0 or not dist.is_initialized():
            return
        try:
            if self.state.stage is not Stage.BROKEN:
                self._memory.model_state.pack(self._memory.committed, self.state.generation, self.hold)
                self.hold(also_begun=True)  # nothing is left on the device that only an abort would end
                return
        except Exception as error:
            if not self.is_failure(error):
                raise
            self.break_off(describe_loss(error))
        if not self._memory.model_state.keep(self._memory.committed, self.state.generation):
            lost = f"the world broke ({self.state.error}), and a lost rank takes its shards with it"
            self.begin_again(f"{lost}: going back to the last checkpoint")

    def _await_call(self) -> Place:
        assert self._client is not None
        while True:
            self._save_alone()
            try:
                called = self._calls.get(timeout=1.0)
            except queue.Empty:
                if self._client.closed.is_set():
                    raise SystemExit(1) from None  # the agent has exited, so there will be no other world
                continue
            if called is not None and (taken := self._take(called)) is not None:
                return taken

    def _save_alone(self) -> None:
        """Save what is in memory if the agent asks for it: it does so in no world only if no further one comes."""
        if not signals.is_pending():
            return
        found = self._memory.go_alone()
        if found is not None and not leaving.save_alone(found):
            logger.warning(
                "This session ends while it waits for a world: no elasticjob.Checkpointer saves the state after %d"
                " steps, and those since the script's own last checkpoint have to be made again.",
                found.made,
            )
        signals.clear_checkpoint_request()

    def _take(self, called: Place) -> Place | None:
        """The world to enter; None if the machine ignores this message."""
        actions = self._step(machine.Called(called))
        return next((action.place for action in actions if isinstance(action, machine.Enter)), None)

    def _try(self, called: Place) -> bool:
        """Enter this world with the shared state; False if the world was lost meanwhile."""
        try:
            self._enter(called)
            with progress.transfer.measure():
                self._memory.agree(self.groups.flags)
            with groups.creations_in(self.groups.owning):  # those of a Checkpointer, for example
                self._on_world()
            self.groups.connect(self.is_lost)
            self.hold()  # or the script would go on in a lost world, and not only to a step
        except StateLostError as lost:
            self.begin_again(f"{lost}: going back to the last checkpoint")
        except LeftBehindError as behind:
            self.begin_again(f"{behind}: beginning again, with their state")
        except Exception as error:
            if not self.is_failure(error):
                raise
            self.break_off(describe_loss(error))
            return False
        self._step(machine.Entered())
        self.entered += 1
        if called.world_size > 1:
            self._meetings = Meetings(called, self._count_entered, self.groups.abort, self.is_lost)
        return True

    def _count_entered(self) -> dict[str, int]:
        """The collectives of the groups in which only the script's thread meets other ranks."""
        return groups.count_each([dist.group.WORLD, *self._memory.model_state.groups])

    def _enter(self, called: Place) -> None:
        model_state = self._memory.model_state
        self._place = called
        self.groups.enter(called, lambda: self.state.is_lost, lambda: model_state.connect(called.generation))
        if self.state.is_lost:  # the agent's message came before there was a group to abort
            raise WorldLostError("a member was lost while the process group was created")
        self._memory.enter_sampler(called.rank, called.world_size)
        model_state.bind(called.generation)
