"""Whose tokens are asked about: of one address, as many together as may be refused.

An address has few refusals (`admission.Allowances`). What it has sent before the first of them must not count for less
than what comes after it: the rest waits for the answers, and is refused unread if those were refusals.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from elasticjob_operator.hub import admission


class Suspects:
    """The refusals of each address, and the tokens of it that are under review."""

    def __init__(self, rate: float, burst: float) -> None:
        self._refusals = admission.Allowances(rate, burst)
        self._asked: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def is_spent(self, address: str) -> bool:
        """Whether no token of this address is asked about now."""
        return self._refusals.is_spent(address, _now())

    async def enter(self, address: str) -> bool:
        """Wait until a token of this address may be asked about; False if none may. Call `leave` after True."""
        has_waited = False
        try:
            while not self.is_spent(address):
                if self._refusals.has(address, self._asked[address] + 1, _now()):
                    self._asked[address] += 1
                    return True
                await self._wait(address, is_first=has_waited)
                has_waited = True
            return False
        finally:
            self._wake(address)  # the next one looks, too

    def leave(self, address: str, *, is_refused: bool) -> None:
        """The answer has come."""
        if is_refused:
            self._refusals.take(address, _now())
        self._asked[address] -= 1
        if not self._asked[address]:
            del self._asked[address]
        self._wake(address)

    async def _wait(self, address: str, *, is_first: bool) -> None:
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(address, deque())
        if is_first:  # it was woken, and finds no room yet
            waiting.appendleft(turn)
        else:
            waiting.append(turn)
        await turn

    def _wake(self, address: str) -> None:
        """Let the next one look, who lets the one after look unless he waits again."""
        waiting = self._waiting.get(address)
        while waiting:
            turn = waiting.popleft()
            if not turn.done():  # one that was cancelled waits no more
                turn.set_result(None)
                break
        if waiting is not None and not waiting:
            del self._waiting[address]


def _now() -> float:
    return asyncio.get_running_loop().time()
