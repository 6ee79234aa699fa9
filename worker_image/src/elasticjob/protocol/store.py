"""The TCPStore of a generation: who hosts it, who connects to it, and how torch's agent uses it.

Each generation has its own store on its own port, so a process of an old generation cannot reach a new one.
`GenerationStore` is the store that torch's agent gets. It answers the agent's queries for ranks from the world that the
hub announced, so assigning ranks never waits for a dead member, and it turns the exit barrier of torch's agent into an
interruptible wait.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from elasticjob.protocol import connecting, directives, wire
from elasticjob.torchcompat.elastic_store import ASSIGNED, ROLE_INFO, TERMINAL

_TIMEOUT = timedelta(seconds=300)


def listen(address: str) -> tuple[TCPStore, wire.Store]:
    """A new store on a fresh port of the pod's address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(1024)
        port = listener.getsockname()[1]
        descriptor = listener.detach()  # the store owns it from here on
    except OSError:
        listener.close()
        raise
    options: dict[str, Any] = {"wait_for_workers": False, "master_listen_fd": descriptor}
    try:
        store = TCPStore(address, port, None, True, _TIMEOUT, **options)
    except NotImplementedError:  # torch 2.4 to 2.7: the libuv server does not accept a listening socket
        store = TCPStore(address, port, None, True, _TIMEOUT, **options, use_libuv=False)
    return store, wire.Store(address, port)


def connect(where: wire.Store, interrupted: Callable[[], bool], deadline: float) -> TCPStore | None:
    """A client of rank 0's store; None if `interrupted()` returns true meanwhile. Raises OSError at the deadline."""
    return connecting.connect(where, interrupted, deadline, _TIMEOUT)


class GenerationStore(Store):
    """torch's agent's view of the store of its generation."""

    def __init__(
        self, inner: TCPStore, world: wire.World, finished: Callable[[Callable[[], bool], float], None]
    ) -> None:
        super().__init__()
        self._inner: TCPStore | None = inner
        self._world = world
        self._role = ""
        self._finished = finished
        self._seconds = _TIMEOUT

    def close(self) -> None:
        """Release the socket (and the host's server), although torch's agent may keep this object longer."""
        self._inner = None

    @property
    def inner(self) -> TCPStore:
        if self._inner is None:
            raise RuntimeError("the store of this generation is closed")
        return self._inner

    # Queries for ranks by torch's agent.

    def set(self, key: str, value: Any) -> None:
        if key.startswith(ROLE_INFO):
            self._role = str(json.loads(value).get("role", ""))
            return
        self.inner.set(key, value)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        if not all(key.startswith(ASSIGNED) for key in keys):
            self.inner.multi_set(keys, values)  # type: ignore[attr-defined]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        if all(key.startswith(ROLE_INFO) for key in keys):
            return [self._role_info(int(key[len(ROLE_INFO) :])) for key in keys]
        return self.inner.multi_get(keys)

    def get(self, key: str) -> bytes:
        if key.startswith(ASSIGNED):
            base, size = directives.base_rank(self._world), directives.world_size(self._world)
            return json.dumps([base, size, base, size]).encode()
        if key.startswith(TERMINAL):
            self.wait([key])
            return b""
        return self.inner.get(key)

    def _role_info(self, rank: int) -> bytes:
        nproc = self._world.nprocs[rank]
        return json.dumps({"role": self._role, "rank": rank, "local_world_size": nproc}).encode()

    # The exit barrier.

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if not all(key.startswith(TERMINAL) for key in keys):
            self.inner.wait(keys, timeout or self._seconds)
            return
        self._finished(lambda: self._is_there(keys), (timeout or self._seconds).total_seconds())

    def _is_there(self, keys: list[str]) -> bool:
        try:
            return bool(self.inner.check(keys))
        except RuntimeError:
            return True  # the hub has released the host, so no member needs this barrier any more

    def add(self, key: str, amount: int) -> int:
        try:
            return int(self.inner.add(key, amount))
        except RuntimeError:
            if not key.startswith(TERMINAL):
                raise
            return amount

    def check(self, keys: list[str]) -> bool:
        return bool(self.inner.check(keys))

    @property
    def timeout(self) -> timedelta:
        return self._seconds

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout


class PodStore(Store):
    """The store for torch's agent while its workers keep their memory: a world of this pod alone.

    The real worlds change without the agent; only the exit barrier concerns them.
    """

    def __init__(self, nproc: int, finish: Callable[[Callable[[], bool], float], None], count: Callable[[], bool]):
        super().__init__()
        self._nproc = nproc
        self._finish = finish
        self._everybody_ended = count
        self._seconds = _TIMEOUT

    def set(self, key: str, value: Any) -> None:
        """Does nothing: there is no other reader."""

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Does nothing: there is no other reader."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        info = {"role": "", "rank": 0, "local_world_size": self._nproc}
        return [json.dumps(info).encode() for _ in keys]

    def get(self, key: str) -> bytes:
        if key.startswith(ASSIGNED):
            # Larger than the real number, so that no script considers itself the whole world and trains alone.
            size = 2 * self._nproc
            return json.dumps([0, size, 0, size]).encode()
        self.wait([key])
        return b""

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._finish(self._everybody_ended, (timeout or self._seconds).total_seconds())

    def add(self, key: str, amount: int) -> int:
        return amount

    @property
    def timeout(self) -> timedelta:
        return self._seconds

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout
