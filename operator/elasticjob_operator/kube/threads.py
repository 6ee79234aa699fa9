"""Threads for what would occupy the event loop for too long, of which no namespace gets more than its share.

Python computes in one thread at a time, so that more than two would only wait for each other. Namespaces that have both
of them let another have its turn after one more plan each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from elasticjob_operator.kube.fair_queue import Owner, Slots

T = TypeVar("T")
COUNT: Final = 2


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
