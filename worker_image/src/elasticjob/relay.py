"""The agent's side of a regroup in which the workers keep their memory.

With ELASTICJOB_IN_PROCESS=1 the workers are started once, before there is a world, and make an
`elasticjob.Session`. The relay then passes worlds to them: when all workers of the pod are idle it becomes ready,
hears the world from the hub and hands it on; when the generation is over it asks them to pause. A worker that does
not follow in time is killed, and torch's agent starts it again: the fallback is the ordinary restart.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

from elasticjob import control, seat, wire
from elasticjob.member import JoinError, Member, Released
from elasticjob.team import Team

logger = logging.getLogger("elasticjob")

_LOSS_PATIENCE = 8.0  # seconds for workers to leave a world that was lost
_ADVICE = 60.0


class Relay:
    """Passes worlds from the hub to sessions. One thread, started with the first workers."""

    def __init__(self, member: Member, team: Team, nproc: int) -> None:
        self._member = member
        self._team = team
        self._nproc = nproc
        self._changed = threading.Condition()
        self._idle: dict[int, control.Message] = {}  # by pid of the worker
        self._failure: wire.Failure | None = None
        self._ended: Exception | None = None
        team.on_message = self._hear
        self._thread = threading.Thread(target=self._run, name="elasticjob-relay", daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive():
            self._member.set_in_process(True)
            self._thread.start()

    @property
    def ended(self) -> Exception | None:
        """Why there will be no further world for this pod."""
        return self._ended

    def restart(self, failure: wire.Failure | None) -> None:
        """The workers died and are started again: the world must go on without them until they are back."""
        with self._changed:
            self._failure = failure
            self._idle.clear()
        self._member.say(wire.STARTING, failure)
        self._member.hub.notify()

    def _hear(self, peer: control.Peer, message: control.Message | None) -> None:
        with self._changed:
            if message is None:
                self._idle.pop(peer.pid, None)
            elif message.get("type") == "idle":
                self._idle[peer.pid] = message
            self._changed.notify_all()
        self._member.hub.notify()

    def _run(self) -> None:
        try:
            self._member.start()
            while True:
                self._wait_for_sessions()
                self._one_world()
        except (Released, JoinError) as end:
            self._ended = end

    def _all_idle(self) -> bool:
        return len(self._idle) >= self._nproc

    def _wait_for_sessions(self) -> None:
        with self._changed:
            while not self._changed.wait_for(self._all_idle, _ADVICE):
                logger.warning(
                    "Still waiting for elasticjob.Session in %d of %d workers. A script without one needs"
                    " ELASTICJOB_IN_PROCESS unset.",
                    self._nproc - len(self._idle),
                    self._nproc,
                )

    def _one_world(self) -> None:
        failure, self._failure = self._failure or self._find_breakage(), None
        world, _ = self._member.join(failure)
        self._team.begin()
        with self._changed:
            self._idle.clear()
        for peer in self._team.server.peers(control.SESSION):
            peer.send(_describe(world, peer.local_rank, self._nproc))
        self._member.hub.wait(self._is_interrupted, None)
        if self._member.is_over():
            self._pause(world.generation)

    def _find_breakage(self) -> wire.Failure | None:
        """What the sessions say of the end of their world, where the hub did not order it."""
        if self._member.generation == 0 or self._member.is_over():
            return None
        for message in self._idle.values():
            if message.get("error"):
                return wire.Failure(self._member.generation, message=str(message["error"]))
        return None

    def _is_interrupted(self) -> bool:
        return self._member.is_over() or bool(self._idle)

    def _pause(self, generation: int) -> None:
        """Ask the sessions to leave this world; an announced end lets them agree on the last step."""
        directive = self._member.hub.directive
        if isinstance(directive, wire.Stop) and directive.checkpoint:
            # Nobody keeps this memory: the scripts save while the world still works.
            self._team.save(directive.grace_seconds, lambda: False)
        if self._member.state.phase != wire.STARTING:  # the workers died: a new start says so
            self._member.say(wire.STOPPING)
        asked: bool | None = None
        deadline = time.monotonic() + max(self._member.grace(), _LOSS_PATIENCE)
        while not self._all_idle() and time.monotonic() < deadline:
            announced = seat.grace_of(self._member.hub.directive) > 0
            if announced != asked:
                asked = announced
                if not announced:
                    self._member.abandon()  # frees those who wait for members that are gone
                    deadline = min(deadline, time.monotonic() + _LOSS_PATIENCE)
                for peer in self._team.server.peers(control.SESSION):
                    peer.send({"type": "regroup", "generation": generation, "announced": announced})
            with self._changed:
                self._changed.wait_for(self._all_idle, 0.1)
        if not self._all_idle():
            self._kill_late()

    def _kill_late(self) -> None:
        for peer in self._team.server.peers(control.SESSION):
            if peer.pid not in self._idle:
                logger.error("Worker %d did not leave its world in time: restarting it.", peer.pid)
                try:
                    os.kill(peer.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def _describe(world: wire.World, local_rank: int, nproc: int) -> control.Message:
    """What a session needs to know of its world."""
    return {
        "type": "world",
        "generation": world.generation,
        "rank": seat.base_rank(world) + local_rank,
        "worldSize": seat.world_size(world),
        "localRank": local_rank,
        "localWorldSize": nproc,
        "groupRank": world.rank,
        "groupWorldSize": len(world.members),
        "address": world.store.address,
        "port": world.store.port,
        "restarts": world.restarts,
    }
