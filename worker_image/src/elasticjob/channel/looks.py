"""The agent's looks at its workers: asks each which collectives it has entered, and measures what it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from elasticjob.channel import completion, control, hang, quiet, stacks, work

_MOST_CHARACTERS: Final = 512
_FRESH_SECONDS: Final = 0.5  # how old what a worker said of its device may be, where it is asked ten times a second
_APART_SECONDS: Final = 60.0  # in which scripts that train together have met; or the limit of a hang
ANSWER_SECONDS: Final = 0.25  # for the thread that reads a worker's connection: it needs the GIL


class Looks:
    """Thread-safe: the workers' answers come in the threads that read their connections."""

    def __init__(self, limit: float | None) -> None:
        """`limit`: seconds without activity that count as a hang; None: derive it; 0: off."""
        self._limit = limit
        self._began = time.monotonic()
        self._lock = threading.Condition()
        self._watch = quiet.Watch(limit)
        self._answers: dict[int, tuple[int | None, str]] = {}  # by pid: collectives entered, and the last of them
        self._steps: dict[int, completion.Told] = {}  # by pid: how far a session on a device is
        self._stacks: dict[int, str] = {}  # by pid: that of the main thread, in the answer to a look for it
        self._own_handlers: set[int] = set()  # pids of workers whose SIGUSR2 is their script's
        self._threads: dict[int, str] = {}  # by pid: the stacks of other threads, in the answer to a detailed look

    def begin(self) -> None:
        """Forget everything: the workers are new, or in a new world."""
        with self._lock:
            self._began = time.monotonic()
            self._watch = quiet.Watch(self._limit)
            self._answers.clear()
            self._steps.clear()
            self._threads.clear()

    def answer(self, pid: int, message: control.Message) -> None:
        """Record what a worker answered."""
        count, last, threads = message.get("collectives"), message.get("last"), message.get("threads")
        is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        with self._lock:
            self._answers[pid] = (count if is_count else None, last[:_MOST_CHARACTERS] if isinstance(last, str) else "")
            if (step := completion.read(message.get("step"), time.monotonic())) is not None:
                self._steps[pid] = step
            if isinstance(stack := message.get("stack"), str):
                self._stacks[pid] = stack
                self._lock.notify_all()
            (self._own_handlers.add if message.get("signal") is False else self._own_handlers.discard)(pid)
            if isinstance(threads, str):
                self._threads[pid] = threads[: stacks.MOST_CHARACTERS]
                self._lock.notify_all()

    def are_quiet(self, server: control.Server, pids: Collection[int]) -> bool:
        """Whether these workers do nothing, for longer than they ever did while they trained. Looks if that is due."""
        now = time.monotonic()
        with self._lock:
            is_due = self._watch.is_due(now)
        if is_due:
            self.take(server, pids)
        with self._lock:
            return self._watch.is_quiet(now)

    def are_suspicious(self) -> bool:
        """Whether no worker has been active for that long, though something may go on beside."""
        with self._lock:
            return self._watch.is_suspicious(time.monotonic())

    def find_seconds_apart(self, pids: Collection[int]) -> float | None:
        """For how long these workers have made no process group; None if one has, or did not answer, or it is soon."""
        seconds = time.monotonic() - self._began
        with self._lock:
            are_apart = bool(pids) and all(self._answers.get(pid, (0, ""))[0] is None for pid in pids)
        return seconds if are_apart and seconds > min(_APART_SECONDS, self._limit or _APART_SECONDS) else None

    def take(self, server: control.Server, pids: Collection[int], *, detailed: bool = False) -> None:
        """Use the answers to the last look, and ask the workers anew.

        `detailed`: for their last collective and their other threads too.
        """
        done = {pid: work.measure(pid) for pid in pids}
        with self._lock:
            looks = {pid: quiet.Look(one, self.collectives(pid), self._steps.get(pid)) for pid, one in done.items()}
            self._watch.note(time.monotonic(), looks)
            if detailed:
                self._threads.clear()
        for peer in server.peers(control.LOOK):
            peer.send({"type": control.LOOK, "detailed": detailed})

    def glance(self, server: control.Server, pids: Collection[int]) -> work.Glance:
        """All workers at one moment. Of one that waits for its device, what counts is what that has completed."""
        peers = [peer for peer in server.peers(control.DEVICE) if peer.pid in pids]
        if not peers:
            return work.glance(pids)
        for peer in peers:
            peer.send({"type": control.LOOK, "detailed": False})
        now = time.monotonic()
        with self._lock:
            steps = {peer.pid: self._steps.get(peer.pid, completion.Told(0.0)) for peer in peers}
        # A rank that waits for no device may wait in a collective of gloo, as when a world is entered.
        others = set(pids) - {pid for pid, one in steps.items() if one.is_pending and now - one.at < _FRESH_SECONDS}
        found = work.glance(others) if others else work.Glance(asleep=True)
        return replace(found, switches=found.switches + sum(one.done for one in steps.values()))

    def is_pending(self, pid: int) -> bool:
        """Whether this worker waits for its device: what it has queued has not been completed."""
        with self._lock:
            step = self._steps.get(pid)
        return step is not None and step.is_pending

    def await_details(self, server: control.Server, pids: Collection[int], patience: float) -> None:
        """Wait up to `patience` seconds for the answers to a detailed look. A worker that keeps the GIL has none."""
        asked = {peer.pid for peer in server.peers(control.LOOK)} & set(pids)
        with self._lock:
            self._lock.wait_for(lambda: asked <= self._threads.keys(), patience)

    def collect_stacks(
        self, server: control.Server, workers: Mapping[int, int], patience: float = stacks.PATIENCE
    ) -> dict[int, str]:
        """The stacks of the main threads of these workers (pids by local rank), as far as they are known in time.

        Workers are asked first. One that does not answer gets a signal, if that is safe.
        """
        peers = [peer for peer in server.peers(control.LOOK) if peer.pid in workers.values()]
        with self._lock:
            self._stacks.clear()
        for peer in peers:
            peer.send({"type": control.LOOK, "detailed": False, "stack": True})
        with self._lock:
            self._lock.wait_for(lambda: {peer.pid for peer in peers} <= self._stacks.keys(), ANSWER_SECONDS)
            found = {rank: self._stacks[pid] for rank, pid in workers.items() if pid in self._stacks}
            offered = {peer.pid for peer in server.peers(control.STACKS)} - self._own_handlers
        silent = {rank: pid for rank, pid in workers.items() if rank not in found and pid in offered}
        return found | stacks.collect(server.folder, silent, patience)

    def take_stacks(self, server: control.Server, workers: Mapping[int, int], *, polls: bool = False) -> hang.Look:
        """Where workers (pids by local rank) are, and what they have done so far. `polls`: see `hang.Look`."""
        found = self.collect_stacks(server, workers, 0.5)
        places = {rank: stacks.find_main_stack(text) for rank, text in found.items()}
        return hang.Look(places, {rank: work.measure(pid) for rank, pid in workers.items()}, polls)

    def quiet_seconds(self) -> float:
        with self._lock:
            return self._watch.quiet_seconds(time.monotonic())

    def collectives(self, pid: int) -> int | None:
        """How many collectives this worker had entered when it answered last."""
        return self._answers.get(pid, (None, ""))[0]

    def other_threads(self, pid: int) -> str:
        """What the worker answered to a detailed look: the stacks of all its threads but the main one; "" if none."""
        threads = self._threads.get(pid, "").strip("\n")
        return f"{threads}\n\n" if threads else ""

    def describe(self, pid: int) -> str:
        """The worker's last answer, to be appended to a line; "" without one."""
        count, last = self._answers.get(pid, (None, ""))
        return ("" if count is None else f" {count} collectives entered") + (f", the last one {last}" if last else "")
