"""The TCP connections of this process, which another thread than their owner can shut down.

gloo has no abort: a collective waits until its peers answer, die or time out. If a peer is silent, shutting down our
side of its connections makes the collective raise. Only the read side: gloo queues a failed write, and drops the queue
when it then reads the end of the connection; a thread that waits for that send waits for the group's timeout. For the
same reason the connections stay open after gloo has closed its side, or the peer's writes would fail: each rank ends
its own waiting. A peer that dies while a send to it is queued, or when a part of its message has arrived, causes this
wait too: no call of this process ends it. `waits` lets go of it, and `collectives.deliveries` avoids it.

While a group is created, one of two ranks waits for the other one to connect, and there is no connection yet to shut
down. `knock` connects instead: gloo expects the number of the pair, and the pair ends when that connection does.
Linux only; elsewhere no socket is found.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")
_SYN_SENT = 2  # the state of a TCP socket in Linux


def find_connections() -> frozenset[int]:
    """The inodes of all TCP sockets that are connected, or wait for a peer to answer."""
    return frozenset(inode for inode, _ in _connected())


def shut_down(inodes: frozenset[int], kept: dict[int, int] | None = None) -> int:
    """Shut down the read side of these connections, as if the peers had closed them; return how many still existed.

    One that waits for its peer to answer fails at once. A descriptor of each is added to `kept`, by inode: the
    connection stays open for the peer until that is closed too.
    """
    count = 0
    for inode, connection in _connected():
        if inode in inodes:
            if kept is not None and inode not in kept:
                kept[inode] = os.dup(connection.fileno())
            with contextlib.suppress(OSError):  # the peer has already closed
                connection.shutdown(socket.SHUT_RD)
                count += 1
    return count


def shut_down_to(address: str, port: int, others: frozenset[int]) -> None:
    """Shut down the connections of this process to this address of a peer, except those with these inodes."""
    for inode, connection in _connected():
        if inode in others:
            continue
        with contextlib.suppress(OSError):  # the peer has not answered yet, or has closed
            host, number = connection.getpeername()[:2]
            if (host.removeprefix("::ffff:"), number) == (address, port):
                connection.shutdown(socket.SHUT_RDWR)


def find_listeners() -> frozenset[int]:
    """The inodes of all TCP sockets that listen."""
    return frozenset(inode for inode, one in _sockets() if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def knock(inodes: frozenset[int], pairs: int) -> None:
    """Connect to these listening sockets in the place of each peer of gloo's, and close the connection."""
    for inode, listener in _sockets():
        if inode not in inodes:
            continue
        with contextlib.suppress(OSError):  # closed meanwhile, or nobody accepts: the next ones would wait as long
            for number in range(pairs):
                with socket.socket(listener.family, socket.SOCK_STREAM) as peer:
                    peer.settimeout(1.0)
                    peer.connect(listener.getsockname())
                    peer.sendall(struct.pack("=q", number))


def _connected() -> Iterator[tuple[int, socket.socket]]:
    for inode, mine in _sockets():
        if _is_connecting(mine) or _is_connected(mine):
            yield inode, mine


def _is_connecting(one: socket.socket) -> bool:
    try:
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _SYN_SENT
    except OSError:  # a stream of another protocol
        return False


def _is_connected(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True


def _sockets() -> Iterator[tuple[int, socket.socket]]:
    """Each TCP socket with a duplicated descriptor, since the owner may close its own at any time."""
    if not _OPEN_FILES.is_dir():
        return
    for entry in list(_OPEN_FILES.iterdir()):
        try:
            own = os.dup(int(entry.name))
        except OSError:
            continue  # closed meanwhile
        try:
            mine = socket.socket(fileno=own)
        except OSError:  # not a socket
            os.close(own)
            continue
        with mine:
            if mine.family in (socket.AF_INET, socket.AF_INET6) and mine.type == socket.SOCK_STREAM:
                yield os.fstat(own).st_ino, mine
