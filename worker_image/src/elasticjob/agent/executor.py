"""Carries out what `machine` decides. Owns the connection to the hub and the signals to workers.

All events go through one queue. One thread takes them in order, steps the machine and performs its actions. An action
that can block for long (connecting to a store, examining hung workers) runs in its own thread and posts an event at its
end. torch's loop, in the main thread, only asks for a world and whether it must restart its workers.
"""

from __future__ import annotations

import logging
import platform
import queue
import threading
import time
from collections.abc import Callable

import torch
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

from elasticjob import __version__
from elasticjob.agent import events, hub_client, machine, output, rules, stores, torch_agent
from elasticjob.agent.events import Action, Event
from elasticjob.agent.local_workers import LocalWorkers
from elasticjob.agent.state import Stage, State
from elasticjob.channel import control
from elasticjob.env import Settings
from elasticjob.launch import process
from elasticjob.peers import directory
from elasticjob.protocol import directives, store, wire
from elasticjob.torchcompat import threads

logger = logging.getLogger("elasticjob")

_ADVICE = 30.0  # seconds between two warnings about a hub that does not answer
_SETTLE = 10.0  # seconds that `end` waits for the hub's answer
_END = 5.0  # seconds for a worker that has hung up to end

Answer = events.Begin | events.Launch | events.Exit


class JoinError(Exception):
    """The pod cannot become a member. The message names the cause and the remedy."""


class Executor:
    """The agent of one pod. Call `connect` once at the start, and `end` once at the end."""

    def __init__(self, settings: Settings, join_timeout: float = 600.0) -> None:
        self.settings = settings
        published = wire.AgentState(address=settings.pod_ip)
        self.state = State(published, settings.grace_seconds, settings.in_process)
        self._carried_out = self.state  # the latest state whose actions have all been performed
        self.agent: SimpleElasticAgent | None = None  # torch's agent, which owns the worker processes
        self._join_timeout = join_timeout
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()  # reentrant: a signal handler may put
        # Replies to torch's requests for a world.
        self._answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._ended = self._noticed = 0  # workers that have ended, and how many of them torch's loop has looked at
        self._crash: Exception | None = None
        self._examining = threading.Lock()
        self._devices: dict[int, str] = {}  # of the workers, by local rank
        self._written: set[tuple[int, str, int]] = set()  # generation, rule and rank of the lines that were told
        self._thread = threads.Thread(self._run, name="elasticjob-agent")
        self.hub = hub_client.Hub(settings, _versions(), published, lambda view: self.post(events.HubChanged(view)))
        self.workers = LocalWorkers(self.hub, settings.hang_timeout, self.find_place, self._on_message)
        self._stores = stores.Stores(
            settings,
            self._look,
            self.post,
            self.finish,
            self._look_at_workers,
            self.workers.find_step,
            lambda: self.workers.saves.note_archived(time.monotonic()),
        )

    # For torch's loop, in the main thread.

    def post(self, event: Event) -> None:
        """Queue an event. Safe from any thread and from a signal handler."""
        self._events.put(event)

    def wait(self, predicate: Callable[[State], bool], timeout: float | None = None) -> bool:
        """Block until `predicate` holds (False after `timeout` seconds). Raises what ended the machine's thread."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._crash is not None or predicate(self._carried_out), timeout)
            if self._crash is not None:
                raise self._crash
            return found

    def connect(self) -> None:
        """Connect to the hub; return when it has welcomed or rejected this pod. Raises JoinError at the timeout."""
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
        """Request a world for new workers; block until there is one, or a reason to exit."""
        was_told = self._stores.flush()
        self.post(events.Wanted(self._find_failure()))
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, events.Exit) and not was_told:
            self._stores.flush_at_end()
        return answer

    def is_to_stop(self) -> bool:
        """Whether torch must restart its workers. While they are being stopped, block until they have exited."""
        state = self.state
        if (found := self.workers.find_hang(state.published)) is not None:
            self.post(found)
        if state.stage is Stage.RUNNING and state.world is not None and (size := sum(state.world.nprocs)) > 1:
            self.workers.tell_if_apart(size)
        if state.stage is Stage.RUNNING and self.workers.are_waiting() is not state.published.blocked:
            self.post(events.Blocked(not state.published.blocked, is_stopping=False))
        if not self.wait(rules.holds_torch, 0.0):
            return False
        self.post(events.Parked(self._find_failure()))
        return self.wait(lambda state: state.stage is Stage.STOPPED)

    def replace_failed(self, restart: Callable[[int], int | None]) -> bool:
        """Whether all is well with the workers, or is again: of sessions, those that have failed were started again.

        False: torch has to look itself. `restart` starts the worker of a local rank, and returns its pid if it could.
        """
        state = self.state
        if not state.keeps_memory or self.agent is None:
            return False
        failed, staying = torch_agent.sort_workers(self.agent, self.workers.killed)
        if not staying:
            return False
        if not failed or rules.is_between(state):
            return True
        if not rules.may_replace(state, failed.values()):
            return False
        found = self._find_failure()
        for pid in failed.values():
            torch_agent.end_session(pid)
        pids = [restart(local_rank) for local_rank in failed]
        if None in pids:
            return False
        for local_rank in failed:
            text = "Worker %d has failed and is started again; the sessions of the other %d keep their memory."
            logger.warning(text, local_rank, len(staying))
        new = frozenset(pid for pid in pids if pid is not None)
        self.post(events.Replaced(frozenset(failed.values()), new, found))
        self.wait(lambda state: new <= state.replaced, 5.0)
        return True

    def rest(self, seconds: float) -> None:
        """Wait until torch's loop has something to do: workers to stop, or one that has ended; at most `seconds`."""
        self.wait(lambda state: rules.holds_torch(state) or self._ended > self._noticed, seconds)
        self._noticed = self._ended

    def finish(self, all_finished: Callable[[], bool], timeout: float) -> None:
        """Report success, and wait up to `timeout` seconds until the hub or all other members have agreed."""
        self.post(events.Finished())
        deadline = time.monotonic() + timeout
        while not self.wait(lambda state: state.stage is Stage.FINISHED and rules.is_released(state), 0.2):
            # For workers that keep their memory, the store that `all_finished` reads is an outdated one.
            if (all_finished() and not self.state.keeps_memory) or time.monotonic() >= deadline:
                return

    def publish_end(self, phase: str, failure: wire.Failure | None = None) -> None:
        """Publish the final phase of the agent."""
        self.post(events.Ended(phase, failure))
        self.wait(lambda state: state.stage is Stage.FINISHED and state.published.phase == phase)

    def end(self, phase: str, failure: wire.Failure | None = None) -> None:
        """Publish the final phase, give the hub a moment to receive and answer it, and disconnect."""
        if phase == wire.SUCCEEDED:
            self._stores.archive()
        if self._thread.is_alive():
            self.publish_end(phase, failure)
            patience = _SETTLE if self.state.hub.connected else 1.0
            self.hub.flush(patience)
            if phase == wire.SUCCEEDED:
                self.wait(rules.is_released, patience)
        self.hub.close()
        self._events.put(None)
        self._stores.end()
        self.workers.close()

    def store_of(self, world: wire.World) -> store.GenerationStore:
        """The store of a world that this agent has entered. Raises KeyError for any other."""
        return self._stores.find(world.generation)

    # The machine's thread.

    def _run(self) -> None:
        try:
            while (event := self._next_event()) is not None:
                self._step(event)
        except Exception as error:  # pass it on: torch's thread would wait for ever
            logger.exception("The agent's machine failed.")
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
            case events.Publish(published):
                if published.phase == wire.SUCCEEDED:
                    self._leave_word(published.generation)
                self.workers.saves.note_copies(published.checkpoint, time.monotonic())
                self.hub.publish(published)
            case events.CloseStores():
                self._stores.close_all()
            case events.OpenStore():
                self._stores.open()
            case events.Enter(world):
                self._stores.enter(world)
            case events.Begin(world, to_sessions=True):
                self.workers.send_world(world)
            case events.Begin() | events.Launch() | events.Exit():
                self._answers.put(action)
            case events.Examine():
                threading.Thread(target=self._examine, name="elasticjob-examine", daemon=True).start()
            case events.Log(text, is_warning):
                logger.log(logging.WARNING if is_warning else logging.INFO, text)
            case _:
                self._signal(action)

    def _leave_word(self, generation: int) -> None:
        """Write the success where the kubelet finds it: the operator may be away until this pod has ended."""
        path = self.settings.termination_log
        if path is None:
            return
        try:
            with path.open("a") as file:  # after what the script may have written
                file.write(f"\nelasticjob: succeeded in generation {generation}\n")
        except OSError as error:
            logger.warning("Could not write the success to %s: %s", path, error)

    def _signal(self, action: Action) -> None:
        """Perform the actions that concern worker processes."""
        match action:
            case events.Save(alone):
                self.workers.save(lambda: self.post(events.Saved()), alone)
            case events.Terminate(has_grace):
                self.workers.end_saving()
                torch_agent.terminate(self.agent)
                if has_grace:
                    self.workers.watch_blocked(self._tell_blocked)
            case events.CheckStopped():
                if not torch_agent.has_workers(self.agent):
                    self.post(events.Stopped(self._find_failure()))
            case events.Kill():
                self.workers.killed |= torch_agent.kill(self.agent)
                self.post(events.Stopped(self._find_failure()))
            case events.KillProcesses(but):
                self.workers.kill_all(but)
            case events.KillSessions(but):
                self.workers.kill_late(but)
            case events.AskPause(generation, announced):
                self.workers.end_saving()
                self.workers.ask_pause(generation, announced)
                self.workers.watch_blocked(self._tell_blocked, lambda: self.state.stage is not Stage.PAUSING)

    def _tell_blocked(self, blocked: bool) -> None:
        self.post(events.Blocked(blocked))

    def _find_failure(self) -> wire.Failure | None:
        agent = self.agent
        if agent is None:
            return None
        return torch_agent.find_failure(agent, *self.find_place(), self.workers.killed, self.workers.restarts)

    # The output of workers, in the thread that passes it on.

    def note_line(self, rule: output.LogRule, local_rank: int, line: str) -> None:
        generation, first_rank = self.find_place()
        rank, step = first_rank + local_rank, self.workers.last_step
        here = generation, rule.name, rank
        if here not in self._written:
            self._written = {one for one in self._written if one[0] == generation} | {here}
            shown = "".join(letter if letter.isprintable() else " " for letter in line[: wire.MAX_LINE])
            self.post(events.Wrote(wire.Sign(rule.name, generation, rank, step, shown)))

    def note_number(self, metric: str, local_rank: int, value: float) -> None:
        self.workers.note_number(metric, local_rank, value)

    # Workers.

    def _look(self) -> State:
        return self.state

    def _look_at_workers(self) -> tuple[directory.Workers, list[int]]:
        return torch_agent.look_at_workers(self.agent)

    def find_place(self) -> tuple[int, int]:
        """The current generation, and the global rank of this pod's first worker in it."""
        state = self.state
        return state.generation, 0 if state.world is None else directives.base_rank(state.world)

    def _on_message(self, peer: control.Peer, message: control.Message | None) -> None:
        """Post the event that this message stands for. Called in the reader thread of the worker's connection."""
        kind = None if message is None else message.get("type")
        if message is None:
            self.post(events.Gone(peer.pid))
            process.await_end(peer.pid, _END)
            with self._changed:
                self._ended += 1
                self._changed.notify_all()
            self.post(events.Tick())  # if the workers are being stopped, it may have been the last
        elif kind == "progress":
            name = message.get("device")
            if isinstance(name, str) and name != self._devices.get(peer.local_rank):
                self._devices[peer.local_rank] = name
                self.post(events.Device(peer.local_rank, name))
        elif kind == "idle":
            error = message.get("error")
            shards = tuple(int(shard) for shard in message.get("shards", ()))
            steps = int(message.get("step", -1)) + 1
            self.post(events.Idle(peer.pid, None if error is None else str(error), shards, steps))
        elif kind == control.CORRUPT:
            failure = wire.Failure(self.state.generation, message=f"corrupt state: {message.get('message')}")
            self.post(events.Ended(wire.FAILED, failure))
        elif kind == "hello":
            generation = self.state.generation
            made = {one.pid for one in self.workers.server.peers(control.SESSION) if one.generation == generation}
            if len(made) >= self.state.published.nproc:
                self.post(events.SessionsMade(generation))

    def _examine(self) -> None:
        with self._examining:
            try:
                evidence = self.workers.examine()
            except Exception as error:  # the world has to end in any case
                logger.exception("Could not examine the hung workers.")
                text = f"no step was reported; the workers could not be examined: {error!r}"
                evidence = wire.Failure(self.state.generation, message=text, kind=wire.HANG)
        self.post(events.Examined(evidence, frozenset(self.workers.waiting)))


def _is_settled(state: State) -> bool:
    return state.hub.welcome is not None or state.hub.fatal is not None or state.leave_at is not None


def _versions() -> dict[str, str]:
    return {"elasticjob": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
