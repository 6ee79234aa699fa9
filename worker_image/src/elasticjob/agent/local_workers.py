"""The agent's end of the control channel to this pod's workers: progress, checkpoints, sessions, hangs.

A script that does not use the library reports no steps, gets no checkpoint signal and is never considered hung.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection

from elasticjob.agent import events
from elasticjob.agent.hub_client import Hub
from elasticjob.channel import control, hang, looks, stacks, stillness, work
from elasticjob.channel.place import Place
from elasticjob.protocol import directives, steps, wire

logger = logging.getLogger("elasticjob")

_REACTION_SECONDS = 0.25  # in which workers that can end do so: no look disturbs them
DETAILS_SECONDS = 0.5  # for what hung workers answer, after their stacks were collected


class LocalWorkers:
    """Serves the control channel, and signals the workers that are connected to it."""

    def __init__(
        self,
        hub: Hub,
        hang_timeout: float | None,
        find_place: Callable[[], tuple[int, int]],
        on_message: Callable[[control.Peer, control.Message | None], None],
    ) -> None:
        """`find_place` returns the current generation and the global rank of local rank 0 in it."""
        self._hub = hub
        self._hang_timeout = hang_timeout
        self._find_place = find_place
        self._on_message = on_message
        self._lock = threading.RLock()
        self._unsaved: set[int] = set()  # pids that were asked for a checkpoint
        self._on_saved: Callable[[], None] | None = None
        self._watch = hang.Watch(hang_timeout)
        self._own_times = steps.OwnTimes()
        self._steps = steps.Steps()  # of local rank 0
        self.saves = steps.Saves()
        self._numbers = steps.Numbers()
        self._told: wire.Progress | None = None  # the last report
        self._looks = looks.Looks(hang_timeout)
        self._evidence: wire.Failure | None = None
        self._is_told = False  # where the workers are, which are not active, though something goes on
        self._is_apart_told = False
        self._stillness = stillness.Stillness()
        self._blocked: dict[int, str] = {}  # stacks of workers (pids) that were found blocked while they were stopped
        self.killed: set[int] = set()  # workers (pids) that this agent killed, which is not their failure
        self.restarts: dict[int, str] = {}  # workers (pids) whose sessions had to begin again, and why
        self.waiting: set[int] = set()  # workers (pids) that were found blocked in a collective
        self.find_workers: Callable[[], dict[int, int]] = self._find_peers  # pids by local rank
        self._server = control.Server(self._on_control_message)

    @property
    def path(self) -> str:
        return str(self._server.path)

    @property
    def server(self) -> control.Server:
        return self._server

    def close(self) -> None:
        self._server.close()

    def begin(self) -> None:
        """Reset what was observed: the workers are new, or have entered a new world."""
        with self._lock:
            self._unsaved.clear()
            self._own_times = steps.OwnTimes()
            self._numbers, self._told = steps.Numbers(), None
            self._watch = hang.Watch(self._hang_timeout)
            self._looks.begin()
            self._evidence = None
            self._is_told = False
            self._stillness = stillness.Stillness()

    def _find_peers(self) -> dict[int, int]:
        return {peer.local_rank: peer.pid for peer in self._server.peers(control.STACKS)}

    def _on_control_message(self, peer: control.Peer, message: control.Message | None) -> None:
        kind = None if message is None else message.get("type")
        if message is None or kind == "saved":
            self._note_saved(peer.pid)
        elif kind == "progress":
            self._progress(peer, message)
        elif kind == control.LOOK:
            self._looks.answer(peer.pid, message)
        elif kind == control.RESTART:
            self.restarts[peer.pid] = str(message.get("message"))
        self._on_message(peer, message)

    def _progress(self, peer: control.Peer, message: control.Message) -> None:
        generation, first_rank = self._find_place()
        with self._lock:
            self._own_times.report(peer.local_rank, message)
            now = time.monotonic()
            self.saves.report(message, now)
            ages = self.saves.find_ages(now)
            told = steps.read_progress(message, generation, self._own_times.find_slowest(first_rank), ages)
            self._watch.report(now, told.step)
            self._numbers.report(peer.local_rank, told)
            told = self._numbers.complete(told, first_rank)
            if peer.local_rank == 0:
                self._told = told
        if peer.local_rank != 0:
            return
        began_again = self._steps.report(peer.pid, told.step)
        if began_again is not None:
            logger.warning(began_again)
        self._hub.report(told)

    @property
    def last_step(self) -> int | None:
        """That local rank 0 has reported in this world."""
        told = self._told
        return None if told is None else told.step

    def note_number(self, metric: str, local_rank: int, value: float) -> None:
        """A worker has written a number that a rule of the job looks for."""
        generation, first_rank = self._find_place()
        with self._lock:
            self._numbers.note(metric, local_rank, value)
            before = self._told or wire.Progress(generation=generation, rank=first_rank)
            self._told = told = self._numbers.complete(before, first_rank)
        self._hub.report(told)

    # Sessions.

    def send_world(self, world: wire.World) -> None:
        """Send this world to the sessions, which enter it."""
        self.begin()
        for peer in self._server.peers(control.SESSION):
            peer.send(find_place(world, peer.local_rank).as_message())

    def ask_pause(self, generation: int, announced: bool) -> None:
        """Ask the sessions to leave this world. If `announced`, they first agree on a common last step."""
        for peer in self._server.peers(control.SESSION):
            peer.send({"type": "regroup", "generation": generation, "announced": announced})

    def kill_late(self, but: Collection[int]) -> None:
        """Send SIGKILL to the sessions that did not leave their world in time: all except these (pids)."""
        for peer in self._server.peers(control.SESSION):
            if peer.pid not in but:
                stack = self._blocked.get(peer.pid, "")
                where = f" It is blocked in:\n{stack}" if stack else ""
                text = "Worker %d did not leave its world in time; killing it, torch restarts it.%s"
                logger.error(text, peer.pid, where)
                self._kill(peer.pid)

    def kill_all(self, but: Collection[int]) -> None:
        """Send SIGKILL to all workers except these (pids)."""
        for pid in self.find_workers().values():
            if pid not in but:
                self._kill(pid)

    def _kill(self, pid: int) -> None:
        self.killed.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def find_step(self) -> int | None:
        """The last step that the script of this pod has reported; None if it has reported none."""
        with self._lock:
            return self._watch.step

    # Checkpoints.

    def save(self, on_saved: Callable[[], None], alone: int = 0) -> None:
        """Send SIGUSR1 to the scripts that registered for it. `on_saved` is called when all have saved or exited.

        `alone`: they wait for a world after so many steps, so nothing but that signal lets them save.
        """
        peers = self._server.peers(control.CHECKPOINT)
        if alone and not peers:
            logger.warning(
                "The workers end while they wait for a world, after %d steps, and none of them saves."
                " Those since the script's last checkpoint have to be made again: a Checkpointer saves then, and so can"
                " a callback of elasticjob.on_signal.",
                alone,
            )
        with self._lock:
            self._unsaved, self._on_saved = {peer.pid for peer in peers}, on_saved
        for peer in peers:
            try:
                os.kill(peer.pid, signal.SIGUSR1)
            except ProcessLookupError:
                self._note_saved(peer.pid)
        if not peers:
            on_saved()

    def end_saving(self) -> None:
        """Stop waiting for checkpoints, and log how many are missing."""
        with self._lock:
            late = len(self._unsaved)
            self._unsaved.clear()
        if late:
            logger.warning("%d workers did not save in time; training resumes from their previous checkpoint.", late)

    def _note_saved(self, pid: int) -> None:
        with self._lock:
            if pid not in self._unsaved:
                return
            self._unsaved.remove(pid)
            if not self._unsaved and self._on_saved is not None:
                self._on_saved()

    # Workers that wait.

    def are_waiting(self) -> bool:
        """Whether all workers wait, for much longer than usual. Call it several times a second: each call is a look."""
        now = time.monotonic()
        with self._lock:
            seen = self._stillness
            if seen.last is None or now - seen.at >= stillness.LOOK_EVERY:
                seen = seen.look(now, self._looks.glance(self._server, self.find_workers().values()))
                self._stillness = seen
            return seen.is_waiting

    # Workers that are stopped.

    def watch_blocked(self, on_change: Callable[[bool], None], is_over: Callable[[], bool] = lambda: False) -> None:
        """Tell whether all present workers are blocked in a collective, until they have exited or `is_over`.

        `on_change` is called in another thread.
        """
        arguments = (self.find_workers(), on_change, is_over)
        run = threading.Thread(target=self._watch_blocked, args=arguments, name="elasticjob-blocked")
        run.daemon = True
        run.start()

    def _watch_blocked(
        self, workers: dict[int, int], on_change: Callable[[bool], None], is_over: Callable[[], bool]
    ) -> None:
        time.sleep(_REACTION_SECONDS)
        seen: list[hang.Look] = []
        told = False
        while not is_over() and (workers := {rank: pid for rank, pid in workers.items() if work.is_alive(pid)}):
            polls = bool(self._server.peers(control.DEVICE)) and self.are_waiting()
            seen = [*seen[1 - hang.BLOCKED_LOOKS :], self._looks.take_stacks(self._server, workers, polls=polls)]
            if hang.is_blocked(seen) is not told:
                told = not told
                self._blocked = {workers[rank]: stack for rank, stack in seen[-1].stacks.items() if rank in workers}
                on_change(told)
            until = time.monotonic() + hang.BLOCKED_SECONDS
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, stillness.LOOK_EVERY))
                self.are_waiting()

    # Hangs.

    def find_hang(self, told: wire.AgentState) -> events.Hung | None:
        """What has to be said about the workers of this world, while they were not examined yet.

        They may have reported no step within the hang timeout. Those that report no steps at all may do nothing; `told`
        is what was said of them already.
        """
        with self._lock:
            if self._evidence is not None:
                return None
            if hang.find_limit(self._watch) is not None:
                return events.Hung() if hang.is_hung(self._watch, time.monotonic()) else None
        is_quiet = self._looks.are_quiet(self._server, self.find_workers().values())
        is_beside = not is_quiet and self._looks.are_suspicious()
        if not is_quiet and is_beside is not self._is_told:
            self._is_told = is_beside
            if self._is_told:
                threading.Thread(target=self._tell, name="elasticjob-tell", daemon=True).start()
        generation = self._find_place()[0]
        said = (0 < told.quiet == generation, 0 < told.beside == generation)
        return events.Hung(is_quiet, is_beside) if (is_quiet, is_beside) != said else None

    def tell_if_apart(self, size: int) -> None:
        """Say once that the `size` workers of the world may not know of each other."""
        if self._is_apart_told or (seconds := self._looks.find_seconds_apart(self.find_workers().values())) is None:
            return
        self._is_apart_told = True
        logger.warning(
            "No worker of this pod has made a process group in %.0f s. A script that does not use torch.distributed"
            " trains by itself in each of the %d workers, and all write the same files: run it with one worker, or call"
            " torch.distributed.init_process_group and use DistributedDataParallel.",
            seconds,
            size,
        )

    def examine(self) -> wire.Failure:
        """Collect the stacks of the local ranks, log them and send them to the hub. Cached until `begin`."""
        with self._lock:
            if self._evidence is not None:
                return self._evidence
        found = self._examine()
        with self._lock:
            self._evidence = found
        return found

    def _tell(self) -> None:
        """Tell where the workers are. It may be a hang, and something that goes on beside hides it; or it is work."""
        try:
            self._examine("Something else goes on, so the world is not ended for this yet")
        except Exception:
            logger.exception("Could not find out where the workers are.")

    def _examine(self, note: str = "") -> wire.Failure:
        generation, first_rank = self._find_place()
        with self._lock:
            stalled = time.monotonic() - self._watch.last if self._watch.reports else None
            step = self._watch.step
        quiet_for = self._looks.quiet_seconds()
        workers = self.find_workers()
        self._looks.take(self._server, workers.values(), detailed=True)  # answered while the stacks are collected
        in_state_d = {pid for pid in workers.values() if work.measure(pid).waits_for_disk}
        dumps = self._looks.collect_stacks(self._server, workers)
        self._looks.await_details(self._server, workers.values(), DETAILS_SECONDS)
        places = {rank: stacks.find_places(stacks.find_main_stack(text)) for rank, text in dumps.items()}
        waits = {
            rank: hang.is_waiting(found) or self._looks.is_pending(workers[rank]) for rank, found in places.items()
        }
        counts = {rank: self._looks.collectives(workers[rank]) or 0 for rank in places}
        if not note:
            self.waiting = {workers[rank] for rank in places if waits[rank]}
        # Prefer a rank that does not wait for others, then one that has entered fewer collectives: it holds them up.
        chosen = min(places, key=lambda rank: (waits[rank], counts[rank], rank), default=None)
        what = "no collective, though something goes on," if note else "no collective and no work"
        text = f"{what} for {quiet_for:.0f} s" if quiet_for else "no step was reported"
        text = text if stalled is None else f"no step for {stalled:.0f} s after step {step}"
        place = None if chosen is None else hang.find_own_place(places[chosen])
        text = text if place is None else f"{text}, at {place}"
        # One look may meet a short read, of a loader for example.
        if chosen is not None and workers[chosen] in in_state_d and work.measure(workers[chosen]).waits_for_disk:
            text = f"{text}, {work.IN_STATE_D}"
        failure = wire.Failure(
            generation=generation,
            rank=None if chosen is None else first_rank + chosen,
            local_rank=chosen,
            message=text,
            traceback=None if chosen is None else stacks.find_main_stack(dumps[chosen]),
            kind=wire.HANG,
            waits=None if chosen is None else waits[chosen],
            stalled_seconds=stalled if stalled is not None else quiet_for,
            collectives=None if chosen is None else self._looks.collectives(workers[chosen]),
        )
        # The main thread's comes last: a report that is too long for the hub loses its beginning.
        report = "\n".join(
            f"rank {first_rank + rank}:{self._looks.describe(pid)}\n{self._looks.other_threads(pid)}{dumps[rank]}"
            for rank, pid in sorted(workers.items())
            if rank in dumps
        )
        said = f"{failure.message}\n{note}.\n" if note else f"{failure.message}\n"
        logger.error("%s", hang.format_report(generation, failure.message or "", report))
        self._hub.diagnose(generation, wire.HANG, f"{said}{report}")
        return failure


def find_place(world: wire.World, local_rank: int) -> Place:
    """The place of this pod's worker `local_rank` in a world."""
    return Place(
        generation=world.generation,
        rank=directives.base_rank(world) + local_rank,
        world_size=directives.world_size(world),
        address=world.store.address,
        port=world.store.port,
        group_rank=world.rank,
        group_world_size=len(world.nprocs),
        restarts=world.restarts,
        repeats=world.repeats,
        before=world.before,
    )
