"""The link between two pods is measured over real sockets; what is wrong with it is told, and nothing raises."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from elasticjob.peers import probe, transport
from elasticjob.protocol.preflight import Link, Peer

pytestmark = pytest.mark.timeout(60)
KEY = "a secret of the job"


@pytest.fixture
def peer() -> Iterator[Peer]:
    responder = probe.Responder("127.0.0.1", lambda: KEY)
    yield Peer("u2", "127.0.0.1", responder.port)
    responder.close()


def test_a_link_has_a_round_trip_a_bandwidth_and_a_clock(peer: Peer) -> None:
    found = probe.measure(peer, KEY)
    assert (found.uid, found.problem) == ("u2", None)
    assert found.seconds is not None and found.seconds > 0
    assert found.bytes_per_second is not None and found.bytes_per_second > 0
    assert found.clock_seconds is not None and abs(found.clock_seconds) <= found.seconds + 1, "one machine, one clock"


def test_another_clock_is_noticed(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60 * (threading.current_thread().name == "elasticjob-peer"))
    found = probe.measure(peer, KEY)
    assert found.clock_seconds is not None and 55 < found.clock_seconds < 65


def test_a_pod_that_cannot_be_reached_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = probe.measure(Peer("u2", "127.0.0.1", port), KEY)
    assert found.seconds is None and (found.problem or "").startswith("no connection to 127.0.0.1: ")


def test_another_key_is_no_evidence_about_the_network(peer: Peer) -> None:
    assert probe.measure(peer, "the key of another hub") == Link("u2")


def test_a_link_that_takes_too_long_is_a_problem() -> None:
    held = threading.Event()

    def answer(header: transport.Header, body: bytes) -> tuple[transport.Header, bytes]:
        held.wait(30)
        return {"time": 0.0}, body

    server = transport.Server("127.0.0.1", lambda: KEY, answer)
    try:
        found = probe.measure(Peer("u2", "127.0.0.1", server.port), KEY, limit=0.3)
        assert found == Link("u2", problem="127.0.0.1 took longer than 0.3 s")
    finally:
        held.set()
        server.close()


def test_what_was_changed_on_its_way_is_noticed() -> None:
    """A relay that flips a bit in what it forwards stands for a broken network card."""
    responder = probe.Responder("127.0.0.1", lambda: KEY)
    relay = socket.create_server(("127.0.0.1", 0))

    def forward() -> None:
        client, _ = relay.accept()
        with client, socket.create_connection(("127.0.0.1", responder.port)) as there:
            threading.Thread(target=copy, args=(there, client, 1 << 60), daemon=True).start()
            copy(client, there, 1 << 16)

    def copy(source: socket.socket, sink: socket.socket, spoil_at: int) -> None:
        seen = 0
        while part := source.recv(1 << 14):
            if seen < spoil_at <= seen + len(part):
                part = part[:-1] + bytes([part[-1] ^ 1])
            seen += len(part)
            try:
                sink.sendall(part)
            except OSError:
                return
        sink.shutdown(socket.SHUT_WR)

    threading.Thread(target=forward, daemon=True).start()
    try:
        found = probe.measure(Peer("u2", "127.0.0.1", relay.getsockname()[1]), KEY)
        assert found.bytes_per_second is None and found.problem
    finally:
        responder.close()
        relay.close()
