"""Connects to the store of another pod, whose host may die or fall silent at any moment.

torch's client cannot be interrupted: it tries again after a pause of seconds, and waits for the host's first answer
for ever. So it connects in a thread of its own, and whoever waits for that thread stops waiting when the world is lost.
A thread that was given up ends soon, because its connections are shut down until it does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elasticjob.protocol import wire
from elasticjob.torchcompat import sockets, threads

_TRY_SECONDS = 1.0  # for the first answer; torch's client makes one more try after it
_PAUSE = 0.05  # between two attempts, and between two looks at one


def connect(where: wire.Store, interrupted: Callable[[], bool], deadline: float, timeout: timedelta) -> TCPStore | None:
    """A client of the store, for whose keys it waits up to `timeout`; None as soon as `interrupted()` returns true.

    Raises OSError at the deadline.
    """
    while not interrupted():
        attempt = _Attempt(where)
        while not attempt.ended.wait(_PAUSE) and not interrupted() and time.monotonic() < deadline:
            pass
        store = attempt.take()
        if store is not None:
            store.set_timeout(timeout)
            return None if interrupted() else store
        if time.monotonic() >= deadline and not interrupted():
            raise OSError(f"rank 0's store {where.address}:{where.port} cannot be reached: {attempt.error}")
        if attempt.ended.is_set():
            time.sleep(_PAUSE)
    return None


class _Attempt:
    """One attempt of torch's client, in a thread."""

    def __init__(self, where: wire.Store) -> None:
        self.ended = threading.Event()
        self.error: Exception | str = "no answer"
        self._where = where
        self._others = sockets.find_connections()  # of which some may lead to the same store
        self._store: TCPStore | None = None
        self._thread = threads.Thread(self._connect, name="elasticjob-connect")
        self._thread.start()

    def take(self) -> TCPStore | None:
        """The store, if it is connected. If the attempt has not ended, it is given up."""
        if not self.ended.is_set():
            threads.Thread(self._end, name="elasticjob-connect-end").start()
            return None
        return self._store

    def _connect(self) -> None:
        address, port = self._where.address, self._where.port
        try:
            # A plain socket first: torch's client prints many lines for each refusal.
            socket.create_connection((address, port), timeout=_TRY_SECONDS).close()
            limit = timedelta(seconds=_TRY_SECONDS)
            self._store = TCPStore(address, port, None, False, limit, wait_for_workers=False)
        except (OSError, RuntimeError) as error:
            self.error = error
        finally:
            self.ended.set()

    def _end(self) -> None:
        while self._thread.is_alive():
            sockets.shut_down_to(self._where.address, self._where.port, self._others)
            self._thread.join(_PAUSE)
