"""The connections of a process that another thread ends."""

from __future__ import annotations

import os
import socket
import struct
import threading

from elasticjob.torchcompat import sockets

LARGEST_WORLD = 5000  # pods of a job, of one process each


def test_every_pair_of_the_largest_world_is_ended() -> None:
    """gloo waits for each rank to say the number of its pair: those that hear nothing wait for the group's timeout."""
    heard: set[int] = set()

    def listen(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                number = struct.unpack("=q", connection.recv(8, socket.MSG_WAITALL))[0]
            if number < 0:
                return
            heard.add(number)

    with socket.create_server(("127.0.0.1", 0), backlog=LARGEST_WORLD) as listener:
        gloo = threading.Thread(target=listen, args=(listener,), daemon=True)
        gloo.start()
        sockets.knock(frozenset({os.fstat(listener.fileno()).st_ino}), LARGEST_WORLD)
        with socket.create_connection(listener.getsockname()) as last:
            last.sendall(struct.pack("=q", -1))
        gloo.join(30.0)
    assert heard == {*range(LARGEST_WORLD)}
