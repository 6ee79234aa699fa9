"""What waits for agents that do not read is bounded, however many pods a job has, and a namespace gets half of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.hub_fixture import FAST, RunningHub, eventually, running_hub, seated
from elasticjob_operator import turn
from elasticjob_operator.api import wire
from elasticjob_operator.hub import auth, certificates, connection
from hostile_agents import Peer

pytestmark = pytest.mark.timeout(90)
PODS = 100
MANY = 24
SETTINGS = replace(FAST, hello_seconds=30, timeout_min=90, slow_seconds=90, max_message_bytes=2**22)


async def by_namespace(token: str, address: str) -> auth.Identity | auth.Refusal:
    """Authenticates tokens of the form `<namespace>/<pod>`."""
    namespace, _, pod = token.partition("/")
    return auth.Identity(namespace, pod, f"uid-{pod}", "job")


def build_world(size: int) -> wire.World:
    members = tuple(wire.Member(pod=f"job-worker-{i}", rank=i, address="10.100.100.100") for i in range(size))
    return wire.World(generation=1, rank=0, members=members, store=wire.Store(address="a", port=1))


def build_tls(*, on: bool) -> tuple[ssl.SSLContext, ssl.SSLContext] | tuple[None, None]:
    if not on:
        return None, None
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    return certificates.server_context(bundle), ssl.create_default_context(cadata=bundle.trust.decode())


def abort(peer: Peer) -> None:
    peer.writer.transport.abort()


async def enter_deaf(stack: AsyncExitStack, running: RunningHub, token: str, tls: ssl.SSLContext | None) -> Peer:
    """A pod that lists of members are sent to, over a socket that takes little, and that reads nothing more."""
    one = stack.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)
    one.setblocking(False)
    await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", running.port))
    name = None if tls is None else "127.0.0.1"
    peer = Peer(*await asyncio.open_connection(sock=one, limit=1024, ssl=tls, server_hostname=name))
    stack.callback(abort, peer)  # which keeps the peer: it would close the connection at its end
    assert await peer.upgrade(token) == 101
    await peer.hello()
    return peer


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_few_of_the_worlds_that_nobody_reads_are_written_and_others_get_theirs(tls: bool) -> None:
    """Each has 600 KB. With TLS, the pods themselves take a quarter of a megabyte of it before they read."""
    server, client = build_tls(on=tls)
    async with (
        running_hub(SETTINGS, authenticate=by_namespace, context=server) as running,
        AsyncExitStack() as stack,
    ):
        hub, evil, first = running.hub, ("evil", "job"), build_world(8000)
        for i in range(PODS):
            await enter_deaf(stack, running, f"evil/{i}", client)
        hub.direct(evil, {f"uid-{i}": first.model_copy(update={"rank": i}) for i in range(PODS)})
        await eventually(lambda: hub.counts["directives"] > 0)
        nice = await stack.enter_async_context(seated(running, "0", job="nice", heartbeat=None, context=client))
        hub.direct(("nice", "job"), {"uid-0": first})
        assert await nice.directive() == first, "it comes after those of the others"
        written = hub.counts["directives"] - 1
        assert 0 < written < 0.6 * PODS

        # What was written to the others is free again, for these.
        hub.forget_pods(evil, but={f"uid-{i}" for i in range(PODS // 2, PODS)})
        await eventually(lambda: hub.counts["directives"] - 1 > written)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_who_does_not_read_one_long_world_is_cut_off(tls: bool) -> None:
    server, client = build_tls(on=tls)
    settings = replace(SETTINGS, slow_seconds=1.0)
    async with (
        running_hub(settings, authenticate=by_namespace, context=server) as running,
        AsyncExitStack() as stack,
    ):
        await enter_deaf(stack, running, "evil/0", client)
        running.hub.direct(("evil", "job"), {"uid-0": build_world(16_000)})  # 1.2 MB, more than what lies between takes
        await eventually(lambda: running.hub.counts["closed:slow"] == 1)
        assert running.hub.places["unread"][0] == 0


async def test_agents_that_read_get_more_than_there_is_room_for_at_a_time() -> None:
    settings = replace(SETTINGS, max_unread_bytes=1_000_000)
    async with running_hub(settings, authenticate=by_namespace) as running, AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(seated(running, str(i), job="nice", heartbeat=None)) for i in range(20)]
        first = build_world(3000)
        worlds = [first.model_copy(update={"rank": rank}) for rank in range(len(pods))]
        running.hub.direct(("nice", "job"), {f"uid-{rank}": one for rank, one in enumerate(worlds)})
        for pod, expected in zip(pods, worlds, strict=True):
            assert await pod.directive() == expected
        await eventually(lambda: running.hub.places["unread"][0] == 0)


@pytest.mark.parametrize(("members", "is_told"), [(500, True), (1_000, False)])
async def test_an_agent_that_wants_the_members_of_a_long_world_is_told_why_it_gets_none(
    members: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of n agents would get a list of n members: gigabytes for a job of 5,000 pods."""
    told = tuple(wire.Member(pod=f"job-worker-{i}", rank=i, address="10.100.100.100") for i in range(members))
    world = wire.World(generation=1, rank=0, members=told, store=wire.Store(address="a", port=1))
    async with running_hub(FAST, authenticate=by_namespace) as running:
        async with seated(running, "0", job="old", heartbeat=None) as old:
            running.hub.direct(("old", "job"), {"uid-0": world})
            if is_told:
                assert await old.directive() == world
                return
            error, code = await old.refusal()
        assert code == 4400 and error is not None and error.code == "version"
        assert "update elasticjob in the image of the job" in error.message
        assert "update elasticjob in the image of the job" in caplog.text and "old/job" in caplog.text
        async with seated(running, "1", job="old", sizes=True, heartbeat=None) as new:
            running.hub.direct(("old", "job"), {"uid-1": world})
            directive = await new.directive()
            assert isinstance(directive, wire.World) and directive.sizes == ((members, 1),)


async def test_long_worlds_are_written_with_turns_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are just so short that their unread bytes are not counted; each takes more than a millisecond."""
    monkeypatch.setattr(turn, "SECONDS", 0.0)  # whatever was done was long
    written, longest, write = 0, 0, connection.Connection.direct

    async def note(*given: Any) -> None:
        nonlocal written, longest
        written += 1
        longest = max(longest, written)
        asyncio.get_running_loop().call_soon(begin)
        await write(*given)

    def begin() -> None:
        nonlocal written
        written = 0

    async with running_hub(SETTINGS, authenticate=by_namespace) as running, AsyncExitStack() as stack:
        for i in range(MANY):
            await stack.enter_async_context(seated(running, str(i), job="nice", heartbeat=None))
        monkeypatch.setattr(connection.Connection, "direct", note)
        running.hub.direct(("nice", "job"), {f"uid-{i}": build_world(800) for i in range(MANY)})
        await eventually(lambda: running.hub.counts["directives"] == MANY)
    assert longest <= 2
