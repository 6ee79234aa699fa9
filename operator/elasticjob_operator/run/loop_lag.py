"""How long the event loop is held up: looked at a hundred times a second, so that nothing that matters slips through.

Two clocks are read. The lag is how late the loop is, for whatever reason, a machine that is too busy included. The busy
time is what this thread has computed since the last look: above the pause between two looks it is one stretch of our
own work in which nobody else was heard.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from elasticjob_operator.run.metrics import Metrics

PAUSE: Final = 0.01


class Pulse:
    """Measures from `start` to `stop`. A held-up loop is seen with up to `PAUSE` seconds less than it was."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._computed = 0.0

    def start(self) -> None:
        self._computed = time.thread_time()
        self._again(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + PAUSE
        self._timer = loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        computed = time.thread_time()
        self._metrics.observe_loop(max(0.0, loop.time() - self._due), computed - self._computed)
        self._computed = computed
        self._again(loop)
