"""Who connects to the dashboard and says nothing, or not all: sockets of others leave room for those that ask."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import pytest

from dashboard.conftest import visiting
from elasticjob_operator.client import Client
from elasticjob_operator.dashboard import guard, server
from elasticjob_operator.dashboard.server import Dashboard

pytestmark = pytest.mark.timeout(120)

Shown = tuple[Dashboard, str]
WORDS = (b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: a.localhost\r\nCookie: ")  # never a whole request
PATIENCE = 30.0  # for what happens at once on a machine that is not busy


@contextlib.asynccontextmanager
async def connected(port: int, words: list[bytes]) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that have said this much each."""
    opened = []
    try:
        for word in words:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append((reader, writer))
            writer.write(word)
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


async def ends(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


async def test_silent_connections_make_room_for_those_that_ask(shown: Shown) -> None:
    base, port = shown[1].partition("/?")[0], urlsplit(shown[1]).port or 0
    async with visiting() as session:
        await session.get(shown[1])
        async with session.get(f"{base}/events", timeout=aiohttp.ClientTimeout(total=None)) as stream:
            silent = [WORDS[i % len(WORDS)] for i in range(server.MOST_CONNECTIONS + 50)]
            async with connected(port, silent) as readers, asyncio.timeout(PATIENCE):
                assert all(await asyncio.gather(*map(ends, readers[:50]))), "the oldest made room"
                async with session.get(base + "/") as answer:
                    assert answer.status == 200
                assert (await stream.content.readline()).startswith(b"data: "), "an answer that goes on is left alone"
                assert not stream.content.at_eof()


async def test_a_connection_without_a_request_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.5)
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(Dashboard(client).serve("127.0.0.1", 0))
        readers = await stack.enter_async_context(connected(urlsplit(address).port or 0, list(WORDS)))
        async with asyncio.timeout(PATIENCE):
            assert all(await asyncio.gather(*map(ends, readers)))


async def test_a_form_that_does_not_arrive_is_not_waited_for(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FORM_SECONDS", 0.5)
    dashboard, address = shown
    host, port = urlsplit(address).netloc, urlsplit(address).port or 0
    head = (
        f"POST /jobs/default/digits/suspend HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
        f"Cookie: {guard.cookie_name(port)}={dashboard.keys.session}\r\nContent-Length: 100\r\n\r\nkey="
    )
    async with connected(port, [head.encode()]) as (reader,), asyncio.timeout(PATIENCE):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
