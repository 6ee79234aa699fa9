"""Connections between agents: who is let in, what is refused, and how many there can be."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from elasticjob.peers import transport
from elasticjob.peers.transport import ClosedError, Header, Link, PeerError, RefusedError, Server

pytestmark = pytest.mark.timeout(60)
KEY = "of-this-job"
HELLO = len(b"elasticjob-peer-1") + 32  # bytes


def answer(header: Header, body: bytes) -> tuple[Header, bytes]:
    if header["op"] == "fail":
        raise OSError("the disk is full")
    return {"op": header["op"]}, body[::-1]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server("127.0.0.1", lambda: KEY, answer)
    yield server
    server.close()


def connect(server: Server, key: str = KEY) -> Link:
    return transport.connect("127.0.0.1", server.port, key)


@pytest.fixture
def linked() -> Iterator[tuple[Link, Link, socket.socket]]:
    """The two ends of a connection, and the second one's socket."""
    ours, theirs = socket.socketpair()
    served: list[Link] = []
    other = threading.Thread(target=lambda: served.append(Link(theirs, KEY, serves=True)))
    other.start()
    link = Link(ours, KEY, serves=False)
    other.join()
    yield link, served[0], theirs
    ours.close()
    theirs.close()


def test_requests_are_answered_and_a_refusal_ends_no_connection(server: Server) -> None:
    link = connect(server)
    assert link.call("turn", b"abc") == ({"op": "turn"}, b"cba")
    with pytest.raises(RefusedError, match="OSError: the disk is full"):
        link.call("fail")
    assert link.call("turn") == ({"op": "turn"}, b"")
    link.close()


@pytest.mark.parametrize("key", ["of-another-job", ""])
def test_nobody_without_the_key_is_let_in(server: Server, key: str) -> None:
    with pytest.raises(PeerError):
        connect(server, key)
    link = connect(server)
    assert link.call("turn")[0] == {"op": "turn"}
    link.close()


def test_something_else_that_connects_is_sent_away(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: another-pod.of-another-job\r\n\r\n"[:HELLO])
        said = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert len(said) == HELLO, "its own hello, and nothing after it"


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        pytest.param(struct.pack("!II", 2, 0) + b"{}" + b"x" * 32, "was changed on its way", id="a wrong proof"),
        pytest.param(struct.pack("!II", 1 << 20, 0), "too large", id="a large header"),
        pytest.param(struct.pack("!II", 2, (64 << 20) + 1), "too large", id="a large body"),
        pytest.param(struct.pack("!II", 2, 0) + b"{}", "has closed the connection", id="half a frame"),
    ],
)
def test_a_frame_that_breaks_the_protocol_is_an_error(
    linked: tuple[Link, Link, socket.socket], frame: bytes, problem: str
) -> None:
    link, _, theirs = linked
    theirs.sendall(frame)
    theirs.close()
    with pytest.raises(PeerError, match=problem):
        link.receive()


def test_there_may_be_as_many_members_as_a_job_has(server: Server) -> None:
    links = [connect(server) for _ in range(300)]
    assert [link.call("turn")[0] for link in links] == [{"op": "turn"}] * 300
    for link in links:
        link.close()


def test_strangers_delay_a_member_but_never_keep_it_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_STRANGERS", 4)
    monkeypatch.setattr(transport, "_GIVES_WAY_SECONDS", 0.05)
    member = connect(server)
    strangers = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(12)]
    another = connect(server)
    assert [link.call("turn")[0] for link in (member, another)] == [{"op": "turn"}] * 2
    for link in (member, another):
        link.close()
    for stranger in strangers:
        stranger.close()


def test_a_stranger_has_little_time_in_total(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_HELLO_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
        stranger.settimeout(0.1)
        with contextlib.suppress(OSError):
            while True:  # a byte now and then: the test has a timeout
                stranger.sendall(b"e")
                with contextlib.suppress(TimeoutError):
                    if not stranger.recv(4096):
                        break


def test_a_server_that_closes_ends_its_connections(server: Server) -> None:
    link = connect(server)
    assert link.call("turn")[0] == {"op": "turn"}
    server.close()
    with pytest.raises((ClosedError, OSError)):
        link.call("turn")
    link.close()
    with pytest.raises((PeerError, OSError)):
        connect(server)


def test_a_pod_that_can_start_no_thread_for_a_moment_is_heard_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where strangers come until a pod may have no more threads."""
    monkeypatch.setattr(transport, "_GIVES_WAY_SECONDS", 0.05)
    refusals = 3

    class Starved(threading.Thread):
        def start(self) -> None:
            nonlocal refusals
            if refusals and self.name == "elasticjob-peer":
                refusals -= 1
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(threading, "Thread", Starved)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
            assert len(stranger.recv(4096)) == 0, "it is closed, and does not wait for an answer"
    link = connect(server)
    assert link.call("turn")[0] == {"op": "turn"}
    link.close()
