"""A process beside the first rank of a pod: the launcher of the world, and what clears up its shared memory.

A process of its own, because MPI_Init holds Python's lock. It ends when the ranks do not need it any more, or with the
rank that has started it. What to do is one line of JSON on its input; the answer is a line with its port.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticjob.pmi import door, protocol

HANDSHAKE_SECONDS = 10.0
GATHER_SECONDS = 300.0  # until all ranks have come
SIBLING_SECONDS = 2.0  # for the other ranks of a pod to end, after the first one
_WAITING = 64  # connections that have not shown who they are
_READ = 65536
_UNSENT = 2**22  # bytes that a rank does not read
SHARED = Path("/dev/shm")  # noqa: S108 - MPICH's place


@dataclass(eq=False)
class _Caller:
    """A connection: a rank of the world as soon as it has shown which."""

    socket: socket.socket
    drawn: str
    since: float
    rank: int | None = None
    text: bytes = b""  # before it is let in, and what it says before all have come
    unsent: bytes = b""


class Server:
    """The launcher's end of the connections. It starts to answer when all ranks have come."""

    def __init__(self, poll: selectors.BaseSelector, address: str, size: int, name: str, secret: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._poll, self._size, self._name, self._secret = poll, size, name, secret
        self._began = time.monotonic()
        self._callers: set[_Caller] = set()
        self._ranks: dict[int, _Caller] = {}
        self._nodes: dict[int, int] = {}
        self._world: protocol.World | None = None
        self._gone = 0
        poll.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def is_over(self) -> bool:
        """Whether nobody needs this server any more."""
        if self._world is None:
            return time.monotonic() - self._began > GATHER_SECONDS
        return self._world.is_over and not any(one.unsent for one in self._ranks.values())

    def drop_late(self) -> None:
        """End the connections that do not show who they are."""
        limit = time.monotonic() - HANDSHAKE_SECONDS
        for one in [one for one in self._callers if one.since < limit]:
            self._end(one)

    def _accept(self, _: int) -> None:
        with contextlib.suppress(OSError):
            connection, _address = self._listener.accept()
            connection.setblocking(False)
            caller = _Caller(connection, door.draw(), time.monotonic())
            if len(self._callers) >= _WAITING + self._size:
                connection.close()
                return
            self._callers.add(caller)
            self._poll.register(connection, selectors.EVENT_READ, lambda mask: self._serve(caller, mask))
            self._send(caller, caller.drawn.encode() + b"\n")

    def _serve(self, caller: _Caller, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send(caller, b"")
        if not mask & selectors.EVENT_READ:
            return
        try:
            data = caller.socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(caller)
        elif caller.rank is not None and self._world is not None:
            self._carry_out(self._world.receive(caller.rank, data))
        else:
            self._greet(caller, data)

    def _greet(self, caller: _Caller, data: bytes) -> None:
        caller.text += data
        if len(caller.text) > (door.LINE if caller.rank is None else protocol.LINE):
            self._end(caller)
        elif caller.rank is None and b"\n" in caller.text:
            line, _, caller.text = caller.text.partition(b"\n")
            found = door.judge(self._secret, caller.drawn, line, self._size)
            if found is None or found[0].rank in self._ranks:
                self._end(caller)
                return
            place, reply = found
            caller.rank = place.rank
            self._callers.discard(caller)
            self._ranks[place.rank], self._nodes[place.rank] = caller, place.node
            self._send(caller, reply)
            if len(self._ranks) == self._size:
                self._begin()

    def _begin(self) -> None:
        self._poll.unregister(self._listener)
        self._listener.close()
        for one in list(self._callers):
            self._end(one)
        self._world = protocol.World(self._name, [self._nodes[rank] for rank in range(self._size)])
        for rank, caller in list(self._ranks.items()):
            data, caller.text = caller.text, b""
            self._carry_out(self._world.receive(rank, data))

    def _carry_out(self, actions: list[protocol.Action]) -> None:
        for action in actions:
            caller = self._ranks[action.rank]
            if isinstance(action, protocol.Send):
                self._send(caller, action.data)
            else:
                print(f"elasticjob: MPI's rank {action.rank} sent {action.why}.", file=sys.stderr, flush=True)
                self._end(caller)

    def _send(self, caller: _Caller, data: bytes) -> None:
        if caller.socket.fileno() < 0:
            return
        caller.unsent += data
        try:
            caller.unsent = caller.unsent[caller.socket.send(caller.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._end(caller)
            return
        if len(caller.unsent) > _UNSENT:
            self._end(caller)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.unsent else 0)
        self._poll.modify(caller.socket, events, self._poll.get_key(caller.socket).data)

    def _end(self, caller: _Caller) -> None:
        if caller.socket.fileno() < 0:
            return
        self._poll.unregister(caller.socket)
        caller.socket.close()
        caller.unsent = b""
        self._callers.discard(caller)
        if caller.rank is None:
            return
        if self._world is not None:
            self._world.lose(caller.rank)
        elif self._ranks.get(caller.rank) is caller:  # it may come again
            del self._ranks[caller.rank], self._nodes[caller.rank]


class Siblings:
    """The other ranks of this pod: each holds a connection until MPI has started in all of them, or it ends.

    From then on the world's memory has no name. A rank that is killed before leaves the names, which are cleared here.
    """

    def __init__(self, poll: selectors.BaseSelector, name: str, node: int, others: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address(name, node))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._poll, self._names, self._missing = poll, protocol.find_shared_names(name, node), others
        self._open: set[socket.socket] = set()
        poll.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def are_gone(self) -> bool:
        return not self._missing and not self._open

    def clear(self) -> None:
        """Take the names of the world's memory away; who uses it goes on."""
        clear(self._names)

    def _accept(self, _: int) -> None:
        with contextlib.suppress(OSError):
            connection, _address = self._listener.accept()
            if not self._missing:
                connection.close()
                return
            self._missing -= 1
            self._open.add(connection)
            self._poll.register(connection, selectors.EVENT_READ, lambda mask: self._close(connection))

    def _close(self, connection: socket.socket) -> None:
        self._poll.unregister(connection)
        self._open.discard(connection)
        connection.close()


def address(name: str, node: int) -> str:
    """Of the socket of a pod's ranks: abstract, so that it ends with its process."""
    return f"\0elasticjob-mpi-{name}-{node}"


def clear(names: tuple[str, ...]) -> None:
    """Take these names away from /dev/shm."""
    for name in names:
        with contextlib.suppress(OSError):
            (SHARED / name).unlink()


def main() -> None:
    """Serve until the world does not need this process."""
    orders: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    poll = selectors.DefaultSelector()
    parent_ended: list[float] = []

    def hear(_: int) -> None:
        if not os.read(0, 64):
            parent_ended.append(time.monotonic())
            poll.unregister(0)

    siblings = Siblings(poll, **orders["siblings"]) if "siblings" in orders else None
    server = Server(poll, **orders["server"]) if "server" in orders else None
    signal.signal(signal.SIGTERM, lambda *_: parent_ended.append(0.0))  # of who ends what a world has left behind
    poll.register(0, selectors.EVENT_READ, hear)
    print(0 if server is None else server.port, flush=True)
    while not _is_over(server, siblings, parent_ended):
        for key, mask in poll.select(0.2):
            serve: Callable[[int], None] = key.data
            serve(mask)
        if server is not None:
            server.drop_late()
        if siblings is not None and parent_ended:
            siblings.clear()
    if siblings is not None:
        siblings.clear()


def _is_over(server: Server | None, siblings: Siblings | None, parent_ended: list[float]) -> bool:
    if not parent_ended:
        return server is not None and server.is_over
    late = parent_ended[-1] + SIBLING_SECONDS < time.monotonic()
    return siblings is None or siblings.are_gone or late


if __name__ == "__main__":
    main()
