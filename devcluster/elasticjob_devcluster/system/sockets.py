"""Unix sockets below directories of any depth: the kernel limits paths to 108 bytes, and temporary directories may be
longer.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def listen_unix(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
            path.chmod(0o600)
            listener.listen(64)
        except OSError:
            listener.close()
            raise
        return listener
    finally:
        os.close(directory)


def connect_unix(path: Path, timeout: float | None = None) -> socket.socket:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(f"/proc/self/fd/{directory}/{path.name}")
        return connection
    except OSError:
        connection.close()
        raise
    finally:
        os.close(directory)
