"""Freeing the main thread when a world is lost: from its own code by a signal, from a silent peer through
its sockets.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

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


class Handler:
    def __call__(self, *_: object) -> None:
        raise SystemExit(3)

    def end(self, number: int, frame: object) -> None:
        raise SystemExit(3)


def end(*_: object) -> None:
    raise SystemExit(3)


def end_once(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(3)


def stop(*_: object) -> None:
    raise InterruptedError("the node goes")


def signalled(handler: Any, here: Interrupter) -> None:
    """A block of a script, in which a signal comes; the handler is another one afterwards."""
    before = signal.signal(signal.SIGUSR2, handler)
    here.begin()
    try:
        signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


def stopped(here: Interrupter) -> None:
    try:
        signalled(stop, here)
    except InterruptedError:
        raise SystemExit(3) from None


def cleaned(here: Interrupter) -> None:
    try:
        signalled(end, here)
    finally:
        raise SystemExit(4)


def lost_meanwhile(here: Interrupter) -> None:
    """The interrupter's error, or a collective's, in what an exit executes."""
    try:
        signalled(end, here)
    finally:
        raise WorldLostError("a member was lost")


def by_hand(_: Interrupter) -> None:
    raise SystemExit(3)


def lost(here: Interrupter) -> None:
    signalled(raise_loss, here)


def raise_loss(*_: object) -> None:
    raise WorldLostError("a member was lost")


@pytest.mark.parametrize(
    ("way", "meant"),
    [
        *((functools.partial(signalled, one), 3) for one in (end, Handler(), Handler().end, functools.partial(end, 1))),
        (functools.partial(signalled, lambda *_: sys.exit(3)), 3),
        (functools.partial(signalled, end_once), 3),
        (functools.partial(signalled, stop), "the node goes"),
        (stopped, 3),
        (cleaned, 4),
        (lost_meanwhile, 3),
        (by_hand, None),
        (raise_loss, None),
        (lost, None),
    ],
)
def test_an_exit_is_that_of_a_handler_or_of_the_script(loss: Loss, way: Any, meant: object) -> None:
    with pytest.raises((SystemExit, WorldLostError, InterruptedError)) as raised:
        way(loss.interrupter)
    found = loss.interrupter.find_meant_by_signal(raised.value)
    assert (None if found is None else found.args[0]) == meant


def test_no_handler_of_the_script_is_interrupted(loss: Loss) -> None:
    """A signal is sent once, and its handler may save for seconds."""
    saved = []

    def save(*_: object) -> None:
        loss.happen()
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            time.sleep(0.01)
        saved.append(True)

    with pytest.raises(WorldLostError):
        signalled(save, loss.interrupter)
        time.sleep(30)
    assert saved


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
    asked: list[bool] = []  # more often on a slow machine

    def is_lost() -> bool:
        asked.append(bool(asked))
        return asked[-1]

    assert store.connect(where, is_lost, time.monotonic() + 30) is None
    assert asked[-1], "it was asked again when the store was connected"


def test_connections_that_are_made_after_the_loss_end_too(loss: Loss) -> None:
    groups = ProcessGroups("gloo", 60.0)
    loss.interrupter = Interrupter(lambda: loss.happened, groups.shut_down)
    with socket.create_server(("127.0.0.1", 0)) as server, groups.owning():
        loss.happen()
        groups.abort()
        with socket.create_connection(server.getsockname(), timeout=50) as late:
            assert late.recv(1) == b"", "nobody sends"


class LateStore(Store):
    """A store in which one rank does not get the addresses of the others before it is let."""

    def __init__(self, inner: Store, let: threading.Event) -> None:
        super().__init__()
        self._inner, self._let = inner, let
        self.told = threading.Event()

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value)
        self.told.set()

    def get(self, key: str) -> bytes:
        self._let.wait(60)
        return bytes(self._inner.get(key))

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self._inner.wait(keys, timedelta(seconds=60))


@pytest.mark.parametrize("late", [0, 1])
def test_a_group_that_waits_for_a_rank_to_connect_is_given_up(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of two ranks waits depends on their addresses; in one of these cases it is the one that is not late."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    inner, let, never = HashStore(), threading.Event(), threading.Event()
    never.set()
    stores = [LateStore(inner, let if rank == late else never) for rank in (0, 1)]
    ended = [threading.Event(), threading.Event()]
    groups: list[Any] = []

    def make(rank: int) -> None:
        with contextlib.suppress(RuntimeError):
            groups.append(dist.ProcessGroupGloo(stores[rank], rank, 2, timedelta(seconds=50)))
        ended[rank].set()

    own = ProcessGroups("gloo", 60.0)
    own._pairs = 2
    with own.owning():
        threads = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        assert stores[late].told.wait(20)
        deadline = time.monotonic() + 20
        while not ended[1 - late].wait(0.1):
            own.shut_down()
            assert time.monotonic() < deadline, "it waits for a connection that nobody makes"
        let.set()
        for thread in threads:
            thread.join(50)


def test_a_connection_that_no_peer_answers_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as sockets_of_others:
        others = sockets.find_connections()
        waiting: list[socket.socket] = []
        for _ in range(8):  # as soon as nobody accepts, no further one is answered
            one = sockets_of_others.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(server.getsockname())
            _, writable, _ = select.select([], [one], [], 0.2)
            waiting += [] if writable else [one]
        assert waiting
        sockets.shut_down(sockets.find_connections() - others)
        for one in waiting:
            assert select.select([], [one], [], 5)[1]
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET


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
