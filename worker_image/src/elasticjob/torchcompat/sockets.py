"""The TCP connections of this process, to be ended from a thread that does not own them.

gloo has no abort: a collective waits until its peers answer, die or time out. Where a peer is silent, ending our side
of its connections makes the collective raise. Only the side that reads: gloo queues a write that fails, and forgets the
queue when it then reads that the connection is over; who waits for that send would wait for the group's timeout.
Linux only; elsewhere nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")


def find_connections() -> frozenset[int]:
    """The inodes of all TCP sockets that are connected now."""
    return frozenset(inode for inode, _ in _connected())


def shut_down(inodes: frozenset[int]) -> int:
    """Let these connections read their end, as if the peers had closed them; returns how many there still were."""
    count = 0
    for inode, connection in _connected():
        if inode in inodes:
            with contextlib.suppress(OSError):  # the peer was faster
                connection.shutdown(socket.SHUT_RD)
                count += 1
    return count


def _connected() -> Iterator[tuple[int, socket.socket]]:
    """Each with a descriptor of its own, since the owner may close his at any time."""
    if not _OPEN_FILES.is_dir():
        return
    for entry in list(_OPEN_FILES.iterdir()):
        try:
            own = os.dup(int(entry.name))
        except OSError:
            continue  # closed meanwhile
        try:
            mine = socket.socket(fileno=own)
        except OSError:  # no socket
            os.close(own)
            continue
        with mine:
            if mine.family in (socket.AF_INET, socket.AF_INET6) and mine.type == socket.SOCK_STREAM:
                with contextlib.suppress(OSError):
                    mine.getpeername()
                    yield os.fstat(own).st_ino, mine
