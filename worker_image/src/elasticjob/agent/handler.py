"""The rendezvous backend `elasticjob`, which makes torch's agent a member of an ElasticJob.

The hub decides who is in the world, so agents neither wait for stragglers nor negotiate. torch's loop has two
questions: `next_rendezvous` returns a world; `num_nodes_waiting`, called between two polls of the workers, returns
whether to restart them. The machine makes both decisions; this module only translates.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from elasticjob import env
from elasticjob.agent import claim, events, output, revisions, rules, torch_agent
from elasticjob.agent.executor import Executor, JoinError
from elasticjob.channel import shared_memory
from elasticjob.diagnose import doctor
from elasticjob.launch import fork_server
from elasticjob.peers import probe
from elasticjob.protocol import wire
from elasticjob.protocol.preflight import MOST_LINKS, Preflight, Probe
from elasticjob.protocol.store import PodStore
from elasticjob.torchcompat import elastic_agent, elastic_store

logger = logging.getLogger("elasticjob")


def open_handler(params: RendezvousParameters) -> ElasticJobRendezvous:
    """The handler of this pod, configured from its environment.

    Raises SystemExit, with one line on stderr, if the environment is not valid or the pod has an agent already.
    """
    if not elastic_store.knows_rank_keys():
        os.environ[env.IN_PROCESS] = "0"  # the workers inherit it: their sessions are restarted at each change
    try:
        settings = env.load(os.environ, params.local_addr)
        join_timeout = float(params.get("join_timeout", 600))
        place = claim.claim(settings.pod_uid)
        executor = Executor(settings, join_timeout)
    except (ValueError, claim.TakenError) as error:
        fail(str(error))
    return ElasticJobRendezvous(executor, params.run_id, place)


def fail(message: str) -> NoReturn:
    """Exit with code 1 and one line on stderr, without a traceback that would hide it. Raises SystemExit."""
    print(f"elasticjob: error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def _exit(end: events.Exit) -> NoReturn:
    """Leave torch's loop; without an error message if the hub released this pod."""
    if end.is_error:
        fail(end.reason)
    logger.info("Leaving: %s", end.reason)
    raise SystemExit(end.code)


class ElasticJobRendezvous(RendezvousHandler):
    """Implements torch's rendezvous interface on top of the operator's membership."""

    def __init__(self, executor: Executor, run_id: str, place: socket.socket | None) -> None:
        self.executor = executor
        self._run_id = run_id
        self._place = place  # that of the pod's agent, held until the end
        self._closed = False
        self._checked = False
        self._responder: probe.Responder | None = None
        self._server = fork_server.ForkServer()
        self._codes = revisions.Revisions()
        self._code: revisions.Place | None = None
        self._output = output.Output(
            output.read_rules(executor.settings.log_rules), executor.note_line, executor.note_number
        )
        os.environ[env.CONTROL] = executor.workers.path  # the workers inherit it
        os.environ[env.RUN_ID] = run_id
        memory = shared_memory.claim()
        if memory is not None:
            os.environ[env.MEMORY] = str(memory)
        self._previous_handler: Any = None
        self._terminated = False
        self.catch_sigterm()

    def adopt(self, server: fork_server.ForkServer) -> None:
        """Start workers from this fork server."""
        self._server = server
        # torch installs its own SIGTERM handler before it starts workers
        if not fork_server.serve_torch(server, self.catch_sigterm, self._output.tap, self._redirect):
            return
        if digest := output.digest(self.executor.settings.log_rules):
            self.executor.post(events.Watches(digest))
        if self._codes.can_come:
            self._codes.start(lambda digests: self.executor.post(events.Codes(digests)))

    def get_backend(self) -> str:
        return env.BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        self._find_agent()
        if not self._checked:
            self._checked = True
            self._check()
        self._server.end_leftovers()
        if rules.awaits_imports(self.executor.state):
            self._server.await_imports()
        match self.executor.await_workers_world():
            case events.Exit() as end:
                _exit(end)
            case events.Launch(code):
                return self._start_sessions(code)
            case events.Begin(world):
                return self._start_workers(world)

    def _find_agent(self) -> None:
        agent = elastic_agent.find_agent()
        if agent is not None:
            if self.executor.agent is not agent:
                elastic_agent.replace_look(agent, lambda: self.executor.replace_failed(self._restart))
            self.executor.agent = agent
            elastic_agent.replace_sleep(self.executor.rest)
            self.executor.workers.find_workers = lambda: elastic_agent.find_pids(agent)
            self.executor.post(events.Sized(torch_agent.local_world_size(agent)))

    def _check(self) -> None:
        """Run the preflight: a pod with a broken device or network reports a failure and never becomes ready."""
        try:
            self.executor.connect()
        except JoinError as error:
            fail(str(error))
        end = rules.find_end(self.executor.state)
        if end is not None:
            _exit(end)
        settings = self.executor.settings
        deadline = time.monotonic() + settings.preflight_seconds
        found = doctor.preflight(settings.preflight, os.environ, settings.preflight_seconds)
        problem = doctor.find_problem(found)
        if problem is None and settings.preflight == "Network":
            problem = self._check_network(deadline)
        if problem is not None:
            message = f"preflight: {problem}"
            self.executor.publish_end(wire.FAILED, wire.Failure(0, message=message))
            fail(message)

    def _check_network(self, deadline: float) -> str | None:
        """Measure the links to the pods that the hub names, until it knows whether this pod's node is at fault."""
        executor = self.executor
        welcome = executor.state.hub.welcome
        if welcome is None or not welcome.probes:
            return None  # an older operator
        try:
            self._responder = probe.Responder(executor.settings.pod_ip, lambda: executor.state.peer_key)
        except OSError as error:
            return f"network: cannot listen at {executor.settings.pod_ip}: {error}"
        found = Preflight(self._responder.port)
        while time.monotonic() < deadline:
            executor.post(events.Checked(found))
            executor.wait(partial(rules.is_told_of_links, found=found), deadline - time.monotonic())
            state = executor.state
            end, directive = rules.find_end(state), state.hub.directive
            if end is not None:
                _exit(end)
            if isinstance(directive, Probe) and directive.passed is not None:
                if not directive.passed:
                    return f"network: {directive.reason}"
                break
            links = [probe.measure(peer, executor.state.peer_key) for peer in rules.find_unmeasured(state, found)]
            found = replace(found, links=(*found.links, *links)[-MOST_LINKS:])
        else:
            logger.warning("The hub named no result of the network's check in time; this pod goes on without one.")
        executor.post(events.Checked(replace(found, over=True)))
        return None

    def _start_workers(self, world: wire.World) -> RendezvousInfo:
        """Let torch start the workers in this world."""
        self._set_restarts(world.restarts)
        self._enter_code(world.code)
        os.environ[env.GENERATION] = str(world.generation)  # the workers inherit them
        os.environ[env.REPEATS] = str(world.repeats)
        os.environ[env.RESTORE_BEFORE] = "" if world.before is None else str(world.before)
        env.enter_span(os.environ, world.generation)
        self.executor.workers.begin()
        where = RendezvousStoreInfo(world.store.address, world.store.port)
        return RendezvousInfo(self.executor.store_of(world), world.rank, len(world.nprocs), where)

    def _start_sessions(self, code: wire.Code | None) -> RendezvousInfo:
        """Let torch start the workers without a world; the executor sends them worlds later."""
        self._set_restarts(0)
        self._enter_code(code)
        self._enter_no_world()
        store = PodStore(self.executor.state.published.nproc, self.executor.finish, lambda: False)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(self.executor.settings.pod_ip, env.NO_PORT))

    def _enter_no_world(self) -> None:
        os.environ[env.GENERATION] = os.environ[env.REPEATS] = "0"  # the workers inherit them
        os.environ[env.RESTORE_BEFORE] = ""

    def _restart(self, local_rank: int) -> int | None:
        """Start one session again, without a world; the others of this pod stay."""
        if self.executor.agent is None:
            return None
        self._enter_no_world()
        return elastic_agent.restart_one(
            self.executor.agent,
            local_rank,
            {
                **dict.fromkeys(("RANK", "ROLE_RANK"), str(local_rank)),
                **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(self.executor.state.published.nproc)),
                "GROUP_RANK": "0",
                "GROUP_WORLD_SIZE": "1",
                "MASTER_ADDR": self.executor.settings.pod_ip,
                "MASTER_PORT": str(env.NO_PORT),
                "TORCHELASTIC_RESTART_COUNT": "0",
            },
        )

    def _enter_code(self, code: wire.Code | None) -> None:
        """Start workers with this code from now on."""
        os.environ[env.CODE_REVISION] = str(0 if code is None else code.revision)  # the workers inherit it
        try:
            self._code = self._codes.enter(code)
        except revisions.RevisionError as error:
            generation = self.executor.state.generation
            self.executor.publish_end(wire.FAILED, wire.Failure(generation, message=str(error)))
            fail(str(error))
        if self._code is None:
            self._server.import_with({})
        else:
            self._server.import_with(self._code.find_variables(os.environ), self._code.folder)

    def _redirect(
        self, command: tuple[str, ...], environ: Mapping[str, str]
    ) -> tuple[tuple[str, ...], Mapping[str, str], str | None]:
        if self._code is None:
            return command, environ, None
        return self._code.redirect(command, environ, str(Path.cwd()))

    def _set_restarts(self, restarts: int) -> None:
        if self.executor.agent is not None:
            elastic_agent.set_restarts(self.executor.agent, restarts)

    def num_nodes_waiting(self) -> int:
        self.catch_sigterm()
        self._server.reap()
        return int(self.executor.is_to_stop())

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def shutdown(self) -> bool:
        """Called last by torchrun. The exception being handled, if any, tells why the run ended."""
        self._closed = True
        self._output.close()
        self._server.close()
        self._codes.close()
        error, state = sys.exc_info()[1], self.executor.state
        if error is not None:  # after success, what a script has started may end its work
            self._server.end_leftovers()
        if error is None:
            self.executor.end(wire.SUCCEEDED)
        elif isinstance(error, ChildFailedError):
            killed, failures = self.executor.workers.killed, list(error.failures.values())
            failure = torch_agent.choose_first([one for one in failures if one.pid not in killed] or failures)
            self.executor.end(wire.FAILED, torch_agent.describe(failure, *self.executor.find_place()))
        elif self._terminated or (isinstance(error, SystemExit) and state.published.phase != wire.RUNNING):
            self.executor.end(state.published.phase)
        else:
            self.executor.end(wire.FAILED, wire.Failure(state.generation, message=f"torchrun failed: {error!r}"))
        if self._place is not None:
            self._place.close()  # a program may launch again
        return True

    # SIGTERM.

    def catch_sigterm(self) -> None:
        """Install our SIGTERM handler, again after every start of workers, because torch replaces it then."""
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGTERM)
        if current == self._on_sigterm:
            return
        self._previous_handler = current
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if not self._terminated:
            self._terminated = True
            self.executor.post(events.Terminated())
            return
        # A second SIGTERM ends the process at once.
        if callable(self._previous_handler):
            self._previous_handler(number, frame)
        else:
            raise SystemExit(128 + number)
