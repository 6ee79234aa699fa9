"""One measurement of the hub in a separate process: connect N agents, form a world, change a member.

Prints one JSON object. Each measurement uses a fresh process, because memory left by an earlier case would be counted.
With `--raw` the same bytes go through bare asyncio connections: the cost of the event loop itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import resource
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import uvloop

from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import auth, certificates, frames
from elasticjob_operator.hub.limits import HubSettings
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.run import file_limits

JOB: JobKey = ("default", "bench")
SWARM = Path(__file__).with_name("agent_swarm.py")


async def by_name(token: str) -> auth.Identity | auth.Refusal:
    job, _, pod = token.partition("/")
    return auth.Identity("default", pod, pod, job)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def uid(number: int) -> str:
    return f"bench-worker-{number}"


def world_for(generation: int, size: int) -> dict[str, wire.Directive]:
    """The operator's directives for all members; the list of members is shared, like in the operator."""
    members = tuple(
        wire.Member(pod=uid(i), rank=i, address=f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", nproc=8) for i in range(size)
    )
    store = wire.Store(address="10.0.0.0", port=40_000)
    one = wire.World(generation=generation, rank=0, members=members, store=store)
    return {uid(i): one.model_copy(update={"rank": i}) for i in range(size)}  # the constructor would copy the members


class Swarm:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.hub: Hub | None = None

    def _look(self) -> None:
        """Fail if an agent is lost: it would never get the directive, and the wait would never end."""
        lost = {} if self.hub is None else {k: n for k, n in self.hub.counts.items() if k.startswith("closed:")}
        if lost:
            raise SystemExit(f"the machine is too busy for these agents: {lost}")

    async def event(self, event: str) -> float:
        """The time at which the swarm reports that this has happened to all of its agents."""
        assert self.process.stdout is not None
        while True:
            reading = asyncio.ensure_future(self.process.stdout.readline())
            while not reading.done():
                await asyncio.wait([reading], timeout=0.5)
                self._look()
            line = reading.result()
            if not line:
                raise SystemExit("the swarm has ended early")
            found = json.loads(line)
            if found["event"] == event:
                return float(found["at"])

    async def expect_raw(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"raw": count}).encode() + b"\n")
        await self.event("expecting")


@asynccontextmanager
async def swarming(port: int, agents: int, ca: str, *more: str) -> AsyncIterator[Swarm]:
    command = [sys.executable, str(SWARM), "--port", str(port), "--agents", str(agents), *more]
    if ca:
        command += ["--ca", ca]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Swarm(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Poll as often as an operator's loop with coalesced wake-ups."""
    while not condition():  # noqa: ASYNC110 - the cost of an event per message would be measured too
        await asyncio.sleep(0.02)


async def measure_hub(agents: int, context: ssl.SSLContext | None, ca: str, idle: float) -> dict[str, Any]:
    # Thousands of handshakes queue up on one core here, so the time limits are longer.
    settings = HubSettings(
        hello_seconds=120, max_pending_sockets=20_000, max_unauthenticated=20_000, max_pending=40_000
    )
    hub = Hub(authenticate=by_name, wake=lambda job: None, settings=settings)
    hub.leader = True
    port = await hub.start("127.0.0.1", 0, context)
    found: dict[str, Any] = {}
    before, stretch = resident_bytes(), Stretch()
    heartbeat = min(5.0, max(1.0, agents / 500))
    try:
        async with swarming(port, agents, ca, "--ping", str(heartbeat)) as swarm:
            start = await swarm.event("start")
            found["connect"] = await swarm.event("seated") - start
            found["agentBytes"] = (resident_bytes() - before) / agents

            found["connectCpu"] = stretch.cpu_seconds()
            stretch = Stretch()
            await asyncio.sleep(idle)
            found["idleCpu"] = stretch.cpu_seconds() / (time.monotonic() - stretch.start)

            world = world_for(1, agents)
            stretch = Stretch()
            found["form"] = await tell(hub, swarm, world, "world")
            found["formCpu"] = stretch.cpu_seconds()
            found["frameBytes"] = len(frames.DirectiveEncoder().encode(world[uid(0)], sizes=True))
            await until(lambda: all(a.state.phase == "running" for a in hub.agents(JOB).values()))
            stretch = Stretch()
            regroup = wire.Regroup(generation=1, reason="lost")
            await tell(hub, swarm, {uid(i): regroup for i in range(agents)}, "regroup")
            await until(lambda: all(a.state.phase == "ready" for a in hub.agents(JOB).values()))
            world = world_for(2, agents)
            await tell(hub, swarm, world, "world")
            found["change"], found["changeCpu"] = time.monotonic() - stretch.start, stretch.cpu_seconds()
            found["toldBytes"] = (resident_bytes() - before) / agents
            assert hub.connections == agents, hub.counts
    finally:
        await hub.stop()
    return found


class Stretch:
    """Wall and CPU time since its creation."""

    def __init__(self) -> None:
        self.start, self.cpu = time.monotonic(), time.process_time()

    def cpu_seconds(self) -> float:
        return time.process_time() - self.cpu


async def tell(hub: Hub, swarm: Swarm, directives: dict[str, wire.Directive], event: str) -> float:
    """Seconds until the last agent has received the directive."""
    start = time.monotonic()
    hub.direct(JOB, directives)
    return await swarm.event(event) - start


async def measure_raw(agents: int, context: ssl.SSLContext | None, ca: str) -> dict[str, Any]:
    """The same bytes to the same number of sockets, without a hub."""
    transports: list[asyncio.Transport] = []

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transports.append(cast("asyncio.Transport", transport))  # uvloop's transports are not subclasses

    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        Peer, "127.0.0.1", 0, ssl=context, backlog=1024, ssl_handshake_timeout=120 if context else None
    )
    before = resident_bytes()
    found: dict[str, Any] = {}
    frame = frames.DirectiveEncoder().encode(world_for(1, agents)[uid(0)], sizes=True)
    try:
        async with swarming(server.sockets[0].getsockname()[1], agents, ca, "--raw") as swarm:
            start = await swarm.event("start")
            found["connect"] = await swarm.event("seated") - start
            await until(lambda: len(transports) == agents)
            found["agentBytes"] = (resident_bytes() - before) / agents
            await swarm.expect_raw(len(frame) * agents)
            stretch = Stretch()
            for number, transport in enumerate(transports):
                transport.write(frame)
                if number % 32 == 0:
                    await asyncio.sleep(0)
            found["form"] = await swarm.event("raw") - stretch.start
            found["formCpu"] = stretch.cpu_seconds()
    finally:
        server.close()
        for transport in transports:
            transport.abort()
    return found


async def main(arguments: argparse.Namespace) -> None:
    file_limits.raise_soft_limit()  # like the operator; the agents are in a separate process
    context, ca = None, ""
    with tempfile.TemporaryDirectory() as folder:
        if arguments.tls:
            bundle = certificates.create(["127.0.0.1"], datetime.now(UTC))
            context, ca = certificates.server_context(bundle), str(Path(folder) / "ca.crt")
            Path(ca).write_bytes(bundle.trust)
        if arguments.raw:
            found = await measure_raw(arguments.agents, context, ca)
        else:
            found = await measure_hub(arguments.agents, context, ca, arguments.idle)
    print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--idle", type=float, default=5.0)
    uvloop.run(main(parser.parse_args()))  # the operator's event loop
