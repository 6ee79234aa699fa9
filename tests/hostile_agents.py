"""What hostile pods do at the hub's door: eight attacks, each an endless loop of one pod that has its own valid token.

`attacking(door, tokens)` runs all of them for every token in this process. Run as a program, the module does the same
in a process of its own, so that the attackers' work is not counted as the hub's:

    python tests/hostile_agents.py --port 8443 --ca ca.crt --tokens tokens.json [--attacks silent_sockets,...]

It prints `attacking` once something has happened, goes on until its standard input ends, and prints one JSON
object: how often each thing happened, `attack:outcome` → count.

The module needs nothing but the standard library. It knows the wire only by its bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

PATH = "/v1/agent"
HELD = 10  # sockets that one attack of one pod holds open at a time
PATIENCE = 20.0  # seconds that an attacker waits for an answer


@dataclass(frozen=True, slots=True)
class Door:
    """Where the hub listens. `source` is the address that an attacker comes from: on loopback any of 127.0.0.0/8."""

    host: str
    port: int
    context: ssl.SSLContext | None = None
    source: str | None = None


@dataclass(slots=True)
class Attacker:
    """One hostile pod: where it knocks, who it is, and what came of it."""

    door: Door
    token: str
    tally: Counter[str] = field(default_factory=Counter)
    pause: float = 0.05  # seconds between two tries of one attack

    async def rest(self) -> None:
        await asyncio.sleep(self.pause * random.uniform(0.5, 1.5))


class Peer:
    """A connection to the hub, by its bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self, token: str, *headers: str, end: str = "\r\n\r\n", body: bytes = b"") -> None:
        lines = [f"GET {PATH} HTTP/1.1", "Host: hub", *([f"Authorization: Bearer {token}"] if token else []), *headers]
        self.writer.write("\r\n".join(lines).encode() + end.encode() + body)
        await self.writer.drain()

    async def upgrade(self, token: str) -> int:
        """Asks for a WebSocket; returns the status of the answer, 101 where it has become one, 0 where none came."""
        key = base64.b64encode(os.urandom(16)).decode()
        wanted = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}")
        await self.request(token, *wanted)
        return await self.status()

    async def status(self) -> int:
        """The status of the answer whose head comes next."""
        try:
            async with asyncio.timeout(PATIENCE):
                head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return 0
        return int(head.split(b" ", 2)[1])

    async def frame(self, opcode: int, payload: bytes) -> None:
        """One masked frame; the mask is zero, which leaves the payload as it is."""
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else struct.pack("!BH", 0x80 | 126, size)
        self.writer.write(bytes([0x80 | opcode]) + length + b"\0\0\0\0" + payload)
        await self.writer.drain()

    async def say(self, message: Mapping[str, object]) -> None:
        await self.frame(1, json.dumps({"v": 1, **message}).encode())

    async def hello(self) -> bytes:
        """Says hello; returns the bytes of what the hub answers first, b"" where it has closed."""
        await self.say({"type": "hello", "agent": f"agent-{random.random()}", "state": {"phase": "starting"}})
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read(4096)

    async def closed(self) -> None:
        """Waits until the hub has ended it."""
        while await self.reader.read(4096):
            pass


@asynccontextmanager
async def connecting(door: Door) -> AsyncIterator[Peer]:
    """An open connection, TLS included; aborted at the end, without a word."""
    local = (door.source, 0) if door.source is not None else None
    name = door.host if door.context is not None else None
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(
            door.host, door.port, ssl=door.context, server_hostname=name, local_addr=local
        )
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


async def silent_sockets(one: Attacker) -> None:
    """Opens sockets and says nothing, not even a TLS handshake."""
    async with connecting(replace(one.door, context=None)) as peer:
        one.tally["silent_sockets:opened"] += 1
        await peer.closed()


async def half_requests(one: Attacker) -> None:
    """Begins a request and drips on without ever ending its head."""
    async with connecting(one.door) as peer:
        await peer.request(one.token, end="\r\nX-Slow: ")
        one.tally["half_requests:opened"] += 1
        closed = asyncio.ensure_future(peer.closed())
        try:
            while not closed.done():
                peer.writer.write(b"a")
                await asyncio.wait([closed], timeout=0.5)
        finally:
            closed.cancel()
            await asyncio.gather(closed, return_exceptions=True)


async def unfinished_bodies(one: Attacker) -> None:
    """Announces a megabyte, sends a byte, and stays."""
    async with connecting(one.door) as peer:
        await peer.request("", "Content-Length: 1000000", body=b"x")
        one.tally[f"unfinished_bodies:{await peer.status()}"] += 1
        await peer.closed()


async def garbage_tokens(one: Attacker) -> None:
    """Shows tokens that look right: three parts, a payload, a signature that nobody made."""
    head, claims, *_ = [*one.token.split("."), ""]
    signature = base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")
    async with connecting(one.door) as peer:
        one.tally[f"garbage_tokens:{await peer.upgrade(f'{head}.{claims}.{signature}')}"] += 1


async def upgrades_without_hello(one: Attacker) -> None:
    """Becomes a WebSocket and says no hello."""
    async with connecting(one.door) as peer:
        status = await peer.upgrade(one.token)
        one.tally[f"upgrades_without_hello:{status}"] += 1
        if status == 101:
            await peer.closed()


async def hello_floods(one: Attacker) -> None:
    """Says hello and then, as fast as it can, states and large diagnoses."""
    text = "x" * 15 + "\n"
    async with connecting(one.door) as peer:
        status = await peer.upgrade(one.token)
        one.tally[f"hello_floods:{status}"] += 1
        if status != 101 or not await peer.hello():
            return
        for step in range(200):
            await peer.say({"type": "state", "state": {"phase": "ready", "step": step}})
            await peer.say({"type": "diagnosis", "kind": "hang", "text": text * 1000})
        await peer.closed()


async def malformed_messages(one: Attacker) -> None:
    """Says hello and then what no agent says, which the hub answers and writes down."""
    async with connecting(one.door) as peer:
        status = await peer.upgrade(one.token)
        one.tally[f"malformed_messages:{status}"] += 1
        if status == 101 and await peer.hello():
            await peer.frame(1, b'{"v":1,"type":"' + b"[" * 30_000)
            await peer.closed()


async def reconnect_storms(one: Attacker) -> None:
    """Comes, says hello, and is gone without a word, again and again."""
    async with connecting(one.door) as peer:
        status = await peer.upgrade(one.token)
        one.tally[f"reconnect_storms:{status}"] += 1
        if status == 101:
            await peer.hello()


Attack = Callable[[Attacker], Awaitable[None]]
_HOLDING: tuple[Attack, ...] = (silent_sockets, half_requests, unfinished_bodies, upgrades_without_hello)
_STORMING: tuple[Attack, ...] = (garbage_tokens, hello_floods, malformed_messages, reconnect_storms)
ATTACKS: Mapping[str, Attack] = {attack.__name__: attack for attack in (*_HOLDING, *_STORMING)}


async def attack_forever(attack: Attack, one: Attacker) -> None:
    """Makes one attack again and again. What the hub does to it is counted and no error."""
    await asyncio.sleep(random.uniform(0, 40 * one.pause))  # else they would stand in their own way
    while True:
        try:
            await attack(one)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError) as error:
            one.tally[f"{attack.__name__}:{type(error).__name__}"] += 1
        await one.rest()


@asynccontextmanager
async def attacking(
    door: Door,
    tokens: Sequence[str],
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    held: int = HELD,
    pause: float = 0.05,
    sources: bool = False,
) -> AsyncIterator[Counter[str]]:
    """One hostile pod per token; yields the tally of all, which grows meanwhile.

    Of the attacks that hold a socket each pod runs `held` at a time, of the others one. With `sources` each pod has an
    address of its own, 127.1.x.y, as pods have in a cluster; without, all of them share the hub's view of this one.
    """
    tally: Counter[str] = Counter()
    tasks: list[asyncio.Task[None]] = []
    for number, token in enumerate(tokens):
        source = f"127.1.{number >> 8}.{number & 255}" if sources else door.source
        one = Attacker(replace(door, source=source), token, tally, pause)
        for name in attacks:
            attack = ATTACKS[name]
            copies = held if attack in _HOLDING else 1
            tasks += [asyncio.create_task(attack_forever(attack, one)) for _ in range(copies)]
    try:
        yield tally
    finally:
        waiting = set(tasks)
        while waiting:  # asyncio's streams now and then swallow a cancellation
            for task in waiting:
                task.cancel()
            _, waiting = await asyncio.wait(waiting, timeout=1)


class Hostile:
    """The attackers' process, seen from the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.tally: dict[str, int] = {}

    async def stop(self) -> dict[str, int]:
        """Ends it and returns its tally."""
        if self.process.returncode is None:
            out, _ = await self.process.communicate(b"")
            self.tally = json.loads(out.splitlines()[-1])
        return self.tally


@asynccontextmanager
async def attacking_process(
    port: int, ca: Path | None, tokens: Path, *more: str, host: str = "127.0.0.1"
) -> AsyncIterator[Hostile]:
    """The attackers in a process of their own; they have begun when this yields."""
    command = [sys.executable, __file__, "--host", host, "--port", str(port), "--tokens", str(tokens), *more]
    command += ["--ca", str(ca)] if ca is not None else []
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    hostile = Hostile(process)
    try:
        assert process.stdout is not None
        began = await process.stdout.readline()
        assert began == b"attacking\n", f"the attackers did not start: {began!r}"
        yield hostile
        await hostile.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def main(arguments: argparse.Namespace) -> None:
    tokens = json.loads(Path(arguments.tokens).read_text())
    context = ssl.create_default_context(cafile=arguments.ca) if arguments.ca else None
    door = Door(arguments.host, arguments.port, context)
    options = {"held": arguments.held, "pause": arguments.pause, "sources": arguments.sources}
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def end() -> None:
        loop.remove_reader(sys.stdin)
        over.set()

    loop.add_reader(sys.stdin, end)
    async with attacking(door, tokens, attacks=arguments.attacks.split(","), **options) as tally:
        deadline = time.monotonic() + PATIENCE
        while not tally and time.monotonic() < deadline:  # noqa: ASYNC110 - counts have no event
            await asyncio.sleep(0.02)
        print("attacking", flush=True)
        await over.wait()
    print(json.dumps(dict(sorted(tally.items()))), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ca", default="", help="file with the authority to trust; without it, no TLS")
    parser.add_argument("--tokens", required=True, help="file with a JSON list of tokens, one for each hostile pod")
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--held", type=int, default=HELD)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--sources", action="store_true", help="each pod comes from an address of its own, 127.1.x.y")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args()))
