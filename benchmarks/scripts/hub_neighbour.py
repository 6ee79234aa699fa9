"""One agent of another namespace, in a process of its own: how long the hub lets its pings wait.

It pings fifty times a second until a line arrives on its standard input, and prints the waits of all pings as a JSON
object: the median, 99 % and the longest, in seconds.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import ssl
import statistics
import sys
import time

from benchmarks.scripts.agent_swarm import PING, UPGRADE, text_frame

PONG = b"\x8a\x00"
PAUSE = 0.02


def connect(port: int, *, tls: bool) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    if not tls:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname="hub")


def read_until(link: socket.socket, end: bytes) -> None:
    text = b""
    while end not in text:
        more = link.recv(65536)
        if not more:
            raise SystemExit("the hub has closed the connection")
        text += more


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    link = connect(arguments.port, tls=arguments.tls)
    link.sendall(UPGRADE.format(token="other/other-worker-0").encode())
    read_until(link, b"\r\n\r\n")
    state = {"phase": "starting", "generation": 0}
    link.sendall(text_frame({"v": 1, "type": "hello", "agent": "a", "sizes": True, "state": state}))
    read_until(link, b"welcome")
    waits: list[float] = []
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        began = time.monotonic()
        link.sendall(PING)
        read_until(link, PONG)
        waits.append(time.monotonic() - began)
    found = {"median": statistics.median(waits), "p99": statistics.quantiles(waits, n=100)[-1], "longest": max(waits)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
