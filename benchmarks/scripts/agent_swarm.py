"""Thousands of minimal agents in one process, so that the measurement is dominated by the hub.

They use the real protocol over real sockets, ping as often as the hub told each of them, and come back like real agents
(`elasticjob.protocol.directives.backoff`), but parse only the head of a directive and do not check the hub's
certificate. Commands are JSON lines on standard input, responses go to standard output. Times are CLOCK_MONOTONIC,
which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import resource
import ssl
import struct
import sys
import time
from typing import Any, cast

import uvloop

from elasticjob.protocol import directives

DIRECTIVE = re.compile(rb'"action":"(world|regroup)".{0,40}?"generation":(\d+)')
UPGRADE = (
    "GET /v1/agent HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Authorization: Bearer {token}\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"
CLOSE = b"\x88\x80\0\0\0\0"
AWAY = (b"\x03\xe9", b"\x03\xf4")  # 1001, 1012


SMALL = 10  # agents of every job but the first


def job_of(number: int, largest: int) -> str:
    """The job of an agent: the first one has `largest` members, all others have ten. Pure."""
    return "bench-0" if number < largest else f"bench-{1 + (number - largest) // SMALL}"


def text_frame(message: dict[str, Any]) -> bytes:
    """A masked text frame; a mask of zeros is valid and costs the sender nothing."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) < 126:
        return bytes([0x81, 0x80 | len(payload)]) + b"\0\0\0\0" + payload
    return struct.pack("!BBH", 0x81, 0xFE, len(payload)) + b"\0\0\0\0" + payload


class Agent(asyncio.Protocol):
    """One agent, over its connections. `raw` ones only count bytes: the limit to compare with."""

    def __init__(self, swarm: Swarm, number: int) -> None:
        self._swarm = swarm
        self._number = number
        self._lives = 0
        self._attempt = 0
        self._spread = 0.0
        self._start()

    def _start(self) -> None:
        self._buffer = bytearray()
        self._upgraded = False
        self._sent_away = self._busy = False
        self._transport: asyncio.Transport | None = None
        self._pinging: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._start()
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses
        if self._swarm.raw:
            self._swarm.seated()
        else:
            self._transport.write(UPGRADE.format(token=self._swarm.token(self._number)).encode())

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if self._pinging is not None:
            self._pinging.cancel()
        if not self._swarm.raw:
            self.come_back()

    def come_back(self) -> None:
        """Plan the next attempt, as a real agent does."""
        wait = directives.backoff(
            self._attempt, random.random(), self._spread, sent_away=self._sent_away, busy=self._busy
        )
        self._attempt += 1
        asyncio.get_running_loop().call_later(wait, self._swarm.connect_soon, self)

    def die(self) -> None:
        """The pod is lost, and another one takes its place: a new agent, which is in no world."""
        if self._transport is not None:
            self._lives += 1
            self._attempt, self._spread = 0, 0.0
            self._transport.abort()

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
                self._swarm.refused += 1
                self._busy = b"Retry-After" in self._buffer
                assert self._transport is not None
                self._transport.abort()
                return
            del self._buffer[: end + 4]
            self._upgraded = True
            state = {"phase": "starting", "generation": 0}
            name = f"a-{self._number}-{self._lives}"
            self._say({"v": 1, "type": "hello", "agent": name, "sizes": self._swarm.sizes, "state": state})
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
        elif opcode == 8 and self._transport is not None:
            self._sent_away = bytes(self._buffer[head : head + 2]) in AWAY
            self._transport.write(CLOSE)
            self._transport.close()
        del self._buffer[: head + size]
        return True

    def _hear(self, text: bytes) -> None:
        found = DIRECTIVE.search(text)
        if found is None:
            if b'"welcome"' in text:
                self._settle(json.loads(text))
            return
        action, generation = found[1].decode(), int(found[2])
        self._swarm.told(action, generation)
        state: dict[str, Any] = {"phase": "running", "generation": generation}
        if action == "regroup":
            state |= {"phase": "ready", "store": {"address": "10.0.0.1", "port": 40_000 + generation % 20_000}}
        self._say({"v": 1, "type": "state", "state": state})

    def _settle(self, welcome: dict[str, Any]) -> None:
        self._attempt, self._spread = 0, welcome["reconnectSeconds"]
        if self._swarm.joins:
            store = {"address": "10.0.0.1", "port": 40_000}
            self._say({"v": 1, "type": "state", "state": {"phase": "ready", "generation": 0, "store": store}})
        self._swarm.seated()
        every = float(welcome["heartbeatSeconds"])
        loop = asyncio.get_running_loop()
        self._pinging = loop.call_later(every * random.random(), self._ping, loop, every)

    def _ping(self, loop: asyncio.AbstractEventLoop, every: float) -> None:
        if self._transport is not None:
            self._transport.write(PING)
            self._pinging = loop.call_later(every, self._ping, loop, every)

    def _say(self, message: dict[str, Any]) -> None:
        if self._transport is not None:
            self._transport.write(text_frame(message))


class Swarm:
    def __init__(self, arguments: argparse.Namespace, context: ssl.SSLContext | None) -> None:
        self.raw: bool = arguments.raw
        self.sizes: bool = not arguments.lists
        self.joins: bool = arguments.members > 0  # newcomers are ready at once
        self.refused = 0
        self.attempts: list[float] = []
        self.agents = [Agent(self, number) for number in range(arguments.agents)]
        self._port: int = arguments.port
        self._members: int = arguments.members
        self._context = context
        self._gate = asyncio.Semaphore(arguments.parallel)
        self._seated = 0
        self._raw_bytes = 0
        self._raw_goal = 0
        self._told: dict[tuple[str, int], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def token(self, number: int) -> str:
        job = job_of(number, self._members) if self._members else "bench"
        return f"{job}/bench-worker-{number}"

    def answer(self, **message: Any) -> None:
        print(json.dumps({**message, "at": time.monotonic(), "cpu": time.process_time()}), flush=True)

    def seated(self) -> None:
        self._seated += 1
        if self._seated == len(self.agents):
            self.answer(event="seated", refused=self.refused, attempts=self.attempts)

    def told(self, action: str, generation: int) -> None:
        key = (action, generation)
        self._told[key] = self._told.get(key, 0) + 1
        if self._told[key] == len(self.agents):
            self.answer(event=action, generation=generation)

    def count_raw(self, count: int) -> None:
        self._raw_bytes += count
        if self._raw_goal and self._raw_bytes >= self._raw_goal:
            self._raw_goal = 0
            self.answer(event="raw")

    async def connect(self, agent: Agent) -> None:
        async with self._gate:
            self.attempts.append(time.monotonic())
            try:
                await asyncio.get_running_loop().create_connection(
                    lambda: agent,
                    "127.0.0.1",
                    self._port,
                    ssl=self._context,
                    server_hostname="hub" if self._context else None,
                    ssl_handshake_timeout=60 if self._context else None,
                )
            except OSError:
                agent.come_back()

    def connect_soon(self, agent: Agent) -> None:
        task = asyncio.get_running_loop().create_task(self.connect(agent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def obey(self, command: dict[str, Any]) -> None:
        if "raw" in command:
            self._raw_goal = self._raw_bytes + int(command["raw"])
        if command.get("leave"):  # the hub is about to go: count who is back
            self._seated, self.refused, self.attempts = 0, 0, []
            self._gate = asyncio.Semaphore(len(self.agents))
        if "kill" in command:
            for number in command["kill"]:
                self.agents[number].die()
        self.answer(event="done")


async def main(arguments: argparse.Namespace) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    context = None
    if arguments.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    swarm = Swarm(arguments, context)
    swarm.answer(event="start")
    await asyncio.gather(*(swarm.connect(agent) for agent in swarm.agents))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        swarm.obey(json.loads(line))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--members", type=int, default=0, help="of each job; newcomers are ready at once")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--lists", action="store_true", help="agents that want the members of a world, not its sizes")
    uvloop.run(main(parser.parse_args()))
