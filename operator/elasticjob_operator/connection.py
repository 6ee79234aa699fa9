"""One agent's WebSocket: reading within limits, writing without ever waiting for the peer.

Nothing that arrives may raise. A write goes to the socket's buffer at once; a peer that does not read has its
connection closed by the sweep, so no agent can hold up another. There is no queue: a directive replaces the
one before it, so what waits is only ever the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from elasticjob_operator import frames, limits, wire

CLOSE_GOING_AWAY: Final = 1001
CLOSE_TOO_BIG: Final = 1009
CLOSE_RESTART: Final = 1012
CLOSE_MALFORMED: Final = 4400
CLOSE_NO_HELLO: Final = 4408
CLOSE_REPLACED: Final = 4409
CLOSE_RATE: Final = 4429


@dataclass(frozen=True, slots=True)
class Farewell:
    """Why the hub closes a connection: what it counts, what it says, and the close code."""

    reason: str
    close: int
    error: frames.Problem | None = None


# An error tells an agent to give up, so there is none where trying again is right.
NOT_LEADER = Farewell("not-leader", CLOSE_RESTART)
SUPERSEDED = Farewell("superseded", CLOSE_REPLACED)
NO_HELLO = Farewell("no-hello", CLOSE_NO_HELLO)
RECONNECTED = Farewell("reconnected", CLOSE_REPLACED)
REPLACED = Farewell("replaced", CLOSE_REPLACED, frames.Problem("replaced", "another connection of this pod took over"))
RATE = Farewell("rate", CLOSE_RATE, frames.Problem("rate", "too many messages; send at most a few a second"))


class Connection:
    """The transport side of an agent. It knows nothing of jobs."""

    __slots__ = (
        "_bucket",
        "_settings",
        "farewell",
        "heard",
        "heartbeat",
        "sent",
        "sizes",
        "stuck",
        "timeout",
        "transport",
        "ws",
    )

    def __init__(self, settings: limits.HubSettings, heartbeat: float, now: float, bucket: limits.Bucket) -> None:
        self.ws = web.WebSocketResponse(
            timeout=settings.close_seconds,
            autoclose=False,
            autoping=False,  # aiohttp would answer pings unseen, and they are the heartbeat
            compress=False,  # costs memory for each connection, and a small frame could become a huge one
            # A little above the limit, so that the usual offender hears why; far above, aiohttp closes (1009).
            max_msg_size=2 * settings.max_message_bytes,
            writer_limit=sys.maxsize,  # never wait for the peer: `stuck` looks after those who do not read
        )
        self.transport: asyncio.WriteTransport | None = None
        self.heard = now
        self.heartbeat = heartbeat
        self.timeout = limits.timeout_seconds(heartbeat, settings)
        self.sent: wire.Directive | None = None
        self.sizes = False  # whether the agent understands sizes in place of members
        self.stuck: float | None = None
        self.farewell: Farewell | None = None
        self._settings = settings
        self._bucket = bucket  # the pod's, not the connection's: who comes again has said no less

    async def open(self, request: web.Request) -> None:
        await self.ws.prepare(request)
        transport = request.transport
        if transport is None or self.farewell is not None:
            raise ConnectionResetError("the peer has gone")
        self.transport = transport

    @property
    def open_for_sending(self) -> bool:
        return self.farewell is None and not self.ws.closed

    def unsent(self) -> int:
        """Bytes that wait for the peer to read."""
        if self.transport is None or self.transport.is_closing():
            return 0  # a TLS transport that is gone cannot even be asked
        return self.transport.get_write_buffer_size()

    async def receive(self) -> frames.Message | Farewell | None:
        """The next message; a farewell where the peer broke a rule; None at the end."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        while True:
            frame = await self.ws.receive()
            if _over(frame):
                return None
            self.heard = loop.time()
            cost = 1.0 + len(frame.data or ()) // settings.message_bytes_per_token
            if not self._bucket.take(settings.messages_per_second, settings.message_burst, self.heard, cost):
                self._bucket.level = 0.0  # what was too large must not leave room for what is small
                return RATE
            if frame.type is WSMsgType.PING:
                if self.unsent() <= settings.max_buffer_bytes:
                    await self.ws.pong(frame.data)
                continue
            if frame.type is WSMsgType.PONG:
                continue
            if frame.type is not WSMsgType.TEXT:
                return _malformed(frames.Problem("malformed", "message: a text frame is expected"))
            return self._decode(frame.data)

    def _decode(self, text: str) -> frames.Message | Farewell:
        limit = self._settings.max_message_bytes
        if len(text) > limit or len(text.encode(errors="replace")) > limit:
            problem = frames.Problem("too-large", f"message: larger than {limit} bytes")
            return Farewell("too-large", CLOSE_TOO_BIG, problem)
        message = frames.decode(text)
        return _malformed(message) if isinstance(message, frames.Problem) else message

    async def send(self, frame: bytes) -> None:
        """Hands the frame to the socket's buffer; returns at once."""
        await self.ws.send_frame(frame, WSMsgType.TEXT)

    async def close(self, farewell: Farewell) -> None:
        """Says why and asks the peer to close. Whatever it does, the connection is over soon."""
        self.farewell = farewell
        with contextlib.suppress(ConnectionError):
            if self.unsent() > self._settings.max_buffer_bytes:
                self.abort()
            if farewell.error is not None:
                error = wire.Error(code=farewell.error.code, message=farewell.error.message)
                await self.send(frames.encode(error))
            # Not `ws.close`: it ends the connection under the peer's answer where somebody else is reading.
            await self.ws.send_frame(farewell.close.to_bytes(2, "big"), WSMsgType.CLOSE)
        asyncio.get_running_loop().call_later(self._settings.close_seconds, self.abort)

    async def drain(self) -> None:
        """After `close`: reads until the peer has answered or its time is over."""
        while not _over(await self.ws.receive()):
            pass
        self.abort()

    def abort(self) -> None:
        """Ends the connection without a word: the peer does not listen."""
        if self.transport is not None:
            self.transport.abort()


def _over(frame: WSMessage) -> bool:
    return frame.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)


def _malformed(problem: frames.Problem) -> Farewell:
    return Farewell(problem.code, CLOSE_MALFORMED, problem)
