"""One pod's membership in the world: ready, running, leaving, told to stop. Shared by both launchers.

It joins the pure rules of `seat`, the connection of `hub` and the stores of `store`. It knows nothing of worker
processes: its user starts and stops those and says so here.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
import time
from collections.abc import Callable

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elasticjob import __version__, hub, seat, store, wire
from elasticjob.env import Settings

logger = logging.getLogger("elasticjob")

_ADVICE = 30.0  # seconds between two lines about a hub that does not answer
_SETTLE = 10.0  # seconds that the end waits for the hub's answer
_STORE_PATIENCE = 30.0


class Released(Exception):  # noqa: N818 - it is not an error
    """The hub lets this pod go, or it was asked to leave and may: exit with `code`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class JoinError(Exception):
    """The pod cannot become a member; the text says why and what to do."""


class Abandoned(Exception):  # noqa: N818 - it is not an error
    """There are no workers any more who could enter the world that this pod waited for."""


def runtime_versions() -> dict[str, str]:
    return {"elasticjob": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


class Member:
    """The agent's place in the job."""

    def __init__(self, settings: Settings, nproc: int, join_timeout: float = 600.0) -> None:
        self.settings = settings
        self.world: wire.World | None = None
        self._join_timeout = join_timeout
        self._server: TCPStore | None = None
        self._session: store.GenerationStore | None = None
        self._leave_at: float | None = None
        state = wire.AgentState(nproc=nproc, address=settings.pod_ip)
        self.hub = hub.Hub(settings, runtime_versions(), state)
        self._started = False
        self.is_abandoned: Callable[[], bool] = lambda: False  # asked while waiting for a world

    @property
    def state(self) -> wire.AgentState:
        return self.hub.state

    @property
    def generation(self) -> int:
        return self.state.generation

    @property
    def first_rank(self) -> int:
        """The global rank of this pod's first worker in the present world; 0 in none."""
        return 0 if self.world is None else seat.base_rank(self.world)

    def say(self, phase: str, failure: wire.Failure | None = None) -> None:
        """The same place in the world, doing something else."""
        self._update(phase=phase, failure=failure)

    def _update(self, **changes: object) -> None:
        self.hub.say(dataclasses.replace(self.state, **changes))  # type: ignore[arg-type]

    # Joining.

    def set_nproc(self, nproc: int) -> None:
        if nproc != self.state.nproc:
            self._update(nproc=nproc)

    def set_in_process(self, in_process: bool) -> None:
        if in_process != self.state.in_process:
            self._update(in_process=in_process)

    def start(self) -> None:
        """Connect to the hub; returns when it has said welcome."""
        if not self._started:
            self._started = True
            self.hub.start()
        deadline = time.monotonic() + self._join_timeout
        while not self.hub.wait(self._is_settled, min(_ADVICE, max(0.0, deadline - time.monotonic()))):
            trouble = self.hub.last_trouble or "no answer"
            if time.monotonic() >= deadline:
                raise JoinError(
                    f"The hub {self.settings.hub_url} did not answer for {self._join_timeout:g} s ({trouble})."
                    " Check that the operator runs and that the network policy lets this pod reach it."
                )
            logger.warning("Still waiting for the hub %s: %s", self.settings.hub_url, trouble)
        self._check()

    def _is_settled(self) -> bool:
        return self.hub.was_welcome or self.hub.fatal is not None or self.leaving

    def _check(self) -> None:
        """Raise what ends the waiting for a world."""
        if self.hub.fatal is not None:
            raise JoinError(f"{self.hub.fatal}")
        directive = self.hub.directive
        if isinstance(directive, wire.Stop):
            raise Released(0 if directive.ok else 1, directive.reason)
        if self.leaving:
            raise Released(0, "asked to leave, and the world goes on without this pod")
        if self.is_abandoned():
            raise Abandoned

    def join(self, failure: wire.Failure | None = None) -> tuple[wire.World, store.GenerationStore]:
        """Become ready with a new store, wait for a world and connect to its store."""
        while True:
            self._become_ready(failure)
            world = self._await_world()
            session = self._enter(world)
            if session is not None:
                return world, session
            failure = None

    def _await_world(self) -> wire.World:
        """Wait for a world to enter. A regroup meanwhile names one that we shall not enter any more: say so."""
        while True:
            self.hub.wait(self._is_called, None)
            self._check()
            directive = self.hub.directive
            world = seat.find_world(self.generation, self.state.store, directive)
            if world is not None:
                return world
            if isinstance(directive, wire.Regroup) and seat.is_given_up(self.generation, directive):
                self._update(generation=directive.generation)

    def _is_called(self) -> bool:
        directive = self.hub.directive
        if self.hub.fatal is not None or self.leaving or isinstance(directive, wire.Stop):
            return True
        if self.is_abandoned():
            return True
        if seat.is_given_up(self.generation, directive):
            return True
        return seat.find_world(self.generation, self.state.store, directive) is not None

    def _become_ready(self, failure: wire.Failure | None) -> None:
        self._check()
        self._close_stores()
        self._server, where = store.listen(self.settings.pod_ip)
        self.world = None
        self._update(phase=wire.READY, store=where, failure=failure)

    def _enter(self, world: wire.World) -> store.GenerationStore | None:
        """Take the place in this world; None if it ended before we were in."""
        self.world = world
        if world.rank == 0:
            inner = self._server
        else:
            self._server = None  # ours is not needed in this generation
            inner = self._connect(world)
        if inner is None:
            self._update(phase=wire.STOPPING, generation=world.generation, store=None)
            return None
        self._session = store.GenerationStore(inner, world, self._finish)
        self._update(phase=wire.RUNNING, generation=world.generation, store=None, failure=None)
        return self._session

    def _connect(self, world: wire.World) -> TCPStore | None:
        def interrupted() -> bool:
            return seat.is_over(world.generation, self.hub.directive) or self.leaving

        while True:
            try:
                return store.connect(world.store, interrupted, time.monotonic() + _STORE_PATIENCE)
            except OSError as error:
                logger.warning("Generation %d: %s. Trying on until the hub says otherwise.", world.generation, error)

    # While the workers run.

    def is_over(self) -> bool:
        """Whether this generation has to end here."""
        if self.hub.fatal is not None:
            return True
        if self._leave_at is not None and (time.monotonic() >= self._leave_at or self.hub.rejected):
            return True  # a hub that does not know this pod any more forms no world without it
        return seat.is_over(self.generation, self.hub.directive)

    def grace(self) -> float:
        """Seconds the workers may have to save their state, now that the generation is over."""
        if self._leave_at is not None:
            left = self._leave_at + self.settings.grace_seconds - seat.leave_after(self.settings.grace_seconds)
            return max(0.0, left - time.monotonic() - 1.0)
        return seat.grace_of(self.hub.directive)

    # The end.

    @property
    def leaving(self) -> bool:
        return self._leave_at is not None

    def leave(self) -> None:
        """SIGTERM: ask for a world without this pod and train on until it comes. Safe in a signal handler."""
        if self._leave_at is None:
            self._leave_at = time.monotonic() + seat.leave_after(self.settings.grace_seconds)
            if self.state.phase == wire.RUNNING:
                self.say(wire.LEAVING)
            self.hub.notify()

    def _finish(self, all_finished: Callable[[], bool], timeout: float) -> None:
        """Our workers ended well: say so, and wait until the hub or all other members agree."""
        self.say(wire.SUCCEEDED)
        deadline = time.monotonic() + timeout
        while not self.hub.wait(self._is_released, 0.2):
            # Workers that keep their memory have left the store behind that torch's agent asks.
            if (all_finished() and not self.state.in_process) or time.monotonic() >= deadline:
                return

    def _is_released(self) -> bool:
        return self.leaving or self.hub.fatal is not None or isinstance(self.hub.directive, wire.Stop)

    def end(self, phase: str, failure: wire.Failure | None = None) -> None:
        """Say the last word, give the hub a moment to hear and answer it, and hang up."""
        if self._started:
            if self.state.phase != phase:
                self.say(phase, failure)
            patience = _SETTLE if self.hub.connected else 1.0
            self.hub.flush(patience)
            if phase == wire.SUCCEEDED:
                self.hub.wait(self._is_released, patience)
        self.hub.close()
        self._close_stores()

    def abandon(self) -> None:
        """Close the store of a generation that is lost, so that nobody waits in it any longer."""
        self._close_stores()

    def finish(self, all_finished: Callable[[], bool], timeout: float) -> None:
        """The workers ended well: wait for the hub's stop, or for all other members."""
        self._finish(all_finished, timeout)

    @property
    def session(self) -> store.GenerationStore | None:
        """The store of the generation that runs."""
        return self._session

    def _close_stores(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._server = None


def export_generation(world: wire.World) -> None:
    """The workers inherit it: scripts label their logs and checkpoints with it."""
    os.environ["ELASTICJOB_GENERATION"] = str(world.generation)
