"""What many pods say at the same instant takes many iterations of the event loop, each of which is short."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from controller.hub_fixture import FAST, RunningHub, eventually, running_hub
from elasticjob_operator.hub import auth, frames, handshake
from hostile_agents import Door, Peer, connecting

# A busy machine takes its time for the greetings of many, and those that have greeted say nothing meanwhile.
PATIENT = replace(FAST, hello_seconds=60.0, timeout_min=60.0)


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
            assert await peer.hello()
        for peer in peers:
            peer.writer.write(data)
        async with asyncio.timeout(100):  # a busy machine takes its time
            for peer in peers:
                with contextlib.suppress(ConnectionError):
                    await peer.closed()


async def test_each_long_message_is_read_in_an_iteration_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid one may cost a millisecond, and others of the event loop shall not wait for those of all pods."""
    ticks = Ticks()
    monkeypatch.setattr(frames, "decode", ticks.recording(frames.decode, least=4096))
    async with running_hub(PATIENT) as running, asyncio.TaskGroup() as group:
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
    settings = replace(PATIENT, message_burst=20)
    async with running_hub(settings) as running, asyncio.TaskGroup() as group:
        counting = group.create_task(ticks.count())
        await say_at_once(running, b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 40_000)
        await eventually(lambda: running.hub.counts["closed:rate"] == 20)  # a peer may see its end first
        counting.cancel()
    assert ticks.seen and max(ticks.seen.values()) <= handshake.WORDS_A_TURN


LONG_STATE = (
    '{"v":1,"type":"state","state":{"phase":"ready","address":"%s","shards":[' + ",".join(["17"] * 2000) + "]}}"
)
PING = b"\x89\x80\0\0\0\0"


async def by_namespace(token: str, address: str) -> auth.Identity | auth.Refusal:
    """Authenticates tokens of the form `<namespace>/<pod>`."""
    namespace, _, pod = token.partition("/")
    return auth.Identity(namespace, pod, f"uid-{namespace}-{pod}", "job")


async def enter(stack: AsyncExitStack, running: RunningHub, token: str) -> Peer:
    peer = await stack.enter_async_context(connecting(Door("127.0.0.1", running.port)))
    assert await peer.upgrade(token) == 101
    assert await peer.hello()
    return peer


def write_state(peer: Peer, namespace: str) -> None:
    payload = (LONG_STATE % namespace).encode()
    peer.writer.write(bytes([0x81, 0xFE]) + len(payload).to_bytes(2, "big") + bytes(4) + payload)


async def ping(peers: Sequence[Peer]) -> None:
    """All that there are, ten times a second."""
    while True:
        for peer in peers:
            peer.writer.write(PING)
        await asyncio.sleep(0.1)


async def test_what_the_pods_of_one_namespace_say_at_once_keeps_no_other_namespace_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    decode = frames.decode

    def recorded(data: str | bytes) -> Any:
        if len(data) > frames.LONG:
            order.append("nice" if "nice" in str(data) else "evil")
        return decode(data)

    monkeypatch.setattr(frames, "decode", recorded)
    async with running_hub(PATIENT, authenticate=by_namespace) as running, AsyncExitStack() as stack:
        evil = [await enter(stack, running, f"evil/{i}") for i in range(40)]
        nice = await enter(stack, running, "nice/0")
        for peer in evil * 2:
            write_state(peer, "evil")
        write_state(nice, "nice")
        await eventually(lambda: len(order) == 81)
    assert order.index("nice") < 20


async def test_a_pod_whose_message_waits_for_those_of_others_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a world fails, all of its pods have a traceback to tell. They ping meanwhile, as ever."""
    decode = frames.decode

    def slow(data: str | bytes) -> Any:
        if len(data) > frames.LONG:
            time.sleep(0.02)  # as long as an iteration takes that has other work too
        return decode(data)

    monkeypatch.setattr(frames, "decode", slow)
    # A busy machine holds up the pods of this test with its hub.
    settings = replace(PATIENT, timeout_min=1.0, late_seconds=0.2)
    async with running_hub(settings, authenticate=by_namespace) as running, AsyncExitStack() as stack:
        peers: list[Peer] = []
        pinging = asyncio.create_task(ping(peers))
        stack.callback(pinging.cancel)
        for i in range(100):
            peers.append(await enter(stack, running, f"nice/{i}"))  # it pings from then on
        for peer in peers:
            write_state(peer, "nice")
        counts = running.hub.counts
        await eventually(lambda: counts["message:state"] == len(peers) or bool(counts["lost:silent"]), 100)
        assert not counts["lost:silent"] and running.hub.connections == len(peers)
