"""One agent's WebSocket: reads within limits, and writes without waiting for the peer.

It owns all of the connection's state: what was sent, since when the peer is silent or slow, and why it was closed.

No received message may raise. Writes go to the socket's buffer at once; the sweep closes the connection of a peer that
does not read, so no agent can delay another. There is no queue: a directive replaces the one before it, so only the
latest one is ever pending.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiohttp import WSMsgType, web
from aiohttp.http import WSMessage, WSMessageTextBytes

from elasticjob_operator import ratelimit
from elasticjob_operator.api import wire
from elasticjob_operator.hub import frames, limits

CLOSE_GOING_AWAY: Final = 1001
CLOSE_NO_TEXT: Final = 1007
CLOSE_TOO_BIG: Final = 1009
CLOSE_RESTART: Final = 1012
CLOSE_TRY_LATER: Final = 1013
CLOSE_MALFORMED: Final = 4400
CLOSE_NO_HELLO: Final = 4408
CLOSE_REPLACED: Final = 4409
CLOSE_RATE: Final = 4429
_MOST_AFTER: Final = 200  # frames of a peer that has yet to read that its connection is over
_MARGIN: Final = 0.01  # seconds: an answer that has just arrived is read first


@dataclass(frozen=True, slots=True)
class CloseReason:
    """Why the hub closes a connection: the name of the counter, the error sent, and the close code."""

    reason: str
    close: int
    error: frames.Problem | None = None


# An error makes an agent give up, so reasons after which it should retry have none.
NOT_LEADER = CloseReason("not-leader", CLOSE_RESTART)
SUPERSEDED = CloseReason("superseded", CLOSE_REPLACED)
NO_HELLO = CloseReason("no-hello", CLOSE_NO_HELLO)
RECONNECTED = CloseReason("reconnected", CLOSE_REPLACED)
REPLACED = CloseReason(
    "replaced", CLOSE_REPLACED, frames.Problem("replaced", "replaced by another connection of this pod")
)
NO_TEXT = CloseReason("no-text", CLOSE_NO_TEXT)
CROWDED = CloseReason("crowded", CLOSE_TRY_LATER)
RATE = CloseReason("rate", CLOSE_RATE, frames.Problem("rate", "too many messages; send at most a few a second"))


class Connection:
    """The transport of one agent. It does not know about jobs."""

    __slots__ = (
        "_arrived",
        "_asked",
        "_bucket",
        "_bytes",
        "_heard",
        "_sent",
        "_settings",
        "_sizes",
        "_stuck_since",
        "_taken",
        "_transport",
        "_wait_in_line",
        "_written",
        "arriving",
        "carrier",
        "charged",
        "close_reason",
        "heartbeat",
        "size",
        "timeout",
        "ws",
    )

    def __init__(
        self,
        settings: limits.HubSettings,
        heartbeat: float,
        now: float,
        bucket: ratelimit.Bucket,
        bytes_bucket: ratelimit.Bucket,
        wait_in_line: Callable[[], Awaitable[None]],
    ) -> None:
        """The buckets, of messages and of bytes, are the pod's: a reconnect does not refill them.

        In the line, which is the hub's, a long message waits for those of others.
        """
        self.ws = web.WebSocketResponse(
            timeout=settings.close_seconds,
            autoclose=False,
            autoping=False,  # aiohttp would answer pings internally, and they are the heartbeat
            decode_text=False,  # a text may take four times the bytes that it was sent in, and waits for its turn
            compress=False,  # costs memory per connection, and a small frame could expand to a huge one
            # Slightly above the limit, so that most violations get an error; far above it, aiohttp closes (1009).
            max_msg_size=2 * settings.max_message_bytes,
            writer_limit=sys.maxsize,  # never wait for the peer: `is_slow` detects peers that do not read
        )
        self.heartbeat = heartbeat
        self.timeout = limits.timeout_seconds(heartbeat, settings)
        self.close_reason: CloseReason | None = None  # set once the hub has closed the connection
        self.size = 0  # of the last message
        self.arriving = 0  # bytes of messages that have not ended, or wait to be read
        self.charged = 0  # of these, those that take room of the namespace
        self._transport: asyncio.WriteTransport | None = None
        self.carrier: asyncio.WriteTransport | None = None  # of its TLS, which passes on what it is given at once
        self._heard = now  # when the last frame was read
        self._arrived = now  # when the last bytes came: they may wait until those of others have been read
        self._asked = 0.0  # when the hub has sent its last ping
        self._sent: wire.Directive | None = None
        self._sizes = False  # whether the agent supports sizes instead of members
        self._written = 0  # bytes of frames
        self._taken = 0  # of these, at the last measurement
        self._stuck_since: float | None = None  # since when the peer has taken none of those that wait for it
        self._settings = settings
        self._bucket = bucket
        self._bytes = bytes_bucket
        self._wait_in_line = wait_in_line

    async def open(self, request: web.BaseRequest) -> None:
        await self.ws.prepare(request)
        transport = request.transport
        if transport is None or self.close_reason is not None:
            raise ConnectionResetError("the peer has gone")
        self._transport = transport

    @property
    def open_for_sending(self) -> bool:
        return self.close_reason is None and not self.ws.closed

    @property
    def is_full(self) -> bool:
        """Whether the peer has so many unread bytes that it gets no more for now."""
        return self.unsent() > self._settings.max_buffer_bytes

    def unsent(self) -> int:
        """The number of bytes that wait for the peer to read."""
        if self._transport is None or self._transport.is_closing():
            return 0  # a closed TLS transport raises an error here
        size = self._transport.get_write_buffer_size()
        if self.carrier is not None and self.carrier is not self._transport:
            size += self.carrier.get_write_buffer_size()
        return size

    def is_silent(self, now: float) -> bool:
        """Whether the peer has not been heard for so long that it must be disconnected."""
        return now - self._heard > self.timeout and now - self._arrived > self.timeout

    @property
    def _last_heard(self) -> float:
        return max(self._heard, self._arrived)

    def is_slow(self, now: float) -> bool:
        """Whether the peer has taken nothing of what waits for it for so long that it must be disconnected.

        A call is also a measurement.
        """
        unsent = self.unsent()
        if unsent == 0:
            self._taken, self._stuck_since = self._written, None
            return False
        taken, before = self._written - unsent, self._taken
        self._taken = taken
        if self._stuck_since is None or taken > before:
            self._stuck_since = now
        return now - self._stuck_since > self._settings.slow_seconds

    def excuse(self, lost: float, now: float) -> None:
        """The hub itself did not run for so long: that is no silence of the peer. Its last ping does not count."""
        self._heard = min(now, self._last_heard + lost)
        self._asked = 0.0
        if self._stuck_since is not None:
            self._stuck_since = min(now, self._stuck_since + lost)

    # Silence, measured before the timeout: the hub asks a peer, which answers at once if it runs.

    def is_quiet(self, now: float) -> bool:
        """Whether the peer has not been heard for a while, and should be asked."""
        quiet = limits.answer_seconds(self.timeout)
        heard = self._last_heard
        return heard <= now - quiet and self._asked <= max(heard, now - self.timeout)

    async def ask(self, now: float) -> float:
        """Ping the peer; return the seconds until `is_mute` holds if it does not answer."""
        self._asked = now
        with contextlib.suppress(ConnectionError):
            await self.ws.ping()
        return self._mute_at() - now + _MARGIN

    def is_mute(self, now: float) -> bool:
        """Whether the peer has not answered the hub's last ping in time."""
        return self._last_heard < self._asked and self._mute_at() <= now

    def _mute_at(self) -> float:
        answer = limits.answer_seconds(self.timeout)
        return max(self._asked + answer, self._last_heard + 2 * answer)

    async def receive_hello(self) -> wire.Hello | CloseReason | None:
        """The first message, which must be `hello`; a reason to close if it is not, or is late."""
        try:
            async with asyncio.timeout(self._settings.hello_seconds):
                message = await self.receive()
        except TimeoutError:
            return NO_HELLO
        if isinstance(message, wire.Hello):
            self._sizes = message.sizes
        elif message is not None and not isinstance(message, CloseReason):
            return _malformed(frames.Problem("malformed", "type: the first message must be hello"))
        return message

    async def receive(self) -> frames.Message | CloseReason | None:
        """The next message; a reason to close if the peer broke a rule; None at the end."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        while True:
            frame = await self._read()
            if frame is None:
                return None
            if (
                now := loop.time()
            ) == self._heard:  # the time of an iteration of uvloop: others shall have the next one
                await asyncio.sleep(0)
            self._heard = now
            cost = 1.0 + len(frame.data or ()) // settings.message_bytes_per_token
            if not self._bucket.take(settings.messages_per_second, settings.message_burst, self._heard, cost):
                self._bucket.level = 0.0  # after an oversized message, small ones must not pass either
                return RATE
            if frame.type is not WSMsgType.TEXT:
                self._count_read(frame)
            if frame.type is WSMsgType.PING:
                if not self.is_full:
                    await self.ws.pong(frame.data)
                continue
            if frame.type is WSMsgType.PONG:
                continue
            if frame.type is not WSMsgType.TEXT:
                return _malformed(frames.Problem("malformed", "message: must be a text frame"))
            self.size = len(frame.data)
            if self.size > frames.LONG:
                await self._wait_in_line()
            self._count_read(frame)
            return self._decode(frame.data)

    def _count_read(self, frame: WSMessage | WSMessageTextBytes) -> None:
        """The frame no longer waits. Agents mask theirs; many pings without a mask would hide what else waits.

        What is counted and never read, four bytes of a ping behind a long message, is little: agents reconnect in time.
        """
        size = len(frame.data or ())
        mask = 4 if frame.type is WSMsgType.TEXT or self.arriving <= self._settings.kept_bytes else 0
        length = 0 if size < 126 else 2 if size < 2**16 else 8
        self.arriving = max(0, self.arriving - size - 2 - length - mask)

    def may_arrive(self, size: int) -> bool:
        """Whether so many more bytes may be read, whatever frames they are: empty fragments are never a message."""
        rate, burst = limits.bytes_allowed(self._settings)
        self._arrived = asyncio.get_running_loop().time()
        self.arriving += size
        return self._bytes.take(rate, burst, self._arrived, size)

    async def _read(self) -> WSMessage | WSMessageTextBytes | None:
        """The next frame; None at the end."""
        frame = await self.ws.receive()
        if frame.type not in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            return frame
        # The error of a closed WebSocket has the stack in which it was raised, and so the WebSocket, with its TLS.
        # Nobody else would free them: the operator hardly ever looks for cycles among old objects.
        if (error := self.ws.exception()) is not None:
            error.__traceback__ = error.__context__ = None
        return None

    def _decode(self, data: bytes) -> frames.Message | CloseReason:
        limit = self._settings.max_message_bytes
        if len(data) > limit:
            problem = frames.Problem("too-large", f"message: larger than {limit} bytes")
            return CloseReason("too-large", CLOSE_TOO_BIG, problem)
        try:
            message = frames.decode(data.decode())
        except UnicodeDecodeError:
            return NO_TEXT
        return _malformed(message) if isinstance(message, frames.Problem) else message

    async def send(self, frame: bytes) -> None:
        """Write the frame to the socket's buffer; returns at once."""
        self._written += len(frame)
        await self.ws.send_frame(frame, WSMsgType.TEXT)

    def why_not(self, directive: wire.Directive, encoder: frames.DirectiveEncoder) -> frames.Problem | None:
        """Why this directive cannot be sent: whoever wants the members of each world gets no endless lists of them.

        Each of them is told to each other one, and TLS keeps as much memory as its longest message for a connection.
        """
        limit = self._settings.max_message_bytes
        if self._sizes or encoder.measure(directive) <= limit:
            return None
        told = f"this agent does not know the field `sizes`, and its world has more than {limit} bytes of members"
        return frames.Problem("version", f"{told}: update elasticjob in the image of the job")

    def has_sent(self, directive: wire.Directive) -> bool:
        """Whether this directive has been sent on the current connection."""
        return frames.same(self._sent, directive)

    def measure(self, directive: wire.Directive, encoder: frames.DirectiveEncoder) -> int:
        """About how many bytes `direct` would write."""
        return encoder.measure(directive, sizes=self._sizes)

    async def direct(self, directive: wire.Directive, encoder: frames.DirectiveEncoder) -> None:
        await self.send(encoder.encode(directive, sizes=self._sizes))
        self._sent = directive

    def mark_over(self, close_reason: CloseReason) -> None:
        """Ignore all further messages and send no more directives; call `close` or `abort` next."""
        self.close_reason = close_reason

    async def close(self, close_reason: CloseReason) -> None:
        """Send the reason and a close frame. The connection ends soon even if the peer does not reply."""
        self.mark_over(close_reason)
        with contextlib.suppress(ConnectionError):
            if self.unsent() > self._settings.kept_bytes:  # nobody counts them any more
                self.abort()
            if close_reason.error is not None:
                error = wire.Error(code=close_reason.error.code, message=close_reason.error.message)
                await self.send(frames.encode(error))
            # Not `ws.close`: if another task is reading, it ends the connection before the peer has replied.
            await self.ws.send_frame(close_reason.close.to_bytes(2, "big"), WSMsgType.CLOSE)
        asyncio.get_running_loop().call_later(self._settings.close_seconds, self.abort)

    async def drain(self) -> None:
        """After `close`: read until the peer has replied, its time is up, or it has said more than enough."""
        for _ in range(_MOST_AFTER):
            if await self._read() is None:
                break
        self.abort()

    def abort(self) -> None:
        """End the connection without a close frame, since the peer does not read."""
        if self._transport is not None:
            self._transport.abort()


def find_failed(links: Iterable[Connection], now: float, *, measures: bool) -> dict[Connection, str]:
    """The connections that must be closed, and why: `silent`, or `slow`, which is only found with `measures`."""
    silent = {link: "silent" for link in links if link.is_silent(now)}
    return ({link: "slow" for link in links if link.is_slow(now)} if measures else {}) | silent


def _malformed(problem: frames.Problem) -> CloseReason:
    return CloseReason(problem.code, CLOSE_MALFORMED, problem)
