"""The agent's side of a regroup in which the workers keep their memory.

The relay takes over when the scripts of all workers of the pod have made an `elasticjob.Session`: in the world that
they were started in, or, where the pod is told that the others keep their memory too, before there is one. From then
on it passes worlds to them: when all workers of the pod are idle it becomes ready, hears the world from the hub and
hands it on; when the generation is over it asks them to pause. A worker that does not follow in time is killed, and
torch's agent starts it again: the fallback is the ordinary restart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time

from elasticjob import control, seat, wire
from elasticjob.member import Abandoned, JoinError, Member, Released
from elasticjob.team import Team

logger = logging.getLogger("elasticjob")

_PATIENCE = 8.0  # seconds beyond the script's grace to leave a world; the operator waits longer for the pod
_ADVICE = 60.0
HOLD = 1.0  # seconds that workers of a hung world are left as they are: other agents look at theirs


class Relay:
    """Passes worlds from the hub to sessions. One thread, from the moment that there are sessions."""

    def __init__(self, member: Member, team: Team, nproc: int) -> None:
        self._member = member
        self._team = team
        self._nproc = nproc
        self._changed = threading.Condition()
        self._idle: dict[int, control.Message] = {}  # by pid of the worker
        self._failure: wire.Failure | None = None
        self._ended: Exception | None = None
        self._active = False
        # Whether the script makes a session: its author says so, or it has shown it.
        self._proven = member.settings.in_process is True
        self.killed: set[int] = set()  # workers (pids) that did not leave their world
        self._declined = -1  # the generation whose workers are stopped as others are
        member.is_abandoned = self._is_abandoned
        team.on_message = self._hear
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether the workers keep their memory: then their worlds are ours to pass on."""
        with self._changed:
            return self._active

    @property
    def ended(self) -> Exception | None:
        """Why there will be no further world for this pod."""
        return self._ended

    # What the handler decides.

    def start(self) -> None:
        """The workers are started before there is a world."""
        with self._changed:
            self._activate(adopted=False)

    def decline(self) -> bool:
        """The workers of this generation are about to be stopped. False: too late, they keep their memory."""
        with self._changed:
            if not self._active:
                self._declined = self._member.generation
            return not self._active

    def restart(self, failure: wire.Failure | None) -> bool:
        """The workers died and are started again: the world must go on without them until they are back.

        False where they never made a session: this script wants to be started in a world, as others are.
        """
        with self._changed:
            self._idle.clear()
            if not self._proven:
                self._active, thread = False, self._thread
                self._changed.notify_all()
            else:
                self._failure, thread = failure, None
        if thread is not None:
            thread.join()
            self._member.set_in_process(False)
            return False
        self._member.say(wire.STARTING, failure)
        self._member.hub.notify()
        return True

    def _activate(self, adopted: bool) -> None:
        self._active = True
        self._member.set_in_process(True)
        self._thread = threading.Thread(target=self._run, args=(adopted,), name="elasticjob-relay", daemon=True)
        self._thread.start()

    # In the threads that read from the workers.

    def _hear(self, peer: control.Peer, message: control.Message | None) -> None:
        with self._changed:
            kind = None if message is None else message.get("type")
            if message is None:
                self._idle.pop(peer.pid, None)
            elif kind == "idle":
                self._idle[peer.pid] = message
                self._proven = True
            elif kind == "hello" and self._is_world_of_sessions():
                self._proven = True
                self._activate(adopted=True)
            self._changed.notify_all()
        self._member.hub.notify()

    def _is_world_of_sessions(self) -> bool:
        """Whether all workers that run in the present world have made a session, and may keep it."""
        generation, phase = self._member.generation, self._member.state.phase
        if self._active or generation <= self._declined or phase not in (wire.RUNNING, wire.LEAVING):
            return False
        peers = self._team.server.peers(control.SESSION)
        return len({peer.pid for peer in peers if peer.generation == generation}) >= self._nproc

    # The relay's own thread.

    def _run(self, adopted: bool) -> None:
        try:
            if adopted:
                logger.info("Generation %d: the workers keep their memory from now on.", self._member.generation)
                self._watch(self._member.generation)
            while self._wait_for_sessions():
                self._one_world()
        except (Released, JoinError) as end:
            self._ended = end
            self._member.hub.notify()

    def _all_idle(self) -> bool:
        return len(self._idle) >= self._nproc

    def _wait_for_sessions(self) -> bool:
        """False where the script turned out to make none."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._all_idle() or not self._active, _ADVICE):
                logger.warning(
                    "Still waiting for elasticjob.Session in %d of %d workers. They were started before there is a"
                    " world; ELASTICJOB_IN_PROCESS=0 forbids it.",
                    self._nproc - len(self._idle),
                    self._nproc,
                )
            return self._active

    def _is_abandoned(self) -> bool:
        """Whether the workers died while the member waited for their next world."""
        return self._active and threading.current_thread() is self._thread and not self._all_idle()

    def _one_world(self) -> None:
        failure, self._failure = self._failure or self._team.evidence or self._find_breakage(), None
        try:
            world, _ = self._member.join(failure)
        except Abandoned:
            self._member.say(wire.STARTING, self._member.state.failure)
            return
        self._team.begin()
        with self._changed:
            self._idle.clear()
        for peer in self._team.server.peers(control.SESSION):
            peer.send(_describe(world, peer.local_rank, self._nproc))
        self._watch(world.generation)

    def _watch(self, generation: int) -> None:
        """Until the generation is over, or the sessions have left it."""
        self._member.hub.wait(self._is_interrupted, None)
        if self._member.is_over():
            self._pause(generation)

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
        if self._are_new():
            self._member.abandon()
            return
        evidence = self._end_hang() if seat.is_hung(directive) else None
        self._member.say(wire.STOPPING, evidence)
        asked: bool | None = None
        deadline = time.monotonic() + self._member.settings.grace_seconds + _PATIENCE
        while not self._all_idle() and not self._are_new() and time.monotonic() < deadline:
            announced = seat.grace_of(self._member.hub.directive) > 0
            if announced != asked:
                asked = announced
                if not announced:
                    self._member.abandon()  # frees those who wait for members that are gone
                for peer in self._team.server.peers(control.SESSION):
                    peer.send({"type": "regroup", "generation": generation, "announced": announced})
            with self._changed:
                self._changed.wait_for(self._all_idle, 0.1)
        if not self._all_idle() and not self._are_new():
            self._kill_late()

    def _end_hang(self) -> wire.Failure:
        """End those of the workers that hold the others up: those that wait can be freed and keep their memory."""
        evidence = self._team.examine()
        time.sleep(HOLD)
        for pid in self._team.find_workers().values():
            if pid not in self._team.waiting:
                self._kill(pid)
        return evidence

    def _are_new(self) -> bool:
        """Whether the workers died and are started anew: they are in no world that they could leave."""
        return self._member.state.phase == wire.STARTING

    def _kill_late(self) -> None:
        for peer in self._team.server.peers(control.SESSION):
            if peer.pid not in self._idle:
                logger.error("Worker %d did not leave its world in time: restarting it.", peer.pid)
                self._kill(peer.pid)

    def _kill(self, pid: int) -> None:
        self.killed.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
        "groupWorldSize": len(world.nprocs),
        "address": world.store.address,
        "port": world.store.port,
        "restarts": world.restarts,
    }
