"""Accepts sockets and performs TLS handshakes, with limits so that many clients from one address cannot block others.

aiohttp waits for a request's headers for as long as the peer likes, so open sockets alone could exhaust memory. Here a
socket that has not sent a complete request in time is closed. If too many are waiting, the oldest one of the address
with the most sockets is closed: real agents finish in milliseconds, so only stalled clients hit this limit.

Until then a socket has a few bytes: OpenSSL would keep 128 KiB of a ClientHello, and aiohttp a megabyte of headers. So
TLS is given what arrives piece by piece until its handshake is over, and has the socket to itself only then.

The first bytes of a socket are expensive, because they start a TLS handshake. So addresses take turns, with a few
handshakes per iteration of the event loop: a storm of connections costs a joiner one round, and connected agents
nothing.

TLS is uvloop's, begun here so that a socket waits for its turn before it costs anything. asyncio's own, in Python,
takes half as much CPU again for a connection, and touches a read buffer of 256 KiB in each.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web
from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]  # its types leave it out

WORDS_A_TURN: Final = 4
MOST_FIRST: Final = 16 * 1024  # bytes of a handshake, and of a request: a token has half as much, others a tenth
MOST_EARLY: Final = 64 * 1024  # bytes between a request and its answer, for which a client waits
READ_BYTES: Final = 16 * 1024  # of TLS at once, as much as a record has: its buffer of 256 KiB keeps what it touched
LONG_WORD: Final = 16 * 1024  # bytes: so many at once wait for a turn too, since a frame can have as few as six


class Visitor:
    """A socket between its acceptance and its first complete request."""

    raw: asyncio.Transport | None = None
    since = 0.0
    address = ""
    may_speak = False
    word = b""  # what has arrived and waits for its turn
    meter: Callable[[int], bool] | None = None  # whether so many more bytes may arrive
    heard = 0  # bytes since the meter has changed

    def __init__(self, listener: HandshakeListener, handler: web.RequestHandler) -> None:
        self.listener = listener
        self.handler = handler
        self.begin_meter(_allow(MOST_FIRST))

    def hear(self, data: bytes) -> None:
        """Pass the peer's bytes on, unless they are too many; many at once when it is this address's turn."""
        self.heard += len(data)
        if self.meter is not None and not self.meter(len(data)):
            self.abort()
        elif self.word or not self.may_speak or len(data) > LONG_WORD:
            self.wait(data)
        else:
            self.handler.data_received(data)

    def begin_meter(self, meter: Callable[[int], bool]) -> None:
        """Let this one measure what comes from now on."""
        self.meter, self.heard = meter, 0

    def change_meter(self, meter: Callable[[int], bool]) -> None:
        """Let this one measure what has come since the last one was set, and what comes from now on."""
        self.meter = meter
        if self.heard and not meter(self.heard):
            self.abort()

    def end_meter(self) -> None:
        """Nothing may come any more."""
        self.meter = _allow(0)

    def arrive(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self.listener.arrived(self)

    def wait(self, data: bytes) -> None:
        """Process the bytes when it is this address's turn."""
        assert self.raw is not None
        if not self.word:
            self.raw.pause_reading()
            self.listener.queue(self)
        self.word += data

    def rest(self) -> None:
        """Read on when it is this address's turn; if TLS has stopped that itself, it begins again by itself."""
        if self.may_speak and not self.word and self.raw is not None and self.raw.is_reading():
            self.raw.pause_reading()
            self.listener.queue(self)

    def proceed(self) -> None:
        word, self.word = self.word, b""
        if not word:
            pass
        elif self.may_speak:
            self.handler.data_received(word)
        else:
            self.may_speak = True
            self.begin(word)
        if self.raw is not None and not self.raw.is_closing():
            self.raw.resume_reading()

    def begin(self, word: bytes) -> None:
        """Process the first bytes."""
        self.handler.data_received(word)

    def abort(self) -> None:
        if self.raw is not None:
            self.raw.abort()

    def leave(self) -> None:
        """The socket has been closed."""
        self.meter = None  # which knows the connection: nobody else would end the cycle
        self.listener.gone(self)


class _Plain(Visitor, asyncio.Protocol):
    """Wraps aiohttp's protocol until the first complete request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.arrive(transport)
        self.handler.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.leave()
        self.handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.hear(data)

    def eof_received(self) -> None:
        self.handler.eof_received()

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()


class _Hushed(Visitor, asyncio.Protocol):
    """Keeps the first bytes of a TLS client until its turn, and only then creates what TLS needs.

    It passes on the bytes of the handshake, of which there may be a few, and then leaves the socket to TLS.
    """

    def __init__(
        self, listener: HandshakeListener, handler: web.RequestHandler, context: ssl.SSLContext, patience: float
    ) -> None:
        super().__init__(listener, handler)
        self._context = context
        self._patience = patience
        self._tls: _TLS | None = None
        self._may_begin = _allow(MOST_FIRST)  # of TLS: the other meter is of what it has decrypted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.arrive(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.leave()
        tls, self._tls = self._tls, None
        if tls is not None:
            tls.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._may_begin(len(data)):
            self.abort()
        elif self._tls is None:
            self.wait(data)
        else:
            self._tls.take(data)

    def eof_received(self) -> None:
        if self._tls is not None:
            self._tls.eof_received()

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()

    def begin(self, word: bytes) -> None:
        assert self.raw is not None
        self._tls = tls = _TLS(
            asyncio.get_running_loop(),
            _Inside(self),
            self._context,
            None,  # no task waits for the handshake
            server_side=True,
            ssl_handshake_timeout=math.ceil(self._patience),
            ssl_shutdown_timeout=1,
        )
        tls.visitor = self
        tls.connection_made(self.raw)
        tls.take(word)

    def let_tls(self) -> None:
        """The handshake is over: what arrives from now on goes to TLS without a detour."""
        if self.raw is not None and self._tls is not None and not self.raw.is_closing():
            self.raw.set_protocol(_Reader(self._tls))
            self._tls = None


class _Inside:
    """The handler, to which TLS passes what it has decrypted."""

    def __init__(self, visitor: _Hushed) -> None:
        self._visitor = visitor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._visitor.handler, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._visitor.let_tls()
        self._visitor.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._visitor.hear(data)


class _TLS(SSLProtocol):  # type: ignore[misc]  # uvloop has no types for it
    """uvloop's TLS, which tells the listener of the socket's end."""

    visitor: Visitor

    def get_buffer(self, size: int) -> memoryview:
        return cast("memoryview", super().get_buffer(size)[:READ_BYTES])

    def buffer_updated(self, size: int) -> None:
        super().buffer_updated(size)
        if size == READ_BYTES:  # there is more: others have the loop before that
            self.visitor.rest()

    def take(self, data: bytes) -> None:
        """Read what somebody else has received."""
        while data:
            room = self.get_buffer(len(data))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]

    def connection_lost(self, exc: BaseException | None) -> None:
        self.visitor.leave()
        super().connection_lost(exc)


class _Reader(asyncio.BufferedProtocol):
    """Gives TLS what it reads. Into its own TLS uvloop reads without a question, as much as there is."""

    def __init__(self, tls: _TLS) -> None:
        self._tls = tls

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._tls.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._tls.buffer_updated(nbytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._tls.connection_lost(exc)

    def eof_received(self) -> None:
        self._tls.eof_received()

    def pause_writing(self) -> None:
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        self._tls.resume_writing()


def _allow(left: int) -> Callable[[int], bool]:
    """A meter that lets so many bytes pass."""

    def take(size: int) -> bool:
        nonlocal left
        left -= size
        return left >= 0

    return take


class HandshakeListener:
    """Sockets that have not sent a complete request.

    A socket stays here until it is closed, unless `enter` accepts it. So a server that never calls `enter` limits all
    of its sockets, in number and in time.
    """

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
        self._visitors: dict[web.RequestHandler, Visitor] = {}  # in order of arrival, like those below
        self._addresses: dict[str, dict[Visitor, None]] = {}
        self._turns: dict[str, deque[Visitor]] = {}  # the address with the next turn is first
        self._closed = False
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._visitors)

    def accept(self) -> asyncio.BaseProtocol:
        """The protocol factory for `loop.create_server`."""
        context = self._context()
        if context is not None:
            return _Hushed(self, self._server(), context, self._patience)
        return _Plain(self, self._server())

    def arrived(self, visitor: Visitor) -> None:
        """Register a new socket. If there are too many, close one of the address that has the most."""
        if self._closed:  # it was accepted in the turn of the loop in which the listener was closed
            visitor.abort()
            return
        visitor.since = asyncio.get_running_loop().time()
        self._visitors[visitor.handler] = visitor
        self._addresses.setdefault(visitor.address, {})[visitor] = None
        if len(self._visitors) > self._capacity:
            crowd = max(self._addresses, key=lambda address: len(self._addresses[address]))
            self._drop(next(iter(self._addresses[crowd])))

    def gone(self, visitor: Visitor) -> None:
        if self._visitors.pop(visitor.handler, None) is None:
            return
        same = self._addresses[visitor.address]
        del same[visitor]
        if not same:
            del self._addresses[visitor.address]

    def enter(self, request: web.BaseRequest) -> Visitor | None:
        """Release a socket whose complete request has arrived: its handler now enforces the timeouts."""
        visitor = self._visitors.get(request.protocol)
        if visitor is not None:
            self.gone(visitor)
            visitor.begin_meter(_allow(MOST_EARLY))
        return visitor

    def send_away(self, visitor: Visitor | None) -> None:
        """Take a rejected socket back until it is closed."""
        if visitor is not None and visitor.raw is not None and not visitor.raw.is_closing():
            self.arrived(visitor)

    def queue(self, visitor: Visitor) -> None:
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._take_turns)
        self._turns.setdefault(visitor.address, deque()).append(visitor)

    def _take_turns(self) -> None:
        heard = 0
        while self._turns and heard < WORDS_A_TURN:
            address, waiting = next(iter(self._turns.items()))
            visitor = waiting.popleft()
            del self._turns[address]
            if waiting:
                self._turns[address] = waiting
            if visitor.raw is not None and not visitor.raw.is_closing():
                visitor.proceed()
                heard += 1
        if self._turns:
            asyncio.get_running_loop().call_soon(self._take_turns)

    def sweep(self, now: float) -> None:
        """Close the sockets whose time is up. They are in order of arrival."""
        for visitor in list(self._visitors.values()):
            if now - visitor.since <= self._patience:
                return
            self._drop(visitor)

    def close(self) -> None:
        """Send everybody away who has no complete request yet, and who comes from now on."""
        self._closed = True
        for visitor in list(self._visitors.values()):
            self.gone(visitor)
            visitor.abort()

    def _drop(self, visitor: Visitor) -> None:
        self.gone(visitor)
        visitor.abort()
        self.dropped += 1


async def close_after(request: web.Request, response: web.StreamResponse) -> None:
    """For `on_response_prepare`: one request per socket, so that a socket cannot stay open after its response."""
    if not isinstance(response, web.WebSocketResponse):
        response.force_close()
        response.headers["Connection"] = "close"  # the headers have been prepared already
