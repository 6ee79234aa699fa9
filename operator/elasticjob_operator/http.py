"""Health, readiness and metrics, on a port of their own: neither TLS nor agents are here.

`/healthz` says that the event loop turns, nothing else: a failing API server is no reason to be restarted.
`/readyz` is up to the caller. `/metrics` is for Prometheus.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import exposition

from elasticjob_operator.metrics import Metrics

_LAG_EVERY = 1.0


class HttpServer:
    """`ready` returns "" where all is well, else what is missing."""

    def __init__(self, metrics: Metrics, ready: Callable[[], str], *, clock: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._ready = ready
        self._clock = clock
        self._runner: web.AppRunner | None = None
        self._lag: asyncio.Task[None] | None = None

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._expose)
        return app

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port."""
        self._runner = web.AppRunner(self.application(), access_log=None, keepalive_timeout=15.0, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self._lag = asyncio.create_task(self._measure_lag())
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        if self._lag is not None:
            self._lag.cancel()
            await asyncio.gather(self._lag, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_EVERY
            await asyncio.sleep(_LAG_EVERY)
            self._metrics.loop_lag_seconds.observe(max(0.0, loop.time() - due))

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        missing = self._ready()
        return web.Response(text=(missing or "ok") + "\n", status=503 if missing else 200)

    async def _expose(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.expose(self._clock()), headers={"Content-Type": exposition.CONTENT_TYPE_LATEST}
        )
