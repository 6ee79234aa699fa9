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

    def find_hang(self) -> str | None:
        """Why this world counts as stuck, or None."""
        with self._changed:
            now = time.monotonic()
            if not hang.is_hung(self._watch, now):
                return None
            since, step = now - self._watch.last, self._watch.step
            self._watch = hang.Watch(0.0)  # said once
        return f"hang: no step for {since:.0f} s after step {step}"

    def report_hang(self, reason: str) -> str:
        """Collect the stacks of the local ranks, log them and send them to the hub; returns them."""
        peers = self._server.peers(control.STACKS)
        stacks = hang.collect_stacks(self._server.folder, [(peer.local_rank, peer.pid) for peer in peers])
        logger.error("elasticjob: %s\n%s", reason, stacks)
        self._member.hub.diagnose(self._member.generation, "hang", f"{reason}\n{stacks}")
        return stacks


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
