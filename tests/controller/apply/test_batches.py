"""Creations in growing batches, and none after the first rejection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from elasticjob_operator.apply.batches import run_all


class Server:
    """Answers a whole row at a time, so that what is under way can be counted."""

    def __init__(self, refuses_from: int = 10**9) -> None:
        self.refuses_from = refuses_from
        self.rows: list[int] = []
        self.built = 0
        self.waiting: list[asyncio.Future[None]] = []

    def calls(self, count: int) -> Iterator[Callable[[], Awaitable[None]]]:
        for _ in range(count):
            self.built += 1
            yield self.create

    async def create(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        await turn

    async def answer(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        row, self.waiting = self.waiting, []
        for turn in row:
            if sum(self.rows) >= self.refuses_from:
                turn.set_exception(PermissionError("exceeded quota"))
            else:
                turn.set_result(None)
        self.rows.append(len(row))


async def serve(server: Server, work: asyncio.Task[list[BaseException]]) -> list[BaseException]:
    while not work.done():
        await server.answer()
    return work.result()


@pytest.mark.parametrize(
    ("count", "rows"),
    [
        pytest.param(4, [4], id="a small job in one round trip"),
        pytest.param(8, [4, 4], id="a node's worth of pods in two"),
        pytest.param(100, [4, 8, 16, 32, 32, 8], id="doubling up to the most"),
    ],
)
async def test_rows(count: int, rows: list[int]) -> None:
    server = Server()
    assert await serve(server, asyncio.create_task(run_all(server.calls(count)))) == []
    assert [row for row in server.rows if row] == rows


async def test_a_refusal_is_the_last_thing_that_is_tried() -> None:
    server = Server(refuses_from=0)
    errors = await serve(server, asyncio.create_task(run_all(server.calls(100_000))))
    assert len(errors) == 4
    assert server.built <= 5, "what is not asked for is not built"


async def test_a_refusal_in_between() -> None:
    server = Server(refuses_from=4)
    errors = await serve(server, asyncio.create_task(run_all(server.calls(100_000))))
    assert (server.rows[:2], len(errors)) == ([4, 8], 8)


async def test_nothing_goes_on_after_a_cancellation() -> None:
    server = Server()
    work = asyncio.create_task(run_all(server.calls(100)))
    for _ in range(5):
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert all(turn.cancelled() for turn in server.waiting)
