"""One connection between two agents of a job: authenticated by the job's key, frames of JSON and bytes.

Both sides prove that they know the key, which the hub hands out to the job's pods. After that, each frame carries an
HMAC over its number, header and body, so it cannot be forged, repeated, reordered or changed. Nothing is encrypted,
like the gradients between the same pods. Nothing is unpickled, and sizes are bounded.

Members are counted apart from strangers. There may be as many members as the job has. A connection is a stranger until
it has proved that it knows the key: there is room for a few, each for a short time in total, so that strangers delay a
member, but never keep it out.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final

logger = logging.getLogger("elasticjob")

MAX_BODY: Final = 64 << 20
_MAX_HEADER: Final = 64 << 10
_MAGIC: Final = b"elasticjob-peer-1"
_NONCE: Final = 32
_LENGTHS: Final = struct.Struct("!II")
_CONNECT_SECONDS: Final = 2.0
_HELLO_SECONDS: Final = 5.0  # for a stranger to prove that it knows the key, in total
_ANSWER_SECONDS: Final = 20.0  # for the other side's proof, in total: many members may come at once
_SECONDS: Final = 30.0  # without a byte
_IDLE_SECONDS: Final = 600.0  # the other side may be lost
MOST_STRANGERS: Final = 256
_GIVES_WAY_SECONDS: Final = 0.5  # after which a stranger gives way to the next one, where there are too many
_BACKLOG: Final = 4096  # members that come at once wait there

Header = dict[str, Any]
Handler = Callable[[Header, bytes], tuple[Header, bytes]]


class PeerError(Exception):
    """The peer does not answer, does not know the key, or broke the protocol."""


class ClosedError(PeerError):
    """The peer has closed the connection."""


class RefusedError(PeerError):
    """The peer answered that it does not do this. The connection is as good as before."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(struct.pack("!Q", len(part)) + part for part in parts), hashlib.sha256).digest()


class Link:
    """One authenticated connection. Not thread-safe."""

    def __init__(self, connection: socket.socket, key: str, *, serves: bool) -> None:
        """Raises PeerError or OSError."""
        self._socket = connection
        self._sent = self._received = 0
        deadline = time.monotonic() + (_HELLO_SECONDS if serves else _ANSWER_SECONDS)
        secret, mine = key.encode(), secrets.token_bytes(_NONCE)
        if not secret:
            raise PeerError("the hub has given no key")
        connection.settimeout(_HELLO_SECONDS)
        connection.sendall(_MAGIC + mine)
        said = self._read(len(_MAGIC) + _NONCE, deadline)
        if said[: len(_MAGIC)] != _MAGIC:
            raise PeerError("the peer speaks something else")
        theirs = said[len(_MAGIC) :]
        nonces = (theirs, mine) if serves else (mine, theirs)  # the client's first
        sides = (b"server", b"client") if serves else (b"client", b"server")
        connection.sendall(_mac(secret, b"proof", sides[0], *nonces))
        if not hmac.compare_digest(self._read(32, deadline), _mac(secret, b"proof", sides[1], *nonces)):
            raise PeerError("the peer has another key")
        self._send_key, self._receive_key = (_mac(secret, b"frames", side, *nonces) for side in sides)
        connection.settimeout(_SECONDS)

    def send(self, header: Header, body: bytes = b"") -> None:
        """Raises OSError."""
        text = json.dumps(header).encode()
        proof = _mac(self._send_key, str(self._sent).encode(), text, hashlib.sha256(body).digest())
        self._sent += 1
        self._socket.sendall(_LENGTHS.pack(len(text), len(body)) + text + proof)
        if body:
            self._socket.sendall(body)

    def receive(self) -> tuple[Header, bytes]:
        """Raises PeerError or OSError."""
        text_size, body_size = _LENGTHS.unpack(self._read(_LENGTHS.size))
        if text_size > _MAX_HEADER or body_size > MAX_BODY:
            raise PeerError("the frame is too large")
        text, proof, body = self._read(text_size), self._read(32), self._read(body_size)
        expected = _mac(self._receive_key, str(self._received).encode(), text, hashlib.sha256(body).digest())
        if not hmac.compare_digest(proof, expected):
            raise PeerError("the frame was changed on its way")
        self._received += 1
        header = json.loads(text)
        if not isinstance(header, dict):
            raise PeerError("the header is no object")
        return header, body

    def call(self, op: str, body: bytes = b"", /, **fields: Any) -> tuple[Header, bytes]:
        """Send a request and return the answer. Raises PeerError, also for a refusal, or OSError."""
        self.send({"op": op, **fields}, body)
        header, answer = self.receive()
        if "error" in header:
            raise RefusedError(str(header["error"]))
        return header, answer

    def close(self) -> None:
        self._socket.close()

    def shut(self) -> None:
        """End what another thread waits for on this connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self, size: int, deadline: float | None = None) -> bytes:
        parts, left = [], size
        while left:
            if deadline is not None:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            part = self._socket.recv(min(left, 1 << 20))
            if not part:
                raise ClosedError("the peer has closed the connection")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def connect(address: str, port: int, key: str) -> Link:
    """Raises PeerError or OSError."""
    connection = socket.create_connection((address, port), _CONNECT_SECONDS)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Link(connection, key, serves=False)
    except BaseException:
        connection.close()
        raise


class Server:
    """Answers the requests of other agents, each connection in a thread."""

    def __init__(self, address: str, key: Callable[[], str], handle: Handler) -> None:
        """`handle` is called in many threads; what it raises is answered as an error. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._key = key
        self._handle = handle
        self._strangers: dict[socket.socket, float] = {}  # since when, the oldest first
        self._members: set[socket.socket] = set()
        self._room = threading.Condition()  # guards these, and tells that there are fewer strangers
        self._closed = False
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="elasticjob-peers", daemon=True).start()

    def close(self) -> None:
        with self._room:
            self._closed = True
            for one in (self._socket, *self._strangers, *self._members):
                _shut(one)
            self._room.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_GIVES_WAY_SECONDS)  # no descriptor is left: a connection may end
                continue
            if not self._let_in(connection):
                _shut(connection)
                return
            thread = threading.Thread(target=self._serve, args=(connection,), name="elasticjob-peer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the pod may have no more: a connection may end
                with self._room:
                    self._strangers.pop(connection, None)
                _shut(connection)
                time.sleep(_GIVES_WAY_SECONDS)

    def _let_in(self, connection: socket.socket) -> bool:
        """Wait until there is room for another stranger. False if the server is closed."""
        with self._room:
            while not self._closed and len(self._strangers) >= MOST_STRANGERS:
                oldest, since = next(iter(self._strangers.items()))
                left = since + _GIVES_WAY_SECONDS - time.monotonic()
                if left > 0:
                    self._room.wait(left)
                    continue
                del self._strangers[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._strangers[connection] = time.monotonic()
            return not self._closed

    def _serve(self, connection: socket.socket) -> None:
        try:
            link = Link(connection, self._key(), serves=True)
            with self._room:
                self._strangers.pop(connection, None)
                self._members.add(connection)
                self._room.notify()
            connection.settimeout(_IDLE_SECONDS)
            while True:
                header, body = link.receive()
                try:
                    answer, data = self._handle(header, body)
                except Exception as error:
                    answer, data = {"error": f"{type(error).__name__}: {error}"[:500]}, b""
                link.send(answer, data)
        except (OSError, ValueError, PeerError) as error:
            logger.debug("a peer's connection has ended: %s", error)
        finally:
            with self._room:
                self._strangers.pop(connection, None)
                self._members.discard(connection)
                self._room.notify()
            connection.close()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected
        one.shutdown(socket.SHUT_RDWR)
    one.close()
