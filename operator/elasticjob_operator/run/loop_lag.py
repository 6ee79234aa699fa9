"""Measures how long the event loop is blocked, with a hundred samples per second.

Two clocks are read. The lag is how late the loop is for any reason, including an overloaded machine. The busy time is
the CPU time of this thread since the last sample: above the sampling interval, it is a single piece of work that
blocked the loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from elasticjob_operator.run.metrics import Metrics

PAUSE: Final = 0.01


class Pulse:
    """Measures from `start` to `stop`. A block is underestimated by up to `PAUSE` seconds."""

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
