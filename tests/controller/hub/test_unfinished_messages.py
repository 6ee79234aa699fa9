"""What the hub keeps of messages that have not ended is bounded, however many pods send them: a namespace gets half."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from controller.hub_fixture import FAST, JOB, connected, eventually, running_hub, seated
from elasticjob_operator import turn
from elasticjob_operator.api import wire
from elasticjob_operator.hub import auth, certificates, handshake
from hostile_agents import Door, Peer, connecting

pytestmark = pytest.mark.timeout(60)
ROOM = 100_000
LONG = 20_000
SETTINGS = replace(FAST, kept_bytes=2_000, max_arriving_bytes=ROOM, hello_seconds=30.0, timeout_min=60.0)
EVIL = 8  # pods; six of them would fill all of the room
BEGIN = b"\x01\xfe" + LONG.to_bytes(2, "big") + bytes(4)  # a text frame of so many bytes, after which others come


async def by_namespace(token: str, address: str) -> auth.Identity | auth.Refusal:
    """Authenticates tokens of the form `<namespace>/<pod>`."""
    namespace, _, pod = token.partition("/")
    return auth.Identity(namespace, pod, f"uid-{namespace}-{pod}", "job")


async def begin(peer: Peer, token: str) -> None:
    """An agent that begins a long message."""
    assert await peer.upgrade(token) == 101
    assert b"welcome" in await peer.hello()
    with contextlib.suppress(ConnectionError):
        peer.writer.write(BEGIN + b"x" * LONG)
        await peer.writer.drain()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_messages_of_one_namespace_that_do_not_end_leave_room_for_others(tls: bool) -> None:
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    server = certificates.server_context(bundle) if tls else None
    client = ssl.create_default_context(cadata=bundle.trust.decode()) if tls else None
    async with running_hub(SETTINGS, authenticate=by_namespace, context=server) as running:
        hub, door = running.hub, Door("127.0.0.1", running.port, client)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(EVIL):
                await begin(await stack.enter_async_context(connecting(door)), f"evil/pod-{number}")
            await eventually(lambda: hub.counts["closed:crowded"] >= EVIL - 2)
            await eventually(lambda: hub.connections == 2)
            assert hub.counts["closed:crowded"] == EVIL - 2, "half of the room, and not one less"
            assert 2 * (LONG - SETTINGS.kept_bytes) <= hub.places["arriving"][0] <= ROOM / 2
            async with seated(running, "pod-0", job="nice", context=client) as nice:
                await nice.ws.send_str(long_text())
                await eventually(lambda: has_progress(hub.agents(("nice", "job")).values()))
        await eventually(lambda: hub.places["arriving"][0] == 0 == hub.connections)


def long_text() -> str:
    # With spaces it is as long as this says: what a pod sends is up to it.
    progress = wire.Progress(generation=1, metrics={"é": 1.0})
    return wire.AGENT_MESSAGE.dump_json(progress, by_alias=True, exclude_none=True).decode().ljust(LONG)


def has_progress(agents: object) -> bool:
    return any(agent.progress is not None for agent in agents)  # type: ignore[attr-defined]


def note_what_is_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each piece that the hub reads."""
    read: list[int] = []
    hear = handshake.Visitor.hear

    def note(visitor: handshake.Visitor, data: bytes) -> None:
        hear(visitor, data)
        read.append(len(data))

    monkeypatch.setattr(handshake.Visitor, "hear", note)
    return read


async def test_what_comes_before_the_answer_to_a_request_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    may, read = asyncio.Event(), note_what_is_read(monkeypatch)

    async def slowly(token: str, address: str) -> auth.Identity | auth.Refusal:
        await may.wait()
        return await by_namespace(token, address)

    async with running_hub(SETTINGS, authenticate=slowly) as running:
        async with connecting(Door("127.0.0.1", running.port)) as peer:
            asking = asyncio.create_task(peer.upgrade("evil/pod-0"))
            await eventually(lambda: running.hub.places["strangers"][0] == 1)
            peer.writer.write(BEGIN + b"x" * LONG)
            await peer.writer.drain()
            await eventually(lambda: sum(read) > LONG)
            may.set()
            assert await asking == 101
            await eventually(lambda: running.hub.places["arriving"][0] >= LONG - SETTINGS.kept_bytes)
        await eventually(lambda: running.hub.places["arriving"][0] == 0)


async def test_of_messages_that_have_ended_nothing_is_counted() -> None:
    """Else a long-lived agent would fill its namespace's share with what it has said long ago."""
    settings = replace(SETTINGS, message_burst=10_000, max_arriving_bytes=10 * ROOM)
    async with running_hub(settings) as running, connected(running, heartbeat=None) as client:
        await client.hello()
        await client.hear()
        (link,) = running.hub._registry._links
        for text in ("", "é" * 100, "\u2003" * 60, "x" * 125, "x" * 126, "x" * 2_000, "\u2003" * 20_000, "x" * 60_000):
            await client.say(wire.Progress(generation=1, metrics={}))
            await client.ws.send_str(
                wire.AGENT_MESSAGE.dump_json(wire.Progress(generation=1)).decode() + " " * len(text)
            )
            await client.ws.send_str('{"v":1,"type":"diagnosis","kind":"k","text":"' + text[:20_000] + '"}')
        await client.ws.ping()
        await client.state(phase="ready")
        await eventually(lambda: running.hub.agents(JOB)["uid-digits-worker-0"].state.phase is wire.AgentPhase.READY)
        await eventually(lambda: link.arriving == 0 == running.hub.places["arriving"][0])


async def test_a_message_that_waits_for_its_turn_takes_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one character beyond the others, a text of Python takes four bytes for each."""
    may, waiting = asyncio.Event(), list[str]()

    async def wait(line: turn.Line, group: str) -> None:
        waiting.append(group)
        await may.wait()

    monkeypatch.setattr(turn.Line, "wait", wait)
    settings = replace(SETTINGS, max_arriving_bytes=10 * ROOM)
    text = wire.AGENT_MESSAGE.dump_json(wire.Progress(generation=1, metrics={"loss": 1.0}), by_alias=True).decode()
    data = text.replace("loss", "\U0001f525").ljust(50_000).encode()
    async with running_hub(settings, authenticate=by_namespace) as running, contextlib.AsyncExitStack() as stack:
        peers = []
        for number in range(EVIL):
            peer = await stack.enter_async_context(connecting(Door("127.0.0.1", running.port)))
            assert await peer.upgrade(f"evil/pod-{number}") == 101
            assert b"welcome" in await peer.hello()
            peers.append(peer)
        tracemalloc.start()
        try:
            for peer in peers:
                await peer.frame(1, data)
            await eventually(lambda: running.hub.places["arriving"][0] >= EVIL * (len(data) - settings.kept_bytes))
            await eventually(lambda: len(waiting) == EVIL)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken <= 2 * EVIL * len(data)
        may.set()
        await eventually(lambda: running.hub.places["arriving"][0] == 0)
        assert has_progress(running.hub.agents(("evil", "job")).values()), "and it is understood"


async def test_tls_reads_little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps a buffer of 256 KiB for each connection, of which it takes what it has touched once."""
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    client = ssl.create_default_context(cadata=bundle.trust.decode())
    read = note_what_is_read(monkeypatch)
    settings = replace(SETTINGS, max_arriving_bytes=10 * ROOM)
    async with (
        running_hub(settings, context=certificates.server_context(bundle)) as running,
        seated(running, context=client) as agent,
    ):
        await agent.ws.send_str(wire.AGENT_MESSAGE.dump_json(wire.Progress(generation=1)).decode().ljust(60_000))
        await eventually(lambda: has_progress(running.hub.agents(JOB).values()))
    assert sum(read) > 60_000
    assert max(read) <= 2 * handshake.READ_BYTES, "what has just arrived, and a record that it ends"
