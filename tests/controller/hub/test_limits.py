"""Unauthenticated clients and broken agents must not affect other connections of the hub."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from controller.hub_fixture import (
    FAST,
    JOB,
    RunningHub,
    connected,
    eventually,
    running_hub,
    seated,
)
from elasticjob_operator.api import wire
from elasticjob_operator.hub import auth, certificates
from elasticjob_operator.run import file_limits
from hostile_agents import Door, connecting

UID = "uid-digits-worker-0"


async def refused(running: RunningHub, token: str | None, *, soon: bool | None = None, **headers: str) -> int:
    """The status of the refusal. `soon`: whether the hub must, or must not, ask for another attempt in a second."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as found:
            await session.ws_connect(running.url, headers=headers)
    assert soon is None or (found.value.headers is not None and ("Retry-After" in found.value.headers) is soon)
    return found.value.status


# --- before the upgrade ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "status"),
    [
        pytest.param(None, 401, id="none"),
        pytest.param("", 401, id="empty"),
        pytest.param("bad", 401, id="bad"),
        pytest.param("somebody", 403, id="not a worker"),
    ],
)
async def test_a_token_that_opens_nothing(token: str | None, status: int) -> None:
    async with running_hub() as running:
        assert await refused(running, token) == status
        assert running.hub.counts[f"refused:{status}"] == 1
        assert running.woken == []


async def test_only_bearer_tokens_count() -> None:
    async with running_hub() as running:
        assert await refused(running, None, Authorization="Basic digits/digits-worker-0") == 401


async def test_not_being_able_to_ask_is_no_refusal_of_the_agent() -> None:
    async def hangs(token: str, address: str) -> auth.Identity | auth.Refusal:
        await asyncio.Event().wait()
        raise AssertionError

    async def breaks(token: str, address: str) -> auth.Identity | auth.Refusal:
        raise OSError("no route to the API server")

    for authenticate in (hangs, breaks):
        async with running_hub(replace(FAST, authenticate_seconds=0.2), authenticate=authenticate) as running:
            assert await refused(running, "digits/digits-worker-0", soon=True) == 503


async def test_what_a_stranger_says_before_it_is_answered_takes_no_memory() -> None:
    """A client waits for the answer to its upgrade. Without TLS, nothing else holds this one up."""

    async def hangs(token: str, address: str) -> auth.Identity | auth.Refusal:
        await asyncio.Event().wait()
        raise AssertionError

    loop = asyncio.get_running_loop()
    async with running_hub(replace(FAST, authenticate_seconds=60), authenticate=hangs) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as stranger:
            stranger.setblocking(False)
            head = f"GET {wire.PATH} HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            await loop.sock_sendall(stranger, f"{head}Authorization: Bearer digits/digits-worker-0\r\n\r\n".encode())
            await eventually(lambda: running.hub.places["strangers"][0] == 1)
            with pytest.raises(ConnectionError):
                for _ in range(2**23 // 2**16):
                    await asyncio.wait_for(loop.sock_sendall(stranger, bytes(2**16)), 30)


async def test_a_pod_that_connects_without_end_hears_429_and_others_do_not() -> None:
    async with running_hub(replace(FAST, connect_burst=3, connects_per_second=0.001)) as running:
        for _ in range(3):
            async with seated(running):
                pass
        assert await refused(running, "digits/digits-worker-0", soon=True) == 429
        async with seated(running, "digits-worker-1"):
            pass


async def test_the_number_of_agents_is_bounded() -> None:
    async with running_hub(replace(FAST, max_connections=1)) as running:
        async with seated(running):
            assert await refused(running, "digits/digits-worker-1") == 503
        await eventually(lambda: running.hub.connections == 0)
        async with seated(running, "digits-worker-1"):
            pass


async def test_what_is_not_the_agents_path_is_not_there() -> None:
    async with running_hub() as running, aiohttp.ClientSession() as session:
        base = running.url.removesuffix(wire.PATH)
        headers = {"Authorization": "Bearer digits/digits-worker-0"}
        for method, path, status in [
            ("GET", "/", 404),
            ("GET", "/metrics", 404),
            ("POST", wire.PATH, 405),
            ("GET", wire.PATH, 400),
        ]:
            async with session.request(method, base + path, headers=headers) as response:
                assert response.status == status, path


# --- after the upgrade -----------------------------------------------------------------------------------

STATE = '{"v":1,"type":"state","state":%s}'


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        pytest.param("", "malformed", "EOF", id="empty"),
        pytest.param("{", "malformed", "EOF", id="cut off"),
        pytest.param("[]", "malformed", "message:", id="a list"),
        pytest.param("null", "malformed", "message:", id="null"),
        pytest.param("[" * 60_000, "malformed", "recursion", id="deep"),
        pytest.param("{}", "malformed", "'type'", id="no type"),
        pytest.param('{"v":1,"type":"order"}', "malformed", "'type'", id="unknown type"),
        pytest.param('{"v":2,"type":"hello"}', "version", "v: this hub speaks version 1, not 2", id="version"),
        pytest.param('{"v":2,"type":"telepathy"}', "version", "not 2", id="a message of a later version"),
        pytest.param('{"v":"1","type":"hello"}', "malformed", "v: ", id="version of a wrong type"),
        pytest.param('{"v":1,"type":"hello"}', "malformed", "agent: Field required", id="missing"),
        pytest.param(STATE % '{"phase":"dancing"}', "malformed", "state.phase: ", id="phase"),
        pytest.param(
            STATE % '{"phase":"ready","store":{"address":"a","port":99999}}',
            "malformed",
            "state.store.port: ",
            id="port",
        ),
        pytest.param(STATE % '{"phase":"ready","nproc":0}', "malformed", "state.nproc: ", id="nproc"),
        pytest.param(STATE % '{"phase":"ready","generation":-1}', "malformed", "state.generation", id="negative"),
        pytest.param(STATE % '{"phase":"ready","generation":1e400}', "malformed", "state.generation", id="huge"),
        pytest.param(
            STATE % ('{"phase":"ready","address":"%s"}' % ("x" * 254)), "malformed", "state.address", id="long"
        ),
        pytest.param('"\ud800"'.encode("utf-8", "surrogatepass"), "", "", id="not UTF-8"),
    ],
)
async def test_a_message_that_is_wrong_is_named_and_ends_the_connection(
    text: str | bytes, code: str, says: str
) -> None:
    async with running_hub() as running, seated(running) as client:
        data = text if isinstance(text, bytes) else text.encode()
        await client.ws.send_frame(data, aiohttp.WSMsgType.TEXT)
        error, close = await client.refusal()
        if code:
            assert error is not None and error.code == code and says in error.message
            assert close == 4400
        else:
            assert close == 1007
        await eventually(lambda: running.hub.connections == 0)


async def test_a_message_that_is_too_large_is_refused_before_it_is_read() -> None:
    async with running_hub() as running:
        for size, said in ((wire.MAX_MESSAGE_BYTES + 1, True), (8 * 1024 * 1024, False)):
            async with seated(running) as client:
                with contextlib.suppress(ConnectionError):
                    await client.ws.send_str("x" * size)
                error, _ = await client.refusal()
                assert (error is not None and error.code == "too-large") is said


async def test_the_largest_message_is_understood() -> None:
    async with running_hub() as running, seated(running) as client:
        text = STATE % '{"phase":"ready"}'
        await client.ws.send_str(text + " " * (wire.MAX_MESSAGE_BYTES - len(text)))
        await eventually(lambda: running.hub.agents(JOB)[UID].state.phase == wire.AgentPhase.READY)


async def test_binary_frames_are_refused() -> None:
    async with running_hub() as running, seated(running) as client:
        await client.ws.send_bytes(b"\x00")
        error, close = await client.refusal()
        assert error is not None and "text frame" in error.message and close == 4400


async def test_the_first_message_is_a_hello() -> None:
    async with running_hub() as running, connected(running) as client:
        await client.state(phase="ready")
        error, close = await client.refusal()
        assert error is not None and "hello" in error.message and close == 4400
        assert running.hub.agents(JOB) == {}


async def test_who_says_no_hello_is_sent_away_pings_or_not() -> None:
    async with running_hub() as running, connected(running, heartbeat=0.1) as client:
        assert await client.refusal() == (None, 4408), "no error: a slow agent shall try again"


@pytest.mark.parametrize("flood", ["state", "ping", "large"])
async def test_a_flood_of_messages_ends_the_connection_and_no_other(flood: str) -> None:
    settings = replace(FAST, message_burst=40, messages_per_second=0.001)
    async with running_hub(settings) as running, seated(running, "digits-worker-1", heartbeat=None) as calm:
        async with seated(running, heartbeat=None) as client:
            with contextlib.suppress(ConnectionError):
                for i in range(4 if flood == "large" else 60):
                    if flood == "ping":
                        await client.ws.ping()
                    else:
                        padding = " " * (60_000 if flood == "large" else 0)
                        await client.ws.send_str(STATE % f'{{"phase":"ready","step":{i}}}' + padding)
            error, close = await client.refusal()
            assert error is not None and error.code == "rate" and close == 4429
        async with connected(running, heartbeat=None) as again:
            await again.hello()
            error, _ = await again.refusal()
            assert error is not None and error.code == "rate", "coming again makes nothing unsaid"
        regroup = wire.Regroup(generation=1, reason="still here")
        running.hub.direct(JOB, {"uid-digits-worker-1": regroup})
        assert await calm.directive() == regroup


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_frames_of_which_no_message_comes_are_counted_too(tls: bool) -> None:
    """A message of empty fragments is never complete, so nothing else counts it."""
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    server = certificates.server_context(bundle) if tls else None
    client = ssl.create_default_context(cadata=bundle.trust.decode()) if tls else None
    settings = replace(FAST, message_burst=10, timeout_min=60)
    fragments = b"\x00\x80\0\0\0\0" * 10_000
    async with running_hub(settings, context=server) as running:
        for times in (1, 2):
            async with connecting(Door("127.0.0.1", running.port, client)) as peer:
                assert await peer.upgrade("digits/digits-worker-0") == 101
                await peer.hello()
                with contextlib.suppress(ConnectionError):
                    peer.writer.write(b"\x01\x80\0\0\0\0" + fragments * 10)
                    await peer.closed()
                await eventually(lambda: running.hub.connections == 0)
                assert running.hub.counts["closed:rate"] == times
        assert running.hub.places["pending"][0] == running.hub.places["agents"][0] == 0


async def test_who_says_more_after_the_end_is_not_read_for_long() -> None:
    """Each ping costs little, but tens of thousands arrive at once, and none of them lets others have the loop."""
    settings = replace(FAST, message_burst=10, messages_per_second=0.001, close_seconds=60, timeout_min=60)
    async with running_hub(settings) as running, connecting(Door("127.0.0.1", running.port)) as peer:
        assert await peer.upgrade("digits/digits-worker-0") == 101
        await peer.hello()
        peer.writer.write(b"\x89\x80\0\0\0\0" * 1_000)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                await peer.closed()
        assert running.hub.counts["closed:rate"] == 1


async def test_what_an_agent_writes_cannot_forge_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with running_hub() as running, seated(running) as client:
        await client.say(wire.Diagnosis(kind="hang\r\nERROR", text="frame 1\nCRITICAL forged\x1b[31m\x00"))
        await eventually(lambda: "reports a" in caplog.text)
        await client.ws.send_str('{"v":1,"type":"a\\r\\nCRITICAL forged\\u001b[31m"}')
        await client.refusal()
    messages = "\n".join(record.getMessage() for record in caplog.records)
    assert not any(line.startswith(("CRITICAL", "ERROR")) for line in messages.splitlines())
    assert "\x1b" not in messages and "\x00" not in messages and "\r" not in messages


async def test_tokens_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_hub() as running:
        await refused(running, "secret-token-value")
        async with seated(running, "secret-pod-token"):
            pass
        await eventually(lambda: running.hub.connections == 0)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("elasticjob_operator")]
    assert not any("secret-token-value" in message for message in ours)


# --- sockets that say nothing ----------------------------------------------------------------------------


async def until_closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(reader.read(4096), 30):
            pass


async def test_a_request_that_drips_in_is_cut_off() -> None:
    async with running_hub() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET /v1/agent HTTP/1.1\r\nHost: hub\r\nX-Slow: ")
                while True:
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        await until_closed(reader)
        dripping.cancel()
        writer.close()
        await eventually(lambda: running.hub.pending_sockets == 0)


async def test_a_tls_handshake_that_never_comes_is_cut_off() -> None:
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    async with running_hub(context=certificates.server_context(bundle)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await eventually(lambda: running.hub.pending_sockets == 1)
        writer.write(b"\x16\x03\x01")
        await until_closed(reader)
        writer.close()
        await eventually(lambda: running.hub.pending_sockets == 0)


@asynccontextmanager
async def strangers(port: int, count: int) -> AsyncIterator[list[socket.socket]]:
    file_limits.raise_soft_limit()  # as the operator does; both ends are in this process
    sockets: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            sockets.append(one)
            await loop.sock_connect(one, ("127.0.0.1", port))
        yield sockets
    finally:
        for one in sockets:
            one.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_thousand_silent_sockets_are_bounded_and_no_agent_waits_for_them(tls: bool) -> None:
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    server = certificates.server_context(bundle) if tls else None
    client = ssl.create_default_context(cadata=bundle.trust.decode()) if tls else None
    # A patience longer than the test: it is the number that bounds them, not the time.
    settings = replace(FAST, max_pending_sockets=100, hello_seconds=60)
    async with running_hub(settings, context=server) as running, strangers(running.port, 1000) as sockets:
        await eventually(lambda: running.hub.pending_sockets == 100)
        async with seated(running, context=client):
            assert running.hub.connections == 1
            assert running.hub.pending_sockets <= 100

        def closed(one: socket.socket) -> bool:
            try:
                return one.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        await eventually(lambda: sum(map(closed, sockets)) >= 900)


async def test_a_thousand_bad_tokens_leave_nothing_behind() -> None:
    async with running_hub(replace(FAST, max_unauthenticated=50)) as running, aiohttp.ClientSession() as session:

        async def knock() -> int:
            async with session.get(running.url, headers={"Authorization": "Bearer bad"}) as response:
                return response.status

        statuses = await asyncio.gather(*(knock() for _ in range(1000)))
        assert set(statuses) <= {400, 401, 503}
        async with seated(running):
            pass
        await eventually(lambda: running.hub.connections == 0 and running.hub.pending_sockets == 0)


# --- peers that do not read ------------------------------------------------------------------------------


class DeafAgent:
    """Says hello and pings, reads nothing, over a socket with small buffers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.socket()

    def __enter__(self) -> DeafAgent:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)  # the hub's end then has little room, too
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def connect(self, token: str) -> None:
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET {wire.PATH} HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        await loop.sock_sendall(self._socket, head.encode())
        hello = wire.Hello(agent="deaf", state=wire.AgentState(phase=wire.AgentPhase.RUNNING))
        await self.frame(1, hello.model_dump_json(by_alias=True, exclude_none=True).encode())

    async def read(self) -> None:
        """A little of what has come, after all."""
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_recv(self._socket, 4096)

    async def frame(self, opcode: int, payload: bytes) -> None:
        size = bytes([0x80 | len(payload)]) if len(payload) < 126 else struct.pack("!BH", 0x80 | 126, len(payload))
        data = bytes([0x80 | opcode]) + size + b"\0\0\0\0" + payload
        await asyncio.get_running_loop().sock_sendall(self._socket, data)


def big_world(generation: int) -> wire.World:
    members = tuple(wire.Member(pod=f"digits-worker-{i}", rank=i, address="10.0.0.1") for i in range(3000))
    return wire.World(generation=generation, rank=0, members=members, store=wire.Store(address="a", port=1))


async def test_an_agent_that_does_not_read_is_cut_off_and_holds_up_nobody() -> None:
    settings = replace(FAST, slow_seconds=1.0, timeout_min=5.0, max_buffer_bytes=64 * 1024, max_message_bytes=2**20)
    # The heartbeat is twice the patience of this client, which reads worlds of 3,000 members in between.
    async with running_hub(settings) as running, seated(running, "digits-worker-1", heartbeat=4.0) as calm:
        with DeafAgent(running.port) as deaf:
            await deaf.connect("digits/digits-worker-0")
            await eventually(lambda: running.hub.connections == 2)
            first, generation = big_world(1), 0  # made once: a hub that is held up for a second excuses everybody
            pinged = 0.0
            while running.hub.connections == 2:
                generation += 1
                world = first.model_copy(update={"generation": generation})
                running.hub.direct(JOB, {UID: world, "uid-digits-worker-1": world})
                assert await calm.directive() == world
                if time.monotonic() >= pinged + 0.5:  # more would be too many
                    pinged = time.monotonic()
                    with contextlib.suppress(ConnectionError):
                        await deaf.frame(9, b"")
            assert running.hub.counts["closed:slow"] == 1, running.hub.counts
            assert running.hub.agents(JOB)[UID].lost_by == "silent"
            assert running.hub.counts["directives"] < 2 * generation, "what it cannot take is not queued"


async def test_an_agent_that_reads_is_not_cut_off_however_much_waits_for_it() -> None:
    """The hub has more to say than the agent can take, so something is left whenever the hub looks."""
    settings = replace(FAST, slow_seconds=2.0, timeout_min=60.0, max_buffer_bytes=64 * 1024, max_message_bytes=2**20)
    async with running_hub(settings) as running:
        with DeafAgent(running.port) as slow:
            await slow.connect("digits/digits-worker-0")
            await eventually(lambda: running.hub.connections == 1)

            async def read_slowly() -> None:
                while True:
                    await slow.read()
                    await asyncio.sleep(0.005)

            reading = asyncio.create_task(read_slowly())
            world, generation, loop = big_world(1), 0, asyncio.get_running_loop()
            until = loop.time() + 3 * settings.slow_seconds
            while loop.time() < until and running.hub.connections == 1:
                generation += 1
                running.hub.direct(JOB, {UID: world.model_copy(update={"generation": generation})})
                await asyncio.sleep(0.01)
            reading.cancel()
            assert running.hub.counts["closed:slow"] == 0 and running.hub.connections == 1
            assert 1 < running.hub.counts["directives"] < generation, "it takes some of them, and not all"


# --- time ------------------------------------------------------------------------------------------------


async def test_a_hub_that_was_paused_itself_blames_nobody() -> None:
    async with running_hub() as running, seated(running):
        time.sleep(3 * FAST.timeout_min)  # noqa: ASYNC251 - the whole process stands still, as in SIGSTOP
        for _ in range(20):
            await asyncio.sleep(FAST.sweep_seconds)
            assert running.hub.agents(JOB)[UID].connected


async def test_a_hub_that_is_held_up_again_and_again_finds_who_is_gone_and_nobody_else() -> None:
    settings, lives_uid = replace(FAST, sweep_seconds=0.25), "uid-digits-worker-1"
    async with (
        running_hub(settings) as running,
        seated(running, heartbeat=None),  # never heard again
        seated(running, "digits-worker-1", heartbeat=None) as lives,
    ):
        held_up = 0
        while running.hub.agents(JOB)[UID].connected:
            held_up += 1
            assert held_up <= 8, "twice the looks at a silent agent that fit into its timeout"
            time.sleep(1.4)  # noqa: ASYNC251 - what another takes of the loop
            await lives.state(phase="starting")
            await asyncio.sleep(0.1)
            assert running.hub.agents(JOB)[lives_uid].connected


async def test_agents_are_told_to_ping_less_often_where_there_are_many() -> None:
    settings = replace(FAST, heartbeat_min=1.0, heartbeat_max=5.0, connections_per_heartbeat_second=1.0)
    async with running_hub(settings) as running, contextlib.AsyncExitStack() as stack:
        told: list[tuple[float, float]] = []
        for i in range(7):
            client = await stack.enter_async_context(connected(running, f"digits-worker-{i}"))
            await client.hello()
            welcome = await client.hear()
            assert isinstance(welcome, wire.Welcome)
            told.append((welcome.heartbeat_seconds, welcome.timeout_seconds))
        assert told == [(1, 4), (2, 8), (3, 12), (4, 16), (5, 20), (5, 20), (5, 20)]


@pytest.mark.parametrize(
    ("expected", "spread", "heartbeat"),
    [(0, 1 / 1500, 1.0), (1, 1 / 1500, 1.0), (1_500, 1.0, 3.0), (6_000, 4.0, 6.0), (20_000, 5.0, 6.0)],
)
async def test_the_first_agent_of_a_new_hub_hears_how_many_will_come_back(
    expected: int, spread: float, heartbeat: float
) -> None:
    settings = replace(FAST, heartbeat_min=1.0)
    async with running_hub(settings, expected={JOB[0]: expected}) as running, connected(running) as client:
        await client.hello()
        welcome = await client.hear()
        assert isinstance(welcome, wire.Welcome)
        assert welcome.reconnect_seconds == pytest.approx(spread)
        assert welcome.heartbeat_seconds == pytest.approx(heartbeat, rel=0.01)


@pytest.mark.parametrize(
    ("others", "own", "spread", "heartbeat"),
    [
        pytest.param([3_000], 2, 4 / 1500, 1.0, id="thousands-of-one"),
        pytest.param([7_500, 7_500], 2, 6 / 1500, 1.0, id="thousands-of-two"),
        pytest.param([2] * 1_499, 2, 2.0, 6.0, id="many-as-small"),
        pytest.param([2], 6_000, 6_002 / 1500, 6.0, id="the-large-one"),
        pytest.param([1_000], 1_000, 2_000 / 1500, 4.0, id="equals"),
    ],
)
async def test_the_pods_of_other_namespaces_make_nobody_slower_than_their_share_does(
    others: list[int], own: int, spread: float, heartbeat: float
) -> None:
    """Three thousand pods, which need not run, made the agents of all others be missed after 24 s and not 5 s."""
    pods = {f"other-{number}": count for number, count in enumerate(others)} | {JOB[0]: own}
    async with running_hub(replace(FAST, heartbeat_min=1.0), expected=pods) as running, connected(running) as client:
        await client.hello()
        welcome = await client.hear()
        assert isinstance(welcome, wire.Welcome)
        assert welcome.reconnect_seconds == pytest.approx(spread)
        assert welcome.heartbeat_seconds == pytest.approx(heartbeat, rel=0.01)


# --- certificates ----------------------------------------------------------------------------------------


async def test_a_new_certificate_drops_no_connection() -> None:
    def context(trust: bytes) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=trust.decode())

    first = certificates.create(["127.0.0.1"], datetime.now(UTC))
    second = certificates.create(["127.0.0.1"], datetime.now(UTC))
    async with (
        running_hub(context=certificates.server_context(first)) as running,
        seated(running, context=context(first.trust)) as old,
    ):
        running.hub.use_certificate(certificates.server_context(second))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with connected(running, "digits-worker-1", context=context(first.trust)):
                pass
        async with seated(running, "digits-worker-1", context=context(second.trust)) as new:
            for client, uid in ((old, UID), (new, "uid-digits-worker-1")):
                directive: Any = wire.Stop(reason=f"for {uid}")
                running.hub.direct(JOB, {uid: directive})
                assert await client.directive() == directive
