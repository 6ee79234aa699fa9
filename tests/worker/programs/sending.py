"""A process that dies in the middle of a message."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading

from elasticjob.torchcompat import sockets

_BYTES_ACKED = 120  # the offset in Linux's tcp_info


def die_after(count: float) -> None:
    """End this process when so many more of its bytes have arrived."""
    before = count_sent()

    def look() -> None:
        while count_sent() - before < count:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


def count_sent() -> int:
    """The bytes of this process that have arrived."""
    total = 0
    for _, one in sockets._sockets():
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
        total += struct.unpack_from("=Q", info, _BYTES_ACKED)[0]
    return total
