"""Carries out what `machine` decides: owns the connection to the hub, the stores and the workers' signals.

Whatever happens is an event in one queue. One thread takes them one by one, steps the machine, and acts. What may take
long (to connect to a store, to examine hung workers) has a thread of its own and ends in another event. torch's loop
in the main thread only asks: for a world, and whether it has to stop looking at its workers.
"""

from __future__ import annotations

import logging
import platform
import queue
import signal
import threading
import time
from collections.abc import Callable

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

from elasticjob import __version__
from elasticjob.agent import events, hub_client, machine, rules, torch_agent
from elasticjob.agent.events import Action, Event
from elasticjob.agent.local_workers import LocalWorkers
from elasticjob.agent.state import Stage, State
from elasticjob.channel import control
from elasticjob.env import Settings
from elasticjob.protocol import directives, store, wire

logger = logging.getLogger("elasticjob")

_ADVICE = 30.0  # seconds between two lines about a hub that does not answer
_SETTLE = 10.0  # seconds that the end waits for the hub's answer
_STORE_PATIENCE = 30.0

Answer = events.Begin | events.Launch | events.Exit


class JoinError(Exception):
    """The pod cannot become a member; the text says why and what to do."""


class Executor:
    """The agent of one pod. `connect` it once; `end` it at the end."""

    def __init__(self, settings: Settings, join_timeout: float = 600.0) -> None:
        self.settings = settings
        said = wire.AgentState(address=settings.pod_ip)
        self.state = State(said, settings.grace_seconds, settings.in_process)
        self._carried_out = self.state  # the latest of which all actions are done
        self.agent: SimpleElasticAgent | None = None  # torch's, which has the worker processes
        self._join_timeout = join_timeout
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()  # a signal handler may put
        self._answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()  # to torch, which wants workers
        self._changed = threading.Condition()
        self._crash: Exception | None = None
        self._server: TCPStore | None = None  # ours, before a world
        self._stores: dict[int, store.GenerationStore] = {}  # by generation: one may come when its world is over
        self._examining = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="elasticjob-agent", daemon=True)
        self.hub = hub_client.Hub(settings, _versions(), said, lambda view: self.post(events.Heard(view)))
        self.workers = LocalWorkers(self.hub, settings.hang_timeout, self._find_place, self._on_message)

    # For torch's loop, in the main thread.

    def post(self, event: Event) -> None:
        """Something happened. From any thread, and from a signal handler."""
        self._events.put(event)

    def wait(self, predicate: Callable[[State], bool], timeout: float | None = None) -> bool:
        """Block until the state is so, and what follows from it is done. Raises what has ended the machine."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._crash is not None or predicate(self._carried_out), timeout)
            if self._crash is not None:
                raise self._crash
            return found

    def connect(self) -> None:
        """Connect to the hub; returns when it has said welcome, or why there is no world. Raises JoinError."""
        if not self._thread.is_alive():
            self._thread.start()
            self.hub.start()
        deadline = time.monotonic() + self._join_timeout
        while not self.wait(_is_settled, min(_ADVICE, max(0.0, deadline - time.monotonic()))):
            problem = self.state.hub.problem or "no answer"
            if time.monotonic() >= deadline:
                raise JoinError(
                    f"The hub {self.settings.hub_url} did not answer for {self._join_timeout:g} s ({problem})."
                    " Check that the operator runs and that the network policy lets this pod reach it."
                )
            logger.warning("Still waiting for the hub %s: %s", self.settings.hub_url, problem)

    def await_workers_world(self) -> Answer:
        """torch wants to start workers: in which world, if any."""
        self.post(events.Wanted(self._find_failure()))
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def is_to_stop(self) -> bool:
        """Whether torch has to start its workers anew. Where they are being ended, this waits for it."""
        if self.workers.is_hung():
            self.post(events.Hung())
        if not self.wait(rules.holds_torch, 0.0):
            return False
        self.post(events.Parked(self._find_failure()))
        return self.wait(lambda state: state.stage is Stage.STOPPED)

    def finish(self, all_finished: Callable[[], bool], timeout: float) -> None:
        """The workers ended well: say so, and wait until the hub or all other members agree."""
        self.post(events.Finished())
        deadline = time.monotonic() + timeout
        while not self.wait(lambda state: state.stage is Stage.FINISHED and rules.is_released(state), 0.2):
            # Workers that keep their memory have left the store behind that torch's agent asks.
            if (all_finished() and not self.state.keeps_memory) or time.monotonic() >= deadline:
                return

    def say_last(self, phase: str, failure: wire.Failure | None = None) -> None:
        """The hub is told how the agent ends."""
        self.post(events.Ended(phase, failure))
        self.wait(lambda state: state.stage is Stage.FINISHED and state.said.phase == phase)

    def end(self, phase: str, failure: wire.Failure | None = None) -> None:
        """Say the last word, give the hub a moment to hear and answer it, and hang up."""
        if self._thread.is_alive():
            self.say_last(phase, failure)
            patience = _SETTLE if self.state.hub.connected else 1.0
            self.hub.flush(patience)
            if phase == wire.SUCCEEDED:
                self.wait(rules.is_released, patience)
        self.hub.close()
        self._events.put(None)
        self._close_stores()
        self.workers.close()

    def store_of(self, world: wire.World) -> store.GenerationStore:
        """The store of a world that was entered."""
        return self._stores[world.generation]

    # The machine's thread.

    def _run(self) -> None:
        try:
            while (event := self._next_event()) is not None:
                self._step(event)
        except Exception as error:  # torch must hear of it: it would wait for ever
            logger.exception("The agent failed.")
            with self._changed:
                self._crash = error
                self._changed.notify_all()
            self._answers.put(error)

    def _next_event(self) -> Event | None:
        now = time.monotonic()
        wake = rules.find_wake(self.state, now)
        try:
            return self._events.get(timeout=None if wake is None else wake - now)
        except queue.Empty:
            return events.Tick()

    def _step(self, event: Event) -> None:
        self.state, actions = machine.step(self.state, event, time.monotonic())
        for action in actions:
            self._perform(action)
        with self._changed:
            self._carried_out = self.state
            self._changed.notify_all()

    def _perform(self, action: Action) -> None:
        match action:
            case events.Say(said):
                self.hub.say(said)
            case events.CloseStores():
                self._close_stores()
            case events.OpenStore():
                self._server, where = store.listen(self.settings.pod_ip)
                self.post(events.Listening(where))
            case events.Enter(world):
                self._enter(world)
            case events.Begin(world, to_sessions=True):
                self.workers.begin()
                self.workers.send_world(world)
            case events.Begin() | events.Launch() | events.Exit():
                self._answers.put(action)
            case events.Examine():
                threading.Thread(target=self._examine, name="elasticjob-examine", daemon=True).start()
            case events.Log(text, is_warning):
                logger.log(logging.WARNING if is_warning else logging.INFO, text)
            case _:
                self._signal(action)

    def _signal(self, action: Action) -> None:
        """The actions on worker processes."""
        match action:
            case events.Save():
                self.workers.save(lambda: self.post(events.Saved()))
            case events.Terminate():
                self.workers.end_saving()
                torch_agent.signal_workers(self.agent, signal.SIGTERM)
            case events.Look():
                if not torch_agent.has_workers(self.agent):
                    self.post(events.Stopped(self._find_failure()))
            case events.Kill():
                torch_agent.signal_workers(self.agent, signal.SIGKILL)
                self.post(events.Stopped(self._find_failure()))
            case events.KillProcesses(but):
                self.workers.kill_all(but)
            case events.KillSessions(but):
                self.workers.kill_late(but)
            case events.AskPause(generation, announced):
                self.workers.end_saving()
                self.workers.ask_pause(generation, announced)

    def _find_failure(self) -> wire.Failure | None:
        if self.agent is None:
            return None
        return torch_agent.find_failure(self.agent, self.state.generation, self.workers.killed)

    # Stores.

    def _enter(self, world: wire.World) -> None:
        if world.rank == 0:
            assert self._server is not None
            self._use_store(self._server, world)
            return
        self._server = None  # ours is not needed in this generation
        threading.Thread(target=self._connect_store, args=(world,), name="elasticjob-enter", daemon=True).start()

    def _connect_store(self, world: wire.World) -> None:
        def missed() -> bool:
            return rules.is_missed(self.state, world.generation)

        inner = None
        while inner is None and not missed():
            try:
                inner = store.connect(world.store, missed, time.monotonic() + _STORE_PATIENCE)
            except OSError as error:
                logger.warning("Generation %d: %s. Trying on until the hub says otherwise.", world.generation, error)
        if inner is None:
            self.post(events.Missed(world.generation))
        else:
            self._use_store(inner, world)

    def _use_store(self, inner: TCPStore, world: wire.World) -> None:
        self._stores[world.generation] = store.GenerationStore(inner, world, self.finish)
        self.post(events.Entered(world.generation))

    def _close_stores(self) -> None:
        while self._stores:
            self._stores.popitem()[1].close()
        self._server = None

    # Workers.

    def _find_place(self) -> tuple[int, int]:
        """The present generation, and the global rank of this pod's first worker in it."""
        state = self.state
        return state.generation, 0 if state.world is None else directives.base_rank(state.world)

    def _on_message(self, peer: control.Peer, message: control.Message | None) -> None:
        """In the thread that reads from this worker."""
        kind = None if message is None else message.get("type")
        if message is None:
            self.post(events.Gone(peer.pid))
        elif kind == "idle":
            error = message.get("error")
            self.post(events.Idle(peer.pid, None if error is None else str(error)))
        elif kind == "hello":
            generation = self.state.generation
            made = {one.pid for one in self.workers.server.peers(control.SESSION) if one.generation == generation}
            if len(made) >= self.state.said.nproc:
                self.post(events.SessionsMade(generation))

    def _examine(self) -> None:
        with self._examining:
            try:
                evidence = self.workers.examine()
            except Exception as error:  # the world ends all the same
                logger.exception("The hung workers could not be examined.")
                evidence = wire.Failure(self.state.generation, message=f"no step is made ({error!r})", kind=wire.HANG)
        self.post(events.Examined(evidence, frozenset(self.workers.waiting)))


def _is_settled(state: State) -> bool:
    return state.hub.welcome is not None or state.hub.fatal is not None or state.leave_at is not None


def _versions() -> dict[str, str]:
    return {"elasticjob": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
