"""The network between the pods of one process: connections between two of them can be cut, slow or damaged."""

from __future__ import annotations

import socket
import time
from typing import Any

from elasticjob.peers.transport import Link

Pair = frozenset[int]


class Network:
    """Which connections work. Pods are numbers."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}  # pods by port
        self.gone: set[int] = set()
        self.cut: dict[Pair, float] = {}  # until when, of a monotonic clock
        self.slow: dict[Pair, float] = {}
        self.damaged: set[Pair] = set()  # the next bytes between these two

    def heal(self) -> None:
        for faults in (self.cut, self.slow, self.damaged):
            faults.clear()

    def check(self, pair: Pair) -> None:
        """Raises OSError if there is no connection."""
        if pair & self.gone or self.cut.get(pair, 0.0) > time.monotonic():
            raise ConnectionResetError("the connection is cut")
        if self.slow.get(pair, 0.0) > time.monotonic():
            time.sleep(0.02)

    def pass_on(self, pair: Pair, data: bytes) -> bytes:
        self.check(pair)
        if pair not in self.damaged or not data:
            return data
        self.damaged.discard(pair)
        return data[:-1] + bytes([data[-1] ^ 1])


class Key(str):
    """The job's key, as one pod knows it."""

    pod: int
    network: Network


def give_key(pod: int, network: Network) -> Key:
    key = Key("secret")
    key.pod, key.network = pod, network
    return key


class Wire:
    """A socket over such a network."""

    def __init__(self, inner: socket.socket, network: Network, pair: Pair) -> None:
        self._inner, self._network, self._pair = inner, network, pair

    def sendall(self, data: bytes) -> None:
        for begin in range(0, len(data), 1 << 16):
            self._inner.sendall(self._network.pass_on(self._pair, data[begin : begin + (1 << 16)]))

    def recv(self, size: int) -> bytes:
        return self._network.pass_on(self._pair, self._inner.recv(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def connect(address: str, port: int, key: str) -> Link:
    """In place of `elasticjob.peers.transport.connect`."""
    assert isinstance(key, Key)
    pair = frozenset((key.pod, key.network.ports.get(port, -1)))
    key.network.check(pair)
    inner = socket.create_connection((address, port), 2.0)
    try:
        inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Link(Wire(inner, key.network, pair), key, serves=False)  # type: ignore[arg-type]
    except BaseException:
        inner.close()
        raise
