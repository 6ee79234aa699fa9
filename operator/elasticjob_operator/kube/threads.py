"""Threads for what would occupy the event loop for too long, of which no namespace gets more than its share.

Python computes in one thread at a time, so that more than two would only wait for each other. Namespaces that have both
of them let another have its turn after one more plan each.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from elasticjob_operator.kube.fair_queue import Owner, Slots

T = TypeVar("T")
COUNT: Final = 2
HAND_OVER_SECONDS: Final = 0.0005


def hand_over_soon() -> None:
    """Let the event loop have the interpreter soon after it has asked for it, while threads compute.

    It asks for it anew whenever packets have arrived: with Python's own five milliseconds, answers to 500 agents that
    say something each second take 18 ms, and up to 115, for as long as somebody has large jobs planned.
    """
    sys.setswitchinterval(HAND_OVER_SECONDS)


class Threads:
    """Namespaces take turns, and so do the jobs of each; one namespace has at most half of the threads."""

    def __init__(self, name: str) -> None:
        self._slots = Slots(COUNT, share=COUNT // 2)
        self._executor = ThreadPoolExecutor(COUNT, thread_name_prefix=name)

    async def run(self, owner: Owner, work: Callable[[], T]) -> T:
        """The result of `work`, which gets frozen values only and returns one."""
        await self._slots.acquire(owner)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._slots.release(owner)

    def close(self) -> None:
        """Begin nothing more; what is being computed ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
