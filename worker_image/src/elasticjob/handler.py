"""The rendezvous backend `elasticjob`: torch's agent as a member of an ElasticJob.

The hub says who is in the world, so there
is no waiting for stragglers and nothing to agree on: `next_rendezvous` says ready, hears the world, and returns.
`num_nodes_waiting`, which torchrun asks between two looks at its workers, answers 1 once the generation is over.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from elasticjob import doctor, env, relay, seat, torchagent, warm, wire
from elasticjob.member import JoinError, Member, Released, export_generation
from elasticjob.relay import Relay
from elasticjob.store import PodStore
from elasticjob.team import Team

logger = logging.getLogger("elasticjob")

_HUNG_PATIENCE = 5.0  # seconds that a hub has to answer an agent that sees a hang
_LOSS_GRACE = 1.0  # seconds between SIGTERM and SIGKILL where nothing can be saved


def open_handler(params: RendezvousParameters) -> ElasticJobRendezvous:
    """The handler of this pod, from its environment."""
    try:
        settings = env.load(os.environ, params.local_addr)
        join_timeout = float(params.get("join_timeout", 600))
    except ValueError as error:
        fail(str(error))
    return ElasticJobRendezvous(Member(settings, nproc=1, join_timeout=join_timeout), params.run_id)


def fail(message: str) -> NoReturn:
    """End with one line for the user: a traceback would hide it."""
    print(f"elasticjob: error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def _exit(end: Exception) -> NoReturn:
    """Leave torch's loop: quietly where the hub lets us go."""
    if isinstance(end, Released):
        logger.info("Leaving: %s", end.reason)
        raise SystemExit(end.code)
    fail(str(end))


class ElasticJobRendezvous(RendezvousHandler):
    """torch's view of our membership."""

    def __init__(self, member: Member, run_id: str) -> None:
        self.member = member
        self._run_id = run_id
        self._closed = False
        self._checked = False
        self._ran = False  # workers were started for member.generation
        self._stopped = False  # the workers of member.generation were ended by us ...
        self._failure: wire.Failure | None = None  # ... and what had happened to them before
        self._nursery = warm.Nursery()
        self.team = Team(member)
        os.environ[env.CONTROL] = self.team.path  # the workers inherit it
        self._previous_handler: Any = None
        self._relay: Relay | None = None
        self.catch_sigterm()

    def adopt(self, nursery: warm.Nursery) -> None:
        """Let the workers come from this one."""
        self._nursery = nursery
        warm.serve_torch(nursery, self.catch_sigterm)  # torch takes the signal before it starts them

    def get_backend(self) -> str:
        return env.BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        agent = torchagent.find_agent()
        if agent is not None:
            self.team.find_workers = lambda: torchagent.find_workers(agent)
            self.member.set_nproc(torchagent.local_world_size(agent))
        try:
            self._check_before_first()
            failure = self._find_failure(agent)
            if self._keeps_memory(failure):
                if agent is not None:
                    torchagent.set_restarts(agent, 0)
                return self._start_sessions()
            welcome = self.member.hub.welcome
            if not self._ran and welcome is not None and welcome.training:
                self._nursery.await_imports()
            world, session = self.member.join(failure if self._ran else None)
        except (JoinError, Released) as end:
            _exit(end)
        if agent is not None:
            torchagent.set_restarts(agent, world.restarts)
        export_generation(world)
        self._ran, self._stopped, self._failure = True, False, None
        self.team.begin()
        where = RendezvousStoreInfo(world.store.address, world.store.port)
        return RendezvousInfo(session, world.rank, len(world.nprocs), where)

    def _check_before_first(self) -> None:
        """The preflight: a pod that could only hold the others up says so, and never becomes ready."""
        if self._checked:
            return
        self._checked = True
        self.member.start()
        problem = doctor.find_problem(doctor.preflight(self.member.settings.preflight, os.environ))
        if problem is not None:
            message = f"preflight: {problem}"
            self.member.say(wire.FAILED, wire.Failure(0, message=message))
            fail(message)

    def _keeps_memory(self, failure: wire.Failure | None) -> bool:
        """Whether to start the workers before there is a world, because they make a session and wait for one."""
        wanted = self.member.settings.in_process
        if wanted is False:
            return False
        if self._relay is None:
            self._relay = Relay(self.member, self.team, self.member.state.nproc)
            welcome = self.member.hub.welcome
            if wanted or (welcome is not None and welcome.in_process):
                self._relay.start()
                return True
        if self._relay.decline():
            return False
        if self._relay.ended is not None:
            _exit(self._relay.ended)
        if self._relay.restart(failure):
            return True
        logger.warning("The script ended before it made an elasticjob.Session: from now on it is started in a world.")
        self._ran = False
        return False

    def _start_sessions(self) -> RendezvousInfo:
        """The relay will bring worlds to these workers."""
        os.environ[env.GENERATION] = "0"  # the workers inherit it: they are in no world
        self._ran, self._stopped, self._failure = True, False, None
        session = PodStore(self.member.state.nproc, self.member.finish, lambda: False)
        return RendezvousInfo(session, 0, 1, RendezvousStoreInfo(self.member.settings.pod_ip, env.NO_PORT))

    def _find_failure(self, agent: SimpleElasticAgent | None) -> wire.Failure | None:
        """Why the workers of this generation ended, unless they were asked to.

        A failure here may be the reason why the hub calls: others feel it, and tell of it, before torch looks.
        """
        if not self._ran:
            return None
        if self.team.evidence is not None:
            return self.team.evidence
        if self._stopped:
            return self._failure
        over = self.member.is_over()
        if over and (self.member.leaving or self.member.grace() > 0):
            return None
        killed = self._relay.killed if self._relay is not None else ()
        found = None
        if agent is not None:
            found = torchagent.find_failure(agent, self.member.generation, killed)
        return found or (None if over else wire.Failure(self.member.generation, message="a worker failed"))

    def num_nodes_waiting(self) -> int:
        self.catch_sigterm()
        self._nursery.reap()
        agent = torchagent.find_agent()
        if self._relay is not None and self._relay.active:
            return self._watch_relay(self._relay, agent)
        if not self.member.is_over():
            return 0 if agent is None else self._watch_for_hangs(agent)
        if self._relay is not None and not self._relay.decline():
            return 0  # the workers just made their sessions: the relay ends this world
        if agent is not None and seat.is_hung(self.member.hub.directive):
            return self._end_hang(agent)
        self.member.say(wire.STOPPING)
        grace = self.member.grace()
        self._stopped = True
        if agent is not None and grace == 0:
            self._failure = torchagent.find_failure(agent, self.member.generation)  # before we end them ourselves
        if grace > 0:
            self.team.save(grace, lambda: self._must_hurry(grace))
        if agent is not None:
            # torch's own stop comes after this one; it would wait 30 s for a script that does not end.
            left = max(self.member.grace(), _LOSS_GRACE)
            torchagent.stop_workers(agent, left, lambda: self._must_hurry(grace))
            late = torchagent.find_failure(agent, self.member.generation) if grace == 0 else None
            if self._failure is None and late is not None and late.traceback:
                self._failure = late  # it was about to end by an exception of its own
        return 1

    def _watch_relay(self, sessions: Relay, agent: SimpleElasticAgent | None) -> int:
        """The relay regroups by itself; torch's loop only ends what is over and restarts what died."""
        if sessions.ended is None:
            if agent is None or not self._find_hang() or self.member.is_over():
                return 0  # what is over, the relay ends
            torchagent.kill_workers(agent)
            return 1
        if agent is not None:
            torchagent.stop_workers(agent, _LOSS_GRACE, lambda: False)
        return 1

    def _watch_for_hangs(self, agent: SimpleElasticAgent) -> int:
        return self._end_hang(agent) if self._find_hang() else 0

    def _find_hang(self) -> bool:
        """Whether the workers make no steps; if so, the hub has been told, and has had a moment to ask the others."""
        if not self.team.is_hung():
            return False
        self.member.say(self.member.state.phase, self.team.examine())
        self.member.hub.wait(self.member.is_over, _HUNG_PATIENCE)
        return True

    def _end_hang(self, agent: SimpleElasticAgent) -> int:
        """Nothing can be saved in this world. The workers are left as they are until all agents have looked."""
        evidence = self.team.examine()
        time.sleep(relay.HOLD)
        self.member.say(wire.STOPPING, evidence)
        torchagent.kill_workers(agent)
        return 1

    def _must_hurry(self, grace: float) -> bool:
        """Somebody was lost while the others save their state: nobody can finish saving now."""
        return grace > 0 and self.member.grace() == 0

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def shutdown(self) -> bool:
        """torchrun's last call. The exception on its way tells how it ended."""
        self._closed = True
        self._nursery.close()
        self.team.close()
        error = sys.exc_info()[1]
        member = self.member
        if error is None:
            member.end(wire.SUCCEEDED)
        elif isinstance(error, ChildFailedError):
            rank, failure = error.get_first_failure()
            member.end(wire.FAILED, torchagent.describe(failure, member.generation, rank))
        elif member.leaving or (isinstance(error, SystemExit) and member.state.phase != wire.RUNNING):
            member.end(member.state.phase)
        else:
            member.end(wire.FAILED, wire.Failure(member.generation, message=f"torchrun failed: {error!r}"))
        return True

    # SIGTERM.

    def catch_sigterm(self) -> None:
        """Leave gracefully on SIGTERM. torch installs its own handler with each start of workers: come back."""
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGTERM)
        if current == self._on_sigterm:
            return
        self._previous_handler = current
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if not self.member.leaving:
            self.member.leave()
            return
        # The second one means now.
        if callable(self._previous_handler):
            self._previous_handler(number, frame)
        else:
            raise SystemExit(128 + number)
