"""Connecting to the store of a host that dies or is silent: nobody waits for torch's client."""

from __future__ import annotations

import socket
import struct
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elasticjob.protocol import store, wire
from elasticjob.protocol.connecting import connect

pytestmark = pytest.mark.timeout(60)
TIMEOUT = timedelta(seconds=50)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing the connection resets it, as when a process is killed


def find_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("elasticjob-connect")]


def await_threads() -> None:
    for one in find_threads():
        one.join(20)
    assert not find_threads(), "what was given up ends by itself"


def listen() -> tuple[socket.socket, wire.Store]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, wire.Store(*server.getsockname())


def test_a_store_that_answers_is_connected() -> None:
    _held, where = store.listen("127.0.0.1")
    found: Any = connect(where, lambda: False, time.monotonic() + 30, TIMEOUT)
    assert found is not None
    assert found.timeout == TIMEOUT
    found.set("key", "value")
    assert found.get("key") == b"value"
    await_threads()


def test_a_silent_host_is_given_up_when_the_world_is_lost() -> None:
    """Its kernel answers the connection, and nobody the first message: torch's client would wait for ever."""
    server, where = listen()
    lost = threading.Event()
    with server:
        threading.Timer(0.3, lost.set).start()
        assert connect(where, lost.is_set, time.monotonic() + 50, TIMEOUT) is None
        await_threads()


def test_a_silent_host_is_given_up_at_the_deadline() -> None:
    server, where = listen()
    with server:
        with pytest.raises(OSError, match="cannot be reached: no answer"):
            connect(where, lambda: False, time.monotonic() + 0.3, TIMEOUT)
        await_threads()


def test_a_host_that_dies_is_given_up_while_the_client_of_torch_tries_again() -> None:
    """Found by chaos, seed 3003: between its tries it pauses for seconds, in which the session's memory was lost."""
    server, where = listen()
    died = threading.Event()

    def die() -> None:
        for _ in range(2):  # the plain socket, then torch's
            peer, _ = server.accept()
            with peer:
                peer.recv(1)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        server.close()
        died.set()

    threading.Thread(target=die).start()
    assert connect(where, died.is_set, time.monotonic() + 50, TIMEOUT) is None
    assert find_threads(), "torch's client has not given up yet"
    await_threads()


def test_a_host_that_comes_late_is_found() -> None:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))  # nobody else takes the port, and nobody listens
    port: int = server.getsockname()[1]
    hosts: list[object] = []

    def come() -> None:
        server.listen()
        listener = server.detach()
        hosts.append(TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener))

    threading.Timer(0.3, come).start()
    where = wire.Store("127.0.0.1", port)
    assert connect(where, lambda: False, time.monotonic() + 30, TIMEOUT) is not None


def test_other_connections_to_the_same_store_are_left_alone() -> None:
    server, where = listen()
    with server, socket.create_connection((where.address, where.port)) as mine:
        peer, _ = server.accept()
        with pytest.raises(OSError, match="cannot be reached"):
            connect(where, lambda: False, time.monotonic() + 0.3, TIMEOUT)
        await_threads()
        peer.sendall(b"x")
        assert mine.recv(1) == b"x"
        peer.close()
