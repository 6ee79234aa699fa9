"""The loopback addresses of a cluster, its nodes and its pods.

All of 127.0.0.0/8 belongs to this machine, so every pod can have its own address without any set-up:
127.<cluster>.<node>.<pod>. A listening socket claims the cluster's number, so two clusters on one machine never share
one.
"""

from __future__ import annotations

import errno
import secrets
import socket
from typing import Final

CLAIM_PORT: Final = 10256  # any fixed port works: the socket is the lock
FIRST_POD: Final = 2
LAST_POD: Final = 254
_PORTS: Final = range(15_000, 32_000)
_TRIES: Final = 100


def claim_cluster(start: int) -> tuple[int, socket.socket]:
    """A free cluster number and the socket that holds it; closing the socket releases the number."""
    for offset in range(253):
        number = 1 + (start + offset) % 253
        claim = socket.socket()
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            claim.bind((own_address(number), CLAIM_PORT))
            claim.listen(1)
        except OSError as error:
            claim.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise
        return number, claim
    raise RuntimeError("253 devclusters run on this machine: stop one with `elasticjob-devcluster down`")


def own_address(cluster: int) -> str:
    """The address on which the cluster itself listens when it needs a fixed port."""
    return f"127.{cluster}.255.254"


def node_address(cluster: int, node: int) -> str:
    if not 0 <= node <= 254:
        raise ValueError(f"node number {node} is outside 0..254: a devcluster has at most 255 nodes")
    return f"127.{cluster}.{node}.1"


def pod_address(node_ip: str, used: set[str]) -> str | None:
    """The first free pod address of the node, or None if all 253 are taken."""
    prefix = node_ip.rsplit(".", 1)[0]
    for last in range(FIRST_POD, LAST_POD + 1):
        address = f"{prefix}.{last}"
        if address not in used:
            return address
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Another process may take it first: callers retry with another one.

    It lies below those that the kernel hands out to connections and to who asks for any port: thousands of them come
    and go while tests run, and one may be this port, between this call and its use.
    """
    for _ in range(_TRIES):
        with socket.socket() as probe:
            port = _PORTS.start + secrets.randbelow(len(_PORTS))
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            return port
    raise RuntimeError(f"none of {_TRIES} ports of {host} between {_PORTS.start} and {_PORTS.stop - 1} is free")
