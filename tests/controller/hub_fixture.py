"""A hub on loopback, and agents that connect to it over real sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import auth
from elasticjob_operator.hub.limits import HubSettings
from elasticjob_operator.hub.server import Hub

JOB: JobKey = ("default", "digits")
FAST = HubSettings(
    hello_seconds=1.0,
    heartbeat_min=0.2,
    timeout_min=1.0,
    sweep_seconds=0.05,
    close_seconds=0.5,
    connect_burst=1000,
)


async def by_name(token: str, address: str) -> auth.Identity | auth.Refusal:
    """Authenticates tokens of the form `<job>/<pod>`."""
    job, _, pod = token.partition("/")
    if token == "bad":
        return auth.Refusal(401, "bad token")
    if not pod:
        return auth.Refusal(403, "not a worker pod of an ElasticJob")
    return auth.Identity("default", pod, f"uid-{pod}", job)


class RunningHub:
    def __init__(self, hub: Hub, woken: list[JobKey]) -> None:
        self.hub = hub
        self.woken = woken
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{wire.PATH}"


@asynccontextmanager
async def running_hub(
    settings: HubSettings = FAST,
    *,
    authenticate: auth.Authenticator = by_name,
    leader: bool = True,
    context: ssl.SSLContext | None = None,
    expected: Mapping[str, int] | None = None,
) -> AsyncIterator[RunningHub]:
    woken: list[JobKey] = []
    hub = Hub(authenticate=authenticate, wake=woken.append, settings=settings, expected=lambda: expected or {})
    hub.leader = leader
    running = RunningHub(hub, woken)
    running.port = await hub.start("127.0.0.1", 0, context)
    running.scheme = "https" if context is not None else "http"
    try:
        yield running
    finally:
        await hub.stop()


class AgentClient:
    """One agent's end of the connection."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, agent: str) -> None:
        self.ws = ws
        self.agent = agent

    async def say(self, message: wire.Hello | wire.State | wire.Progress | wire.Diagnosis) -> None:
        await self.ws.send_str(json.dumps(message.dump()))

    async def hello(self, *, sizes: bool = False, **state: Any) -> None:
        state.setdefault("phase", "starting")
        await self.say(wire.Hello(agent=self.agent, sizes=sizes, state=wire.AgentState(**state)))

    async def state(self, **state: Any) -> None:
        await self.say(wire.State(state=wire.AgentState(**state)))

    async def hear(self) -> wire.Welcome | wire.DirectiveMessage | wire.Error | None:
        """The next message of the hub; None if it closed the connection."""
        frame = await asyncio.wait_for(self.ws.receive(), 30)
        if frame.type is not aiohttp.WSMsgType.TEXT:
            return None
        return wire.HUB_MESSAGE.validate_json(frame.data)

    async def directive(self) -> wire.Directive:
        message = await self.hear()
        assert isinstance(message, wire.DirectiveMessage), message
        return message.directive

    async def refusal(self) -> tuple[wire.Error | None, int | None]:
        """The hub's last message before it closed the connection, and the close code."""
        error: wire.Error | None = None
        while (message := await self.hear()) is not None:
            if isinstance(message, wire.Error):
                error = message
        return error, self.ws.close_code


@asynccontextmanager
async def connected(
    running: RunningHub,
    pod: str = "digits-worker-0",
    *,
    job: str = "digits",
    agent: str | None = None,
    context: ssl.SSLContext | None = None,
    heartbeat: float | None = 0.2,
) -> AsyncIterator[AgentClient]:
    """An open socket that has not sent hello."""
    connector = aiohttp.TCPConnector(ssl=context) if context is not None else None
    async with aiohttp.ClientSession(connector=connector) as session:
        headers = {"Authorization": f"Bearer {job}/{pod}"}
        async with session.ws_connect(running.url, headers=headers, heartbeat=heartbeat) as ws:
            yield AgentClient(ws, agent or str(uuid.uuid4()))


@asynccontextmanager
async def seated(running: RunningHub, pod: str = "digits-worker-0", **more: Any) -> AsyncIterator[AgentClient]:
    """An agent that has sent hello and received its welcome."""
    state, sizes = more.pop("state", {}), more.pop("sizes", False)
    async with connected(running, pod, **more) as client:
        await client.hello(sizes=sizes, **state)
        welcome = await client.hear()
        assert isinstance(welcome, wire.Welcome), welcome
        yield client


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for the condition; a failure shows its source line in the traceback."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)
