"""The workers of this pod, as far as their scripts talk to the agent: progress, checkpoints, hangs.

A script that uses nothing of ours is a silent member of the team: it reports no steps, gets no checkpoint signal
and is never called hung.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from elasticjob import control, hang, wire
from elasticjob.member import Member

logger = logging.getLogger("elasticjob")


class Team:
    """Hosts the agent's end of the control channel."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._changed = threading.Condition()
        self._unsaved: set[int] = set()  # pids that were asked for a checkpoint
        self._watch = hang.Watch(member.settings.hang_timeout)
        self._evidence: wire.Failure | None = None
        self._examining = threading.Lock()
        self.waiting: set[int] = set()  # workers (pids) that were found waiting for others
        self.find_workers: Callable[[], dict[int, int]] = self._find_peers  # pids by local rank
        self.on_message: Callable[[control.Peer, control.Message | None], None] | None = None
        self._server = control.Server(self._hear)

    @property
    def path(self) -> str:
        return str(self._server.path)

    @property
    def server(self) -> control.Server:
        return self._server

    def close(self) -> None:
        self._server.close()

    def begin(self) -> None:
        """New workers, or old ones in a new world: nothing is known of their pace."""
        with self._changed:
            self._unsaved.clear()
            self._watch = hang.Watch(self._member.settings.hang_timeout)
            self._evidence = None

    def _find_peers(self) -> dict[int, int]:
        return {peer.local_rank: peer.pid for peer in self._server.peers(control.STACKS)}

    def _hear(self, peer: control.Peer, message: control.Message | None) -> None:
        kind = None if message is None else message.get("type")
        if message is None or kind == "saved":
            with self._changed:
                self._unsaved.discard(peer.pid)
                self._changed.notify_all()
        elif kind == "progress":
            self._progress(peer, message)
        if self.on_message is not None:
            self.on_message(peer, message)

    def _progress(self, peer: control.Peer, message: control.Message) -> None:
        step = _count(message.get("step"))
        with self._changed:
            self._watch.report(time.monotonic(), step)
        if peer.local_rank != 0:
            return
        metrics = message.get("metrics")
        seconds = message.get("stepSeconds")
        self._member.hub.report(
            wire.Progress(
                generation=self._member.generation,
                rank=_count(message.get("rank")) or 0,
                step=step,
                total_steps=_count(message.get("total")),
                step_seconds=float(seconds) if isinstance(seconds, int | float) and seconds >= 0 else None,
                metrics={
                    str(name)[:253]: float(value)
                    for name, value in (metrics.items() if isinstance(metrics, dict) else ())
                    if isinstance(value, int | float) and abs(value) < float("inf")
                },
            )
        )

    # Checkpoints.

    def save(self, grace: float, hurry: Callable[[], bool]) -> None:
        """Signal the scripts that asked for it; wait until they have saved, the grace is over or `hurry` says so."""
        peers = self._server.peers(control.CHECKPOINT)
        with self._changed:
            self._unsaved = {peer.pid for peer in peers}
        for peer in peers:
            try:
                os.kill(peer.pid, signal.SIGUSR1)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + grace
        with self._changed:
            while self._unsaved and not hurry() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.1))
            late = len(self._unsaved)
            self._unsaved.clear()
        if late:
            logger.warning("%d workers did not save in %.1f s; their last checkpoint counts.", late, grace)

    # Hangs.

    def is_hung(self) -> bool:
        with self._changed:
            return self._evidence is None and hang.is_hung(self._watch, time.monotonic())

    @property
    def evidence(self) -> wire.Failure | None:
        """What was found out about the hang of this world."""
        with self._changed:
            return self._evidence

    def examine(self) -> wire.Failure:
        """Find out where the local ranks are; tell the log and the hub. What was found out stays until `begin`."""
        with self._examining:
            if self.evidence is None:
                found = self._examine()
                with self._changed:
                    self._evidence = found
            assert self.evidence is not None
            return self.evidence

    def _examine(self) -> wire.Failure:
        with self._changed:
            stalled = time.monotonic() - self._watch.last if self._watch.reports else None
            step = self._watch.step
        workers = self.find_workers()
        stacks = hang.collect_stacks(self._server.folder, workers)
        places = {rank: hang.find_places(hang.find_main_stack(text)) for rank, text in stacks.items()}
        self.waiting = {workers[rank] for rank, found in places.items() if hang.is_waiting(found)}
        # The one that holds the others up, else the first that says anything.
        chosen = min(places, key=lambda rank: (hang.is_waiting(places[rank]), rank), default=None)
        text = "no step was reported" if stalled is None else f"no step for {stalled:.0f} s after step {step}"
        place = None if chosen is None else hang.find_own_place(places[chosen])
        failure = wire.Failure(
            generation=self._member.generation,
            rank=None if chosen is None else self._member.first_rank + chosen,
            local_rank=chosen,
            message=text if place is None else f"{text}, at {place}",
            traceback=None if chosen is None else hang.find_main_stack(stacks[chosen]),
            kind=wire.HANG,
            waits=None if chosen is None else hang.is_waiting(places[chosen]),
            stalled_seconds=stalled,
        )
        told = "\n".join(f"local rank {rank}:\n{text}" for rank, text in sorted(stacks.items()))
        logger.error("elasticjob: hang: %s\n%s", failure.message, told)
        self._member.hub.diagnose(self._member.generation, wire.HANG, f"{failure.message}\n{told}")
        return failure


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
