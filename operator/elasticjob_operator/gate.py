"""The door of the hub: accepts sockets, makes TLS, and drops those that say nothing.

aiohttp waits for a request's head as long as the peer likes, so an open socket is enough to take its memory.
Here a socket that has not sent a whole request in time is closed, and where too many wait, the oldest of them
goes first: an agent needs milliseconds for what a stranger drags out.

TLS is made here because asyncio's own server takes a read buffer of 256 KiB for each connection, which is five
times what everything else of an agent costs; the messages are small, 4 KiB do.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from asyncio import sslproto
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import http_exceptions, web


class _SmallTLS(sslproto.SSLProtocol):
    max_size = 4 * 1024
    raw: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast("asyncio.WriteTransport", transport)  # uvloop's are no subclasses
        super().connection_made(transport)


@dataclass(slots=True, eq=False)
class _Newcomer:
    since: float
    handler: web.RequestHandler
    tls: _SmallTLS | None

    def abort(self) -> None:
        transport = self.tls.raw if self.tls is not None else self.handler.transport
        if transport is not None:
            transport.abort()


class Gate:
    """Sockets between their acceptance and their first whole request."""

    def __init__(
        self,
        server: web.Server,
        context: Callable[[], ssl.SSLContext | None],
        *,
        patience: float,
        capacity: int,
    ) -> None:
        self._server = server
        self._context = context
        self._patience = patience
        self._capacity = capacity
        self._newcomers: dict[web.RequestHandler, _Newcomer] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._newcomers)

    def accept(self) -> asyncio.BaseProtocol:
        """The protocol factory for `loop.create_server`."""
        loop = asyncio.get_running_loop()
        handler = self._server()
        context = self._context()
        tls = None
        if context is not None:
            tls = _SmallTLS(
                loop,
                handler,
                context,
                None,  # type: ignore[arg-type]  # nobody waits for the handshake
                server_side=True,
                ssl_handshake_timeout=math.ceil(self._patience),
                ssl_shutdown_timeout=1,
            )
        if len(self._newcomers) >= self._capacity:
            self._drop(next(iter(self._newcomers.values())))
        self._newcomers[handler] = _Newcomer(loop.time(), handler, tls)
        return tls if tls is not None else handler

    def enter(self, request: web.BaseRequest) -> None:
        """A whole request has arrived: from now on its handler looks after the time."""
        self._newcomers.pop(request.protocol, None)

    def sweep(self, now: float) -> None:
        """Drops those that have had their time. They stand in the order of their arrival."""
        for newcomer in list(self._newcomers.values()):
            if now - newcomer.since <= self._patience:
                return
            self._drop(newcomer)

    def _drop(self, newcomer: _Newcomer) -> None:
        self._newcomers.pop(newcomer.handler, None)
        newcomer.abort()
        self.dropped += 1


class _NoGarbage(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, http_exceptions.HttpProcessingError)


def quiet_logger(name: str) -> logging.Logger:
    """For aiohttp's server, which logs a traceback and the bytes of every request that is no HTTP.

    A stranger must not fill our log, and what it sends does not belong there. Other errors are logged.
    """
    logger = logging.getLogger(name)
    if not any(isinstance(one, _NoGarbage) for one in logger.filters):
        logger.addFilter(_NoGarbage())
    return logger
