"""The TCP connections of this process, which another thread than their owner can shut down.

gloo has no abort: a collective waits until its peers answer, die or time out. If a peer is silent, shutting down our
side of its connections makes the collective raise. Only the read side: gloo queues a failed write, and drops the queue
when it then reads the end of the connection; a thread that waits for that send waits for the group's timeout. So does
one whose peer dies while a send to it is queued: no call of this process ends that wait, so the agent ends the process.
Linux only; elsewhere no connection is found.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")


def find_connections() -> frozenset[int]:
    """The inodes of all connected TCP sockets."""
    return frozenset(inode for inode, _ in _connected())


def shut_down(inodes: frozenset[int]) -> int:
    """Shut down the read side of these connections, as if the peers had closed them; return how many still existed."""
    count = 0
    for inode, connection in _connected():
        if inode in inodes:
            with contextlib.suppress(OSError):  # the peer has already closed
                connection.shutdown(socket.SHUT_RD)
                count += 1
    return count


def _connected() -> Iterator[tuple[int, socket.socket]]:
    """Each socket with a duplicated descriptor, since the owner may close its own at any time."""
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
                with contextlib.suppress(OSError):
                    mine.getpeername()
                    yield os.fstat(own).st_ino, mine
