"""Serves health, readiness and metrics on a separate port, without TLS and not for agents.

`/healthz` only shows that the event loop runs: a failing API server must not restart the operator. The caller decides
about `/readyz`. `/metrics` is for Prometheus; it may have its own address, or be turned off.

Each connection gets one request and a few seconds. The number of connections is bounded: if there are too many, the
oldest one of the address with the most connections is closed, so that idle clients cannot block probes.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from aiohttp import web
from prometheus_client import exposition

from elasticjob_operator import numerals
from elasticjob_operator.hub import handshake
from elasticjob_operator.rest import http_log
from elasticjob_operator.run.metrics import Metrics

OFF: Final = "off"
PATIENCE: Final = 10.0  # seconds for a request and its response
_SWEEP_SECONDS: Final = 1.0
_PAGE_SECONDS: Final = 1.0  # for which a rendered page of metrics is reused
MOST_PAGE_BYTES: Final = 2**25  # of all pages that somebody reads; with more, one is reused for as long as it is read
_PIECE_BYTES: Final = 32 * 1024  # of a page, which waits until the reader has taken the ones before

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse `host:port`; None for "" (the port of the probes) and "off". Raises ValueError for anything else."""
    if text in ("", OFF):
        return None
    host, separator, port = text.rpartition(":")
    number = numerals.read_count(port, 65535)
    if not separator or number is None:
        raise ValueError(f"{text!r} must be host:port or {OFF!r}")
    return host.strip("[]") or "0.0.0.0", number  # noqa: S104 - as the port of the probes


class _Page:
    """A rendered page, in memory for as long as somebody reads it."""

    def __init__(self, parts: tuple[bytes, ...], at: float) -> None:
        self.parts, self.at = parts, at
        self.size = sum(map(len, parts))


class HttpServer:
    """`ready` returns "" if the operator is ready, otherwise what is missing."""

    def __init__(
        self,
        metrics: Metrics,
        ready: Callable[[], str],
        *,
        clock: Callable[[], float] = time.time,
        capacity: int = 64,
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._clock = clock
        self._capacity = capacity
        self._listeners: list[_Listener] = []
        self._page = _Page((), float("-inf"))
        self._pages = weakref.WeakSet[_Page]()  # those in memory
        self._rendering = asyncio.Lock()

    async def start(self, host: str, port: int, *, metrics_address: str = "") -> int:
        """Start listening; return the port. `metrics_address`: see `parse_address`."""
        routes: dict[str, Handler] = {"/healthz": self._healthz, "/readyz": self._readyz}
        pages: dict[str, Handler] = {"/metrics": self._expose}
        apart = parse_address(metrics_address)
        if apart is not None:
            await self._listen(*apart, pages)
        elif metrics_address != OFF:
            routes |= pages
        return await self._listen(host, port, routes)

    @property
    def ports(self) -> list[int]:
        """The ports it listens on: the separate port for metrics first, if there is one."""
        return [listener.port for listener in self._listeners]

    @property
    def connections(self) -> int:
        return sum(len(listener) for listener in self._listeners)

    async def stop(self) -> None:
        for listener in self._listeners:
            await listener.stop()
        self._listeners.clear()

    async def _listen(self, host: str, port: int, routes: dict[str, Handler]) -> int:
        listener = _Listener(routes, self._capacity)
        self._listeners.append(listener)
        return await listener.start(host, port)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        missing = self._ready()
        return web.Response(text=(missing or "ok") + "\n", status=503 if missing else 200)

    async def _expose(self, request: web.Request) -> web.Response:
        async with self._rendering:
            now, page = self._clock(), self._page
            is_full = sum(one.size for one in self._pages) + page.size > MOST_PAGE_BYTES
            # Never for longer: who reads slowly is cut off by then, so two pages are read at most, and one is made.
            if not 0 <= now - page.at < (PATIENCE if is_full else _PAGE_SECONDS):
                page = self._page = _Page(await self._metrics.render(now), now)
                self._pages.add(page)
        headers = {"Content-Type": exposition.CONTENT_TYPE_LATEST, "Content-Length": str(page.size)}
        return web.Response(body=_in_pieces(page), headers=headers)


async def _in_pieces(page: _Page) -> AsyncIterator[bytes]:
    """Those who read slowly share the page: as one piece, it would be copied for each of them."""
    for part in page.parts:
        for start in range(0, len(part), _PIECE_BYTES):
            yield part[start : start + _PIECE_BYTES]


class _Listener:
    """One port."""

    def __init__(self, routes: dict[str, Handler], capacity: int) -> None:
        self._routes = routes
        self._capacity = capacity
        self._runner: web.AppRunner | None = None
        self._listener: handshake.HandshakeListener | None = None
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.port = 0

    def __len__(self) -> int:
        return len(self._listener) if self._listener is not None else 0

    async def start(self, host: str, port: int) -> int:
        app = web.Application(client_max_size=1024)
        for path, handler in self._routes.items():
            app.router.add_get(path, handler)
        app.on_response_prepare.append(handshake.close_after)
        logger = http_log.quiet_logger(f"{__name__}.server")
        self._runner = web.AppRunner(app, access_log=None, lingering_time=0.0, shutdown_timeout=1.0, logger=logger)
        await self._runner.setup()
        assert self._runner.server is not None
        # `enter` is never called, so the listener's limits apply to every connection, including slow readers.
        self._listener = handshake.HandshakeListener(
            self._runner.server, lambda: None, patience=PATIENCE, capacity=self._capacity
        )
        self._server = await asyncio.get_running_loop().create_server(self._listener.accept, host, port, backlog=1024)
        self._sweeping = asyncio.create_task(self._sweep_forever(self._listener))
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._listener is not None:
            self._listener.close()

    async def _sweep_forever(self, watched: handshake.HandshakeListener) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            watched.sweep(asyncio.get_running_loop().time())
