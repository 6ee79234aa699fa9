"""What waits for agents that do not read is bounded, however many pods a job has, and a namespace gets half of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from controller.hub_fixture import FAST, RunningHub, eventually, running_hub, seated
from elasticjob_operator.api import wire
from elasticjob_operator.hub import auth
from hostile_agents import Peer

pytestmark = pytest.mark.timeout(60)
MEMBERS, PODS = 3000, 100
MOST = 16 * 2**20  # bytes of an operator that has memory for other things too
SETTINGS = replace(FAST, timeout_min=60, slow_seconds=60)


async def by_namespace(token: str, address: str) -> auth.Identity | auth.Refusal:
    """Authenticates tokens of the form `<namespace>/<pod>`."""
    namespace, _, pod = token.partition("/")
    return auth.Identity(namespace, pod, f"uid-{pod}", "job")


def build_world() -> wire.World:
    members = tuple(wire.Member(pod=f"job-worker-{i}", rank=i, address="10.100.100.100") for i in range(MEMBERS))
    return wire.World(generation=1, rank=0, members=members, store=wire.Store(address="a", port=1))


async def enter_deaf(stack: AsyncExitStack, running: RunningHub, token: str) -> Peer:
    """A pod that lists of members are sent to, over a socket that takes little, and that reads nothing more."""
    one = stack.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)
    one.setblocking(False)
    await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", running.port))
    peer = Peer(*await asyncio.open_connection(sock=one, limit=1024))
    stack.callback(peer.writer.transport.abort)
    assert await peer.upgrade(token) == 101
    await peer.hello()
    return peer


def count_unread(running: RunningHub) -> int:
    return sum(link.unsent() for link in running.hub._registry._links)  # noqa: SLF001


async def test_worlds_that_nobody_reads_take_bounded_memory_and_others_get_theirs() -> None:
    async with running_hub(SETTINGS, authenticate=by_namespace) as running, AsyncExitStack() as stack:
        hub = running.hub
        evil = [await enter_deaf(stack, running, f"evil/{i}") for i in range(PODS)]
        first = build_world()
        hub.direct(("evil", "job"), {f"uid-{i}": first.model_copy(update={"rank": i}) for i in range(PODS)})
        await eventually(lambda: hub.counts["directives"] > 0)
        nice = await stack.enter_async_context(seated(running, "0", job="nice", heartbeat=None))
        hub.direct(("nice", "job"), {"uid-0": first})
        assert await nice.directive() == first, "it comes after those of the others"
        assert 0 < count_unread(running) < MOST

        reading = [asyncio.create_task(peer.closed()) for peer in evil]
        await eventually(lambda: hub.counts["directives"] == PODS + 1)  # who reads gets what was put off
        await eventually(lambda: count_unread(running) == 0)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
