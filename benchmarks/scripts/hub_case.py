"""One measurement of the hub in a separate process: connect N agents, form a world, change a member, restart the hub.

Prints one JSON object. Each measurement uses a fresh process, because memory left by an earlier case would be counted.
With `--raw` the same bytes go through bare asyncio connections: the cost of the event loop itself. With `--churn`
members are lost all the time (`hub_churn`). With `--lists` agents are told the members of a world instead of its sizes,
and what the ping of another namespace waits meanwhile is measured.
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
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.scripts import hub_churn
from elasticjob_operator.__main__ import calm_collector
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import auth, certificates, frames
from elasticjob_operator.hub.limits import HubSettings
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.run import file_limits

JOB: JobKey = ("default", "bench")
OTHER = "other"  # a job of another namespace, with one agent
PARALLEL = 32  # requests to the API server, as the operator's default
SWARM = Path(__file__).with_name("agent_swarm.py")
NEIGHBOUR = "benchmarks.scripts.hub_neighbour"


async def by_name(token: str, address: str) -> auth.Identity | auth.Refusal:
    job, _, pod = token.partition("/")
    return auth.Identity("other" if job == OTHER else "default", pod, pod, job)


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
        self._hub: Hub | None = None
        self._closed: Counter[str] = Counter()
        self.cpu = 0.0  # seconds of the swarm's process, at its last event

    def watch(self, hub: Hub | None) -> None:
        """From now on none of its connections may be closed."""
        self._hub = hub
        self._closed = Counter() if hub is None else _count_closed(hub)

    def _look(self) -> None:
        """Fail if an agent is lost: it would never get the directive, and the wait would never end."""
        lost = {} if self._hub is None else dict(_count_closed(self._hub) - self._closed)
        if lost:
            raise SystemExit(f"the machine is too busy for these agents: {lost}")

    async def event(self, event: str) -> dict[str, Any]:
        """What the swarm reports when this has happened to all of its agents. `at` is the time."""
        assert self.process.stdout is not None
        while True:
            reading = asyncio.ensure_future(self.process.stdout.readline())
            while not reading.done():
                await asyncio.wait([reading], timeout=0.5)
                self._look()
            line = reading.result()
            if not line:
                raise SystemExit("the swarm has ended early")
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event:
                self.cpu = float(found["cpu"])
                return found

    async def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        await self.event("done")


def _count_closed(hub: Hub) -> Counter[str]:
    return Counter({reason: count for reason, count in hub.counts.items() if reason.startswith("closed:")})


@asynccontextmanager
async def swarming(port: int, agents: int, tls: bool, *more: str) -> AsyncIterator[Swarm]:
    command = [sys.executable, str(SWARM), "--port", str(port), "--agents", str(agents), *more]
    if tls:
        command += ["--tls"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**22
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


def make_hub(agents: int, wake: Callable[[JobKey], None] = lambda job: None) -> Hub:
    """A hub with the operator's limits, which knows how many pods there are."""
    _, settings = file_limits.take_all(PARALLEL, HubSettings())
    hub = Hub(authenticate=by_name, wake=wake, settings=settings, expected=lambda: {"default": agents})
    hub.leader = True
    return hub


async def measure_hub(agents: int, context: ssl.SSLContext | None, idle: float) -> dict[str, Any]:
    hub = make_hub(agents)
    port = await hub.start("127.0.0.1", 0, context)
    found: dict[str, Any] = {}
    before, stretch = resident_bytes(), Stretch()
    try:
        async with swarming(port, agents, context is not None) as swarm:
            start = await swarm.event("start")
            seated = await swarm.event("seated")
            found["connect"] = seated["at"] - start["at"]
            found["agentBytes"] = (resident_bytes() - before) / agents
            found["connectCpu"] = stretch.cpu_seconds()
            found["swarmCpu"] = seated["cpu"] - start["cpu"]
            swarm.watch(hub)
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

            swarm.watch(None)
            await swarm.tell(leave=True)
            await hub.stop()
            hub = make_hub(agents)
            await hub.start("127.0.0.1", port, context)
            stretch = Stretch()
            back = await swarm.event("seated")
            found["back"], found["backCpu"] = back["at"] - stretch.start, stretch.cpu_seconds()
            met = [at - stretch.start for at in back["attempts"] if at >= stretch.start]
            found["backAttempts"] = len(met)
            found["backPeak"] = max(Counter(int(at / 0.25) for at in met).values(), default=0) / 0.25
            found["backRefused"] = back["refused"]
    finally:
        await hub.stop()
    return found


async def measure_lists(agents: int, context: ssl.SSLContext | None) -> dict[str, Any]:
    """A world whose agents are told all of its members, and meanwhile the pings of an agent of another namespace."""
    hub = make_hub(agents + 1)
    port = await hub.start("127.0.0.1", 0, context)
    found: dict[str, Any] = {}
    try:
        async with swarming(port, agents, context is not None, "--lists") as swarm:
            await swarm.event("seated")
            world = world_for(1, agents)
            found["frameBytes"] = len(frames.DirectiveEncoder().encode(world[uid(0)]))
            swarm.watch(hub)
            pulse = Pulse()
            command = [sys.executable, "-m", NEIGHBOUR, "--port", str(port)]
            neighbour = await asyncio.create_subprocess_exec(
                *command, *(["--tls"] if context else []), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            await asyncio.sleep(2.0)
            quiet, pulse.longest = pulse.longest, 0.0
            before, stretch = resident_bytes(), Stretch()
            found["form"] = await tell(hub, swarm, world, "world")
            found |= {"formCpu": stretch.cpu_seconds(), "stretch": pulse.longest, "quietStretch": quiet}
            found["formBytes"] = resident_bytes() - before
            said, _ = await neighbour.communicate(b"end\n")
            found["waits"] = json.loads(said)
    finally:
        await hub.stop()
    return found


class Pulse:
    """The longest CPU time between two samples of the event loop, of which it takes a thousand a second."""

    def __init__(self) -> None:
        self.longest, self._before = 0.0, time.thread_time()
        self._look()

    def _look(self) -> None:
        now = time.thread_time()
        self.longest, self._before = max(self.longest, now - self._before), now
        asyncio.get_running_loop().call_later(0.001, self._look)


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
    return float((await swarm.event(event))["at"]) - start


async def measure_raw(agents: int, context: ssl.SSLContext | None) -> dict[str, Any]:
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
        async with swarming(server.sockets[0].getsockname()[1], agents, context is not None, "--raw") as swarm:
            stretch = Stretch()
            start = await swarm.event("start")
            found["connect"] = (await swarm.event("seated"))["at"] - start["at"]
            found["connectCpu"] = stretch.cpu_seconds()
            await until(lambda: len(transports) == agents)
            found["agentBytes"] = (resident_bytes() - before) / agents
            await swarm.tell(raw=len(frame) * agents)
            stretch = Stretch()
            for number, transport in enumerate(transports):
                transport.write(frame)
                if number % 32 == 0:
                    await asyncio.sleep(0)
            found["form"] = (await swarm.event("raw"))["at"] - stretch.start
            found["formCpu"] = stretch.cpu_seconds()
    finally:
        server.close()
        for transport in transports:
            transport.abort()
    return found


async def main(arguments: argparse.Namespace) -> None:
    file_limits.raise_soft_limit()  # like the operator; the agents are in a separate process
    calm_collector()  # like the operator
    context = None
    if arguments.tls:
        context = certificates.server_context(certificates.create(["127.0.0.1"], datetime.now(UTC)))
    if arguments.raw:
        found = await measure_raw(arguments.agents, context)
    elif arguments.lists:
        found = await measure_lists(arguments.agents, context)
    elif arguments.churn:
        churn = hub_churn.Churn(
            arguments.agents, arguments.members, arguments.rate, arguments.churn, one_by_one=arguments.one_by_one
        )
        hub = make_hub(arguments.agents, churn.wake)
        port = await hub.start("127.0.0.1", 0, context)
        try:
            more = ("--members", str(arguments.members))
            async with swarming(port, arguments.agents, context is not None, *more) as swarm:
                found = await churn.run(hub, swarm)
        finally:
            await hub.stop()
    else:
        found = await measure_hub(arguments.agents, context, arguments.idle)
    print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--idle", type=float, default=5.0)
    parser.add_argument("--churn", type=float, default=0.0, help="seconds in which members are lost")
    parser.add_argument("--members", type=int, default=1000, help="of each world, with --churn")
    parser.add_argument("--rate", type=float, default=0.02, help="share of the agents lost a second, with --churn")
    parser.add_argument("--lists", action="store_true", help="agents are told the members of their world")
    parser.add_argument("--one-by-one", action="store_true", help="lose agents one after the other, not in waves")
    uvloop.run(main(parser.parse_args()))  # the operator's event loop
