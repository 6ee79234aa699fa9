"""Freeing the main thread when a world is lost: from its own code by a signal, from a silent peer through
its sockets.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticjob.errors import WorldLostError
from elasticjob.protocol import store
from elasticjob.sessions import interrupt
from elasticjob.sessions.interrupt import Interrupter
from elasticjob.sessions.process_groups import ProcessGroups
from elasticjob.torchcompat import sockets

pytestmark = pytest.mark.timeout(60)


class Loss:
    """Whether the world is lost, as the agent would say."""

    def __init__(self) -> None:
        self.happened = False
        self.interrupter = Interrupter(lambda: self.happened)

    def happen(self) -> None:
        self.happened = True
        self.interrupter.interrupt()


@pytest.fixture
def loss() -> Iterator[Loss]:
    before = signal.signal(signal.SIGURG, signal.SIG_DFL)  # as in a script, whatever other tests have left
    loss = Loss()
    yield loss
    loss.happened = False  # its thread ends
    signal.signal(signal.SIGURG, before)


def test_a_sleep_ends_when_the_world_is_lost(loss: Loss) -> None:
    loss.interrupter.allowed = True
    threading.Timer(0.2, loss.happen).start()
    with pytest.raises(WorldLostError):
        time.sleep(50)
    assert not loss.interrupter.allowed, "once is enough"


def test_nothing_is_raised_where_it_is_not_allowed(loss: Loss) -> None:
    loss.happen()
    began = time.monotonic()
    time.sleep(0.3)
    assert time.monotonic() - began >= 0.3


def test_code_of_ours_is_left_before_anything_is_raised(loss: Loss) -> None:
    """A `with` of ours could not catch it inside of ours; so the signal comes again."""
    ours = compile("while not left: pass", str(Path(interrupt.__file__)), "exec")
    left: list[bool] = []
    loss.interrupter.allowed = True
    threading.Timer(0.1, loss.happen).start()
    threading.Timer(0.4, left.append, [True]).start()
    with pytest.raises(WorldLostError):
        exec(ours, {"left": left})
        time.sleep(50)
    assert left, "not before"


def test_a_script_with_a_handler_of_its_own_keeps_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, _: heard.append(number))
    try:
        interrupter = Interrupter(lambda: True)
        interrupter.allowed = True
        interrupter.interrupt()
        time.sleep(0.2)
        assert not heard, "no signal is sent either"
    finally:
        signal.signal(signal.SIGURG, before)


def test_a_store_that_was_connected_during_the_interruption_is_not_used() -> None:
    """torch's client connects again by itself if its connection is shut down, so it may still come through."""
    _server, where = store.listen("127.0.0.1")
    answers = iter([False, True])
    assert store.connect(where, lambda: next(answers), time.monotonic() + 30) is None
    assert not list(answers), "it was asked again when the store was connected"


def test_connections_that_are_made_after_the_loss_end_too(loss: Loss) -> None:
    groups = ProcessGroups("gloo", 60.0)
    loss.interrupter = Interrupter(lambda: loss.happened, groups.shut_down)
    with socket.create_server(("127.0.0.1", 0)) as server, groups.owning():
        loss.happen()
        groups.abort()
        with socket.create_connection(server.getsockname(), timeout=50) as late:
            assert late.recv(1) == b"", "nobody sends"


def test_only_the_connections_that_are_named_are_shut_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        others = sockets.find_connections()
        ended = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        with kept, theirs, ended, peer:
            new = sockets.find_connections() - others
            assert sockets.shut_down(new) == 2, "both ends are in this process"
            assert ended.recv(1) == b""
            kept.sendall(b"x")
            assert theirs.recv(1) == b"x"
