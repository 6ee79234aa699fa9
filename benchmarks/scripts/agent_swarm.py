"""Thousands of minimal agents in one process, so that the measurement is dominated by the hub.

They use the real protocol over real sockets but parse only the head of a directive. Commands are JSON lines on standard
input, responses go to standard output. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import ssl
import struct
import sys
import time
from typing import Any

DIRECTIVE = re.compile(rb'"action":"(world|regroup)".{0,40}?"generation":(\d+)')
UPGRADE = (
    "GET /v1/agent HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Authorization: Bearer {token}\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"


def text_frame(message: dict[str, Any]) -> bytes:
    """A masked text frame; a mask of zeros is valid and costs the sender nothing."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) < 126:
        return bytes([0x81, 0x80 | len(payload)]) + b"\0\0\0\0" + payload
    return struct.pack("!BBH", 0x81, 0xFE, len(payload)) + b"\0\0\0\0" + payload


class Agent(asyncio.Protocol):
    """One connection. `raw` connections only count bytes: the limit to compare with."""

    def __init__(self, swarm: Swarm, number: int) -> None:
        self._swarm = swarm
        self._number = number
        self._buffer = bytearray()
        self._upgraded = False
        self._transport: asyncio.Transport | None = None
        self.welcomed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._swarm.raw:
            self._swarm.seated()
        else:
            token = f"bench/bench-worker-{self._number}"
            transport.write(UPGRADE.format(token=token).encode())

    def data_received(self, data: bytes) -> None:
        if self._swarm.raw:
            self._swarm.count_raw(len(data))
            return
        self._buffer += data
        if not self._upgraded:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._buffer.startswith(b"HTTP/1.1 101"):
                raise SystemExit(f"the hub refused agent {self._number}: {bytes(self._buffer[:200])!r}")
            del self._buffer[: end + 4]
            self._upgraded = True
            state = {"phase": "starting", "generation": 0}
            self._say({"v": 1, "type": "hello", "agent": f"a-{self._number}", "sizes": True, "state": state})
        while self._take_frame():
            pass

    def _take_frame(self) -> bool:
        have = len(self._buffer)
        if have < 2:
            return False
        opcode, size, head = self._buffer[0] & 15, self._buffer[1], 2
        if size == 126:
            size, head = (int.from_bytes(self._buffer[2:4], "big"), 4) if have >= 4 else (have + 1, 4)
        elif size == 127:
            size, head = (int.from_bytes(self._buffer[2:10], "big"), 10) if have >= 10 else (have + 1, 10)
        if have < head + size:
            return False
        if opcode == 1:
            self._hear(bytes(self._buffer[head : head + min(size, 256)]))
        del self._buffer[: head + size]
        return True

    def _hear(self, text: bytes) -> None:
        found = DIRECTIVE.search(text)
        if found is None:
            if b'"welcome"' in text:
                assert self._transport is not None
                self._swarm.transports.append(self._transport)
                self._swarm.seated()
            return
        action, generation = found[1].decode(), int(found[2])
        self._swarm.told(action, generation)
        state: dict[str, Any] = {"phase": "running", "generation": generation}
        if action == "regroup":
            state |= {"phase": "ready", "store": {"address": "10.0.0.1", "port": 40_000 + generation}}
        self._say({"v": 1, "type": "state", "state": state})

    def _say(self, message: dict[str, Any]) -> None:
        assert self._transport is not None
        self._transport.write(text_frame(message))


class Swarm:
    def __init__(self, raw: bool, agents: int) -> None:
        self.raw = raw
        self.transports: list[asyncio.Transport] = []
        self._agents = agents
        self._seated = 0
        self._raw_bytes = 0
        self._raw_goal = 0
        self._told: dict[tuple[str, int], int] = {}

    def answer(self, **message: Any) -> None:
        print(json.dumps({**message, "at": time.monotonic()}), flush=True)

    def seated(self) -> None:
        self._seated += 1
        if self._seated == self._agents:
            self.answer(event="seated")

    def told(self, action: str, generation: int) -> None:
        key = (action, generation)
        self._told[key] = self._told.get(key, 0) + 1
        if self._told[key] == self._agents:
            self.answer(event=action, generation=generation)

    def expect_raw(self, count: int) -> None:
        self._raw_goal = self._raw_bytes + count

    def count_raw(self, count: int) -> None:
        self._raw_bytes += count
        if self._raw_goal and self._raw_bytes >= self._raw_goal:
            self._raw_goal = 0
            self.answer(event="raw")

    async def ping_forever(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            for transport in self.transports:
                if not transport.is_closing():
                    transport.write(PING)


async def main(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    swarm = Swarm(arguments.raw, arguments.agents)
    context = ssl.create_default_context(cafile=arguments.ca) if arguments.ca else None
    gate = asyncio.Semaphore(arguments.parallel)

    async def connect(number: int) -> None:
        async with gate:
            await loop.create_connection(
                lambda: Agent(swarm, number),
                "127.0.0.1",
                arguments.port,
                ssl=context,
                ssl_handshake_timeout=60 if context else None,
            )

    swarm.answer(event="start")
    pinging = asyncio.create_task(swarm.ping_forever(arguments.ping)) if arguments.ping else None
    await asyncio.gather(*(connect(number) for number in range(arguments.agents)))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        swarm.expect_raw(int(json.loads(line)["raw"]))
        swarm.answer(event="expecting")
    if pinging is not None:
        pinging.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--ca")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--ping", type=float, default=0.0)
    parser.add_argument("--parallel", type=int, default=64)
    asyncio.run(main(parser.parse_args()))
