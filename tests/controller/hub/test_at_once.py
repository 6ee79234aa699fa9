"""What many pods say at the same instant takes many iterations of the event loop, each of which is short."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from controller.hub_fixture import FAST, RunningHub, running_hub
from elasticjob_operator.hub import frames, handshake
from hostile_agents import Door, connecting


class Ticks:
    """Counts the iterations of the event loop, and what happens in each."""

    def __init__(self) -> None:
        self.now = 0
        self.seen: Counter[int] = Counter()

    async def count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)

    def recording(self, call: Callable[..., Any], *, least: int) -> Callable[..., Any]:
        """The call, which counts if its last argument has more bytes than that."""

        def recorded(*args: Any) -> Any:
            self.seen[self.now] += len(args[-1]) > least
            return call(*args)

        return recorded


async def say_at_once(running: RunningHub, data: bytes, pods: int = 20) -> None:
    """So many pods say the same in one iteration; returns when all of their connections have ended."""
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(connecting(Door("127.0.0.1", running.port))) for _ in range(pods)]
        for i, peer in enumerate(peers):
            assert await peer.upgrade(f"digits/digits-worker-{i}") == 101
            await peer.hello()
        for peer in peers:
            peer.writer.write(data)
        async with asyncio.timeout(20):
            for peer in peers:
                with contextlib.suppress(ConnectionError):
                    await peer.closed()


async def test_each_long_message_is_read_in_an_iteration_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid one may cost a millisecond, and others of the event loop shall not wait for those of all pods."""
    ticks = Ticks()
    monkeypatch.setattr(frames, "decode", ticks.recording(frames.decode, least=4096))
    async with running_hub() as running, asyncio.TaskGroup() as group:
        counting = group.create_task(ticks.count())
        payload = b'{"v":1,"type":"state","state":{"phase":"ready","shards":[%s]}}' % b",".join([b"{}"] * 2000)
        await say_at_once(running, bytes([0x81, 0xFE]) + len(payload).to_bytes(2, "big") + bytes(4) + payload)
        counting.cancel()
    assert ticks.seen.total() == 20 and max(ticks.seen.values()) == 1


async def test_the_frames_of_a_few_pods_are_parsed_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a megabyte of empty fragments takes milliseconds, from each of the pods."""
    ticks = Ticks()
    received = web.RequestHandler.data_received
    monkeypatch.setattr(web.RequestHandler, "data_received", ticks.recording(received, least=16 * 1024))
    settings = replace(FAST, message_burst=20, timeout_min=60)
    async with running_hub(settings) as running, asyncio.TaskGroup() as group:
        counting = group.create_task(ticks.count())
        await say_at_once(running, b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 40_000)
        counting.cancel()
    assert ticks.seen and max(ticks.seen.values()) <= handshake.WORDS_A_TURN
    assert running.hub.counts["closed:rate"] == 20
