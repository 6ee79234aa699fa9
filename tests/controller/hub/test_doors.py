"""Admission to the hub: one pending hello per pod, shares for namespaces and addresses, and no leaked slots."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from controller.hub_fixture import FAST, JOB, RunningHub, connected, eventually, running_hub, seated
from elasticjob_operator.api import wire
from elasticjob_operator.hub import auth, certificates, handshake
from elasticjob_operator.run import job_lines
from hostile_agents import Door, Peer, connecting

UID = "uid-digits-worker-0"


async def by_namespace(token: str, address: str) -> auth.Identity | auth.Refusal:
    """The token of these tests is `<namespace>/<pod>`; "bad" opens nothing."""
    if token == "bad":
        return auth.Refusal(401, "bad token")
    namespace, _, pod = token.partition("/")
    return auth.Identity(namespace, pod, f"uid-{pod}", "job")


def make_token(namespace: str, pod: str, uid: str) -> str:
    """A token as Kubernetes makes them, but for the signature."""
    bound = {"namespace": namespace, "pod": {"name": pod, "uid": uid}}
    claims = {"aud": ["elasticjob.dev"], "exp": time.time() + 3600, "kubernetes.io": bound}
    return f"a.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c"


async def status_of(running: RunningHub, token: str) -> int:
    async with connecting(Door("127.0.0.1", running.port)) as peer:
        return await peer.upgrade(token)


async def test_a_pod_has_one_wait_for_a_hello_and_the_newest_connection_gets_it() -> None:
    async with running_hub(replace(FAST, hello_seconds=60)) as running:
        async with connected(running) as old, connected(running) as new:
            with contextlib.suppress(ConnectionError):
                assert await old.hear() is None
            assert running.hub.places["pending"][0] == 1
            await new.hello()
            assert isinstance(await new.hear(), wire.Welcome)
            assert running.hub.places["pending"][0] == 0 and running.hub.places["agents"][0] == 1
        await eventually(lambda: running.hub.places["agents"][0] == 0)
        assert running.hub.counts["closed:superseded"] == 1


@pytest.mark.parametrize("context", [None, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)], ids=["plain", "TLS"])
async def test_a_socket_that_is_accepted_while_the_hub_closes_is_sent_away(context: ssl.SSLContext | None) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        raise AssertionError("nothing is answered any more")

    def accept() -> asyncio.BaseProtocol:
        protocol = listener.accept()
        listener.close()  # in the turn of the loop between a socket's acceptance and its registration
        return protocol

    listener = handshake.HandshakeListener(web.Server(answer), lambda: context, patience=60, capacity=8)
    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    finally:
        writer.transport.abort()
        server.close()
    assert len(listener) == 0


@asynccontextmanager
async def a_stranger(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """The port of a listener with all the patience of the world, which answers nobody."""

    async def answer(request: web.BaseRequest) -> web.Response:
        raise AssertionError("no request is complete")

    server = web.Server(answer, keepalive_timeout=600)
    listener = handshake.HandshakeListener(server, lambda: context, patience=600, capacity=8)
    sockets = await asyncio.get_running_loop().create_server(listener.accept, "127.0.0.1", 0)
    try:
        yield sockets.sockets[0].getsockname()[1]
    finally:
        sockets.close()
        listener.close()


async def is_sent_away(port: int, said: bytes, context: ssl.SSLContext | None = None) -> bool:
    """Whether who says this, and waits, is sent away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        async with asyncio.timeout(20):
            writer.write(said)
            return await reader.read() == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_request_without_an_end_is_not_kept(tls: bool) -> None:
    """A thousand of a megabyte each would take more memory than the operator has."""
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    context = certificates.server_context(bundle) if tls else None
    trust = ssl.create_default_context(cadata=bundle.trust.decode()) if tls else None
    lines = b"".join(b"x-%d: %s\r\n" % (i, b"x" * 4000) for i in range(12))
    async with a_stranger(context) as port:
        assert await is_sent_away(port, f"GET {wire.PATH} HTTP/1.1\r\n".encode() + lines, trust)


async def test_a_long_first_message_of_tls_is_not_kept() -> None:
    """OpenSSL takes up to 128 KiB of a ClientHello, from anybody, before it looks at any of it."""
    bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
    hello = b"\x01" + (131_000).to_bytes(3, "big") + b"\x03\x03" + bytes(48 * 1024)
    pieces = [hello[i : i + 16_000] for i in range(0, len(hello), 16_000)]
    records = b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)
    async with a_stranger(certificates.server_context(bundle)) as port:
        assert await is_sent_away(port, records)


async def test_pods_of_one_namespace_that_say_no_hello_leave_room_for_another() -> None:
    settings = replace(FAST, hello_seconds=60, max_pending=20)
    async with running_hub(settings, authenticate=by_namespace) as running, contextlib.AsyncExitStack() as stack:
        door = Door("127.0.0.1", running.port)
        for _ in range(10):
            peers = [await stack.enter_async_context(connecting(door)) for _ in range(26)]
            heard = await asyncio.gather(*(peer.upgrade(f"evil/pod-{i}") for i, peer in enumerate(peers)))
            assert set(heard) <= {101, 503}
        assert running.hub.places["pending"] == (18, 20)
        assert await status_of(running, "evil/pod-99") == 503
        async with connecting(door) as peer:
            assert await peer.upgrade("nice/pod-0") == 101
            assert b"welcome" in await peer.hello()


async def test_one_namespace_cannot_take_all_places_of_agents() -> None:
    settings = replace(FAST, max_connections=20)
    async with running_hub(settings, authenticate=by_namespace) as running, contextlib.AsyncExitStack() as stack:
        door = Door("127.0.0.1", running.port)

        async def enter(token: str) -> int:
            peer: Peer = await stack.enter_async_context(connecting(door))
            status = await peer.upgrade(token)
            if status == 101:
                assert b"welcome" in await peer.hello()
            return status

        heard = [await enter(f"evil/pod-{i}") for i in range(30)]
        assert heard == [101] * 18 + [503] * 12
        assert await enter("nice/pod-0") == 101
        assert await enter("evil/pod-0") == 101, "who is inside already may come again"


async def test_a_pod_that_is_gone_gives_its_places_back() -> None:
    async with running_hub(replace(FAST, hello_seconds=60)) as running:
        async with seated(running), connected(running), connected(running, "digits-worker-1"):
            assert (running.hub.places["agents"][0], running.hub.places["pending"][0]) == (2, 2)
            running.hub.forget_pods(JOB, but={"uid-digits-worker-1"})
            assert (running.hub.places["agents"][0], running.hub.places["pending"][0]) == (1, 1)
        await eventually(lambda: running.hub.places["agents"][0] == 0 == running.hub.places["pending"][0])


async def test_an_address_whose_tokens_fail_is_not_asked_about_any_more_and_others_are() -> None:
    asked: list[str] = []

    async def counting(token: str, address: str) -> auth.Identity | auth.Refusal:
        asked.append(token)
        return await by_namespace(token, address)

    settings = replace(FAST, failure_burst=3, failures_per_second=0.001)
    async with running_hub(settings, authenticate=counting) as running:
        assert [await status_of(running, "bad") for _ in range(6)] == [401, 401, 401, 429, 429, 429]
        assert asked == ["bad"] * 3
        async with connecting(Door("127.0.0.1", running.port, source="127.0.0.2")) as peer:
            assert await peer.upgrade("nice/pod-0") == 101


class HeldReview:
    """Answers what tokens are only when it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, token: str, address: str) -> auth.Identity | auth.Refusal:
        self.asked.append(token)
        await self.may_answer.wait()
        return await by_namespace(token, address)


async def test_tokens_that_are_tried_at_once_are_asked_about_as_those_that_come_one_by_one() -> None:
    """Each of them had come before the first one was refused; the good one among them waits for its turn."""
    review = HeldReview()
    settings = replace(FAST, failure_burst=3, failures_per_second=0.001, authenticate_seconds=60)
    async with running_hub(settings, authenticate=review) as running:
        good = asyncio.create_task(status_of(running, "nice/pod-0"))
        await eventually(lambda: review.asked == ["nice/pod-0"])
        bad = [asyncio.create_task(status_of(running, "bad")) for _ in range(30)]
        await eventually(lambda: running.hub.places["strangers"][0] == 31)
        review.may_answer.set()
        assert sorted([await one for one in bad]) == [401] * 3 + [429] * 27
        assert await good == 101 and review.asked == ["nice/pod-0", "bad", "bad", "bad"]
        await eventually(lambda: running.hub.places["strangers"][0] == 0)


async def test_who_waits_for_the_review_of_others_of_its_address_is_let_in_after_them() -> None:
    """Behind one address there may be many pods: only what is refused counts."""
    review = HeldReview()
    settings = replace(FAST, failure_burst=3, failures_per_second=0.001, authenticate_seconds=60)
    async with running_hub(settings, authenticate=review) as running:
        coming = [asyncio.create_task(status_of(running, f"nice/pod-{number}")) for number in range(30)]
        await eventually(lambda: running.hub.places["strangers"][0] == 30)
        assert len(review.asked) == 3, "as many as may be refused"
        review.may_answer.set()
        assert [await one for one in coming] == [101] * 30


async def test_forged_claims_of_one_address_leave_room_for_new_pods_of_the_namespace_that_they_name() -> None:
    """Whoever connects writes into a token what he likes; the pods of the others have just been created."""
    pod = auth.BoundPod("nice", "pod-0", "uid-0")
    known: set[str] = set()

    async def review(token: str) -> auth.BoundPod:
        return pod

    def find_pod(namespace: str, name: str, uid: str) -> str | None:
        return "job" if uid in known else None

    authenticate = auth.TokenAuthenticator(review, find_pod, find_seconds=60, unseen=8)
    settings = replace(FAST, authenticate_seconds=60)
    async with running_hub(settings, authenticate=authenticate) as running, contextlib.AsyncExitStack() as stack:
        for number in range(20):
            peer = await stack.enter_async_context(connecting(Door("127.0.0.1", running.port, source="127.0.0.2")))
            await peer.request(make_token("nice", "pod-0", f"guess-{number}"), "Upgrade: websocket")
        await eventually(lambda: running.hub.counts["refused:503"] == 16)
        async with connecting(Door("127.0.0.1", running.port)) as peer:
            coming = asyncio.create_task(peer.upgrade(make_token("nice", "pod-0", "uid-0")))
            await eventually(lambda: coming.done() or running.hub.places["strangers"][0] == 5)
            known.add("uid-0")
            assert await coming == 101


@pytest.mark.parametrize("token", ["", "nice/pod-0"], ids=["unauthenticated", "authenticated"])
async def test_a_request_with_a_body_that_never_ends_is_closed_at_once(token: str) -> None:
    """The hub's own patience is a minute here."""
    async with running_hub(replace(FAST, hello_seconds=60), authenticate=by_namespace) as running:
        async with connecting(Door("127.0.0.1", running.port)) as peer:
            await peer.request(token, "Content-Length: 1000000", body=b"x")
            assert await peer.status() in (400, 401)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):
                    await peer.closed()
        await eventually(lambda: running.hub.pending_sockets == 0)


async def test_what_is_answered_does_not_keep_its_socket() -> None:
    async with running_hub(replace(FAST, hello_seconds=60)) as running, aiohttp.ClientSession() as session:
        async with session.get(running.url.removesuffix(wire.PATH) + "/nothing") as response:
            assert response.status == 404 and response.headers["Connection"] == "close"
        await eventually(lambda: running.hub.pending_sockets == 0)


async def test_diagnoses_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """By 155 of them, of 16,000 bytes each, from one pod; another pod of the job is still heard."""
    settings = replace(FAST, message_burst=10_000, timeout_min=30)
    caplog.set_level(logging.WARNING)
    async with (
        running_hub(settings) as running,
        seated(running, heartbeat=None) as client,  # on a busy machine a pong may be late behind so much text
        seated(running, "digits-worker-1", heartbeat=None) as other,
    ):
        text = ("x" * 15 + "\n") * 1000
        for _ in range(155):
            await client.say(wire.Diagnosis(kind="hang", text=text))
        await eventually(lambda: running.hub.counts["message:diagnosis"] == 155)
        said = sum(len(record.getMessage()) for record in caplog.records)
        assert 0 < said <= 80 * 1024
        assert running.hub.counts["unlogged"] > 140
        await other.say(wire.Diagnosis(kind="hang", text="a second one"))
        await eventually(lambda: "a second one" in caplog.text)
    assert {job_lines.find_namespace(record) for record in caplog.records} == {JOB[0]}, "its jobs share a budget"


async def test_newcomers_of_a_crowded_address_make_room_for_those_of_others() -> None:
    """Fifty silent sockets of one address; the one of another address, older than most of them, stays."""
    settings = replace(FAST, hello_seconds=60, max_pending_sockets=20)
    async with running_hub(settings, authenticate=by_namespace) as running, contextlib.AsyncExitStack() as stack:
        slow = await stack.enter_async_context(connecting(Door("127.0.0.1", running.port, source="127.0.0.2")))
        await eventually(lambda: running.hub.pending_sockets == 1)
        for _ in range(50):
            await stack.enter_async_context(connecting(Door("127.0.0.1", running.port)))
        await eventually(lambda: running.hub.pending_sockets == 20)
        assert await slow.upgrade("nice/pod-0") == 101


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Nobody looks for cycles, as in an operator that runs for months."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_sockets() -> int:
    return sum(type(one) is web.WebSocketResponse for one in gc.get_objects())


@pytest.mark.parametrize("is_dropped", [True, False], ids=["dropped", "closed by the hub"])
async def test_a_connection_that_has_ended_leaves_nothing_in_memory(is_dropped: bool) -> None:
    async with running_hub() as running:
        with without_collector():
            before = count_sockets()
            for _ in range(3):
                async with connecting(Door("127.0.0.1", running.port)) as peer:
                    assert await peer.upgrade("digits/digits-worker-0") == 101
                    assert b"welcome" in await peer.hello()
                    assert count_sockets() == before + 1
                    if not is_dropped:
                        await peer.say({"v": 1, "type": "nonsense"})
                        await peer.closed()
                await eventually(lambda: count_sockets() == before)


async def test_whoever_has_said_nothing_yet_is_sent_away_when_the_hub_stops() -> None:
    """Otherwise its handshake goes on beside the end of the process, and the connection has nobody who serves it."""
    async with running_hub(context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await eventually(lambda: running.hub.pending_sockets == 1)
        await running.hub.stop()
        assert running.hub.pending_sockets == 0
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_the_agents_of_other_namespaces_count_as_those_of_the_own_one_up_to_their_number() -> None:
    settings = replace(
        FAST, heartbeat_min=1.0, heartbeat_max=9.0, connections_per_heartbeat_second=1.0, count_seconds=0.0
    )
    async with (
        running_hub(settings, authenticate=by_namespace) as running,
        contextlib.AsyncExitStack() as stack,
    ):
        for i in range(5):
            await stack.enter_async_context(seated(running, f"pod-{i}", job="evil"))
        told: list[float] = []
        for i in range(2):
            client = await stack.enter_async_context(connected(running, f"pod-{i}", job="nice"))
            await client.hello()
            welcome = await client.hear()
            assert isinstance(welcome, wire.Welcome)
            told.append(welcome.heartbeat_seconds)
        assert told == [2, 4]
