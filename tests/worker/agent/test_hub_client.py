"""When the agent comes back: at once if only its connection broke, spread if the hub has sent all agents away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from elasticjob.agent import hub_client
from elasticjob.agent.events import HubView
from elasticjob.agent.hub_client import Hub
from elasticjob.env import Settings
from elasticjob.protocol import directives, wire

PROGRAM = Path(__file__).parents[1] / "programs" / "outlived_agent_program.py"


@contextlib.asynccontextmanager
async def hub_at(
    tmp_path: Path,
    meet: Callable[[ServerConnection], Awaitable[None]],
    on_view: Callable[[HubView], None] = lambda view: None,
) -> AsyncIterator[Hub]:
    """An agent's client whose hub is `meet`."""
    token = tmp_path / "token"
    token.write_text("a-token")
    async with serve(meet, "127.0.0.1", 0, close_timeout=0.2) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        settings = Settings(hub_url=f"ws://127.0.0.1:{port}", token_file=token, pod_ip="127.0.0.1")
        hub = Hub(settings, {}, wire.AgentState(), on_view)
        hub.start()
        try:
            yield hub
        finally:
            await asyncio.to_thread(hub.close)


def reconnect(tmp_path: Path, spread: float, code: int | None) -> float:
    """Seconds from the end of an agent's first connection, by this close code or broken, to its second hello."""
    ended: list[float] = []
    came_back: list[float] = []

    async def meet(server: ServerConnection) -> None:
        await server.recv()
        if ended:
            came_back.append(time.monotonic())
        welcome = {"heartbeatSeconds": 5, "timeoutSeconds": 60, "reconnectSeconds": spread}
        await server.send(json.dumps({"v": 1, "type": "welcome", **welcome}))
        if ended:
            await server.wait_closed()
            return
        await server.send(json.dumps({"v": 1, "type": "directive", "directive": {"action": "stop", "reason": "done"}}))
        ended.append(time.monotonic())
        if code is None:
            server.transport.close()
        else:
            await server.close(code)

    async def run() -> None:
        back = threading.Event()
        async with hub_at(tmp_path, meet, lambda view: back.set() if came_back else None):
            assert await asyncio.to_thread(back.wait, 30), "the agent did not come back"

    asyncio.run(run())
    return came_back[0] - ended[0]


def test_an_agent_whose_connection_broke_comes_back_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    reconnect(tmp_path, spread=3600, code=None)  # with the spread, it would not be back within the test's patience


@pytest.mark.parametrize("code", [1001, 1012])
def test_agents_that_are_sent_away_wait_their_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    assert reconnect(tmp_path, spread=1.5, code=code) >= 1.5


def test_an_agent_that_was_paused_comes_back_while_its_workers_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reports wake the task that sends them: it must end with its connection, also if both come at once."""
    monkeypatch.setattr(directives, "was_paused", lambda *_: True)
    monkeypatch.setattr(directives, "backoff", lambda *_, **__: 0.0)
    came_back = threading.Semaphore(0)

    async def meet(server: ServerConnection) -> None:
        await server.recv()
        came_back.release()
        welcome = {"heartbeatSeconds": 0.01, "timeoutSeconds": 60}
        await server.send(json.dumps({"v": 1, "type": "welcome", **welcome}))
        async for _ in server:
            continue  # it says nothing, and does not hang up

    async def run() -> None:
        async with hub_at(tmp_path, meet) as hub:
            ended = threading.Event()
            reports = threading.Thread(target=report, args=(hub, ended))
            reports.start()
            try:
                for number in range(300):
                    assert await asyncio.to_thread(came_back.acquire, timeout=20), f"stuck after {number} connections"
            finally:
                ended.set()
                await asyncio.to_thread(reports.join)

    def report(hub: Hub, ended: threading.Event) -> None:
        while not ended.wait(0.0001):
            hub.report(wire.Progress(generation=1, step=1))

    asyncio.run(run())


def meet_a_hub_that_refuses(tmp_path: Path, refuses: str, tell: Callable[[Hub], None]) -> tuple[list[str], str | None]:
    """The messages that an agent sends to a hub that closes a connection by this kind of message, until it has come
    back for good or given up; and why it has.
    """
    token = tmp_path / "token"
    token.write_text("a-token")
    received: list[str] = []
    over, connected = threading.Event(), threading.Event()

    async def meet(server: ServerConnection) -> None:
        lasts: asyncio.TimerHandle | None = None
        async for text in server:
            message = json.loads(text)
            received.append(message["type"])
            if message["type"] == refuses:
                if lasts is not None:
                    lasts.cancel()
                error = {"code": "malformed", "message": "metrics: a name is empty"}
                await server.send(json.dumps({"v": 1, "type": "error", **error}))
                await server.close(4400)
                return
            if message["type"] == "hello":
                welcome = {"heartbeatSeconds": 5, "timeoutSeconds": 60}
                await server.send(json.dumps({"v": 1, "type": "welcome", **welcome}))
                if len(received) > 1:
                    lasts = asyncio.get_running_loop().call_later(1.5, over.set)

    async def run() -> str | None:
        async with serve(meet, "127.0.0.1", 0, close_timeout=0.2) as listening:
            port = next(iter(listening.sockets)).getsockname()[1]
            settings = Settings(hub_url=f"ws://127.0.0.1:{port}", token_file=token, pod_ip="127.0.0.1")
            views: list[HubView] = []

            def see(view: HubView) -> None:
                views.append(view)
                if view.connected:
                    connected.set()
                if view.fatal is not None:
                    over.set()

            hub = Hub(settings, {}, wire.AgentState(), see)
            hub.start()
            try:
                assert await asyncio.to_thread(connected.wait, 1 if refuses == "hello" else 30) or refuses == "hello"
                tell(hub)
                assert await asyncio.to_thread(over.wait, 30), "the agent neither came back nor gave up"
            finally:
                await asyncio.to_thread(hub.close)
            return views[-1].fatal

    return received, asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "tell"),
    [
        pytest.param("progress", lambda hub: hub.report(wire.Progress(1, step=1)), id="progress"),
        pytest.param("diagnosis", lambda hub: hub.diagnose(1, "hang", "where it is"), id="diagnosis"),
    ],
)
def test_what_a_script_says_and_the_hub_refuses_is_dropped(
    tmp_path: Path, kind: str, tell: Callable[[Hub], None]
) -> None:
    received, fatal = meet_a_hub_that_refuses(tmp_path, kind, tell)
    assert fatal is None
    assert received == ["hello", kind, "hello"], "it came back, and did not say it again"


@pytest.mark.parametrize("kind", ["hello", "state"])
def test_an_agent_whose_own_words_are_refused_gives_up(tmp_path: Path, kind: str) -> None:
    _, fatal = meet_a_hub_that_refuses(tmp_path, kind, lambda hub: hub.publish(wire.AgentState(step=1)))
    assert fatal is not None
    assert "malformed" in fatal


def test_what_is_refused_again_and_again_is_not_said_any_more(tmp_path: Path) -> None:
    """Each refusal costs the connection, and so the other members' patience."""
    ended = threading.Event()

    def tell(hub: Hub) -> None:
        def report() -> None:
            while not ended.wait(0.05):
                hub.report(wire.Progress(1, step=1))

        threading.Thread(target=report, daemon=True).start()

    try:
        received, fatal = meet_a_hub_that_refuses(tmp_path, "progress", tell)
    finally:
        ended.set()
    assert fatal is None
    assert received == ["hello", "progress", "hello", "progress", "hello"]


def test_the_first_progress_of_a_world_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one of the world before was told a moment ago: until this one, nobody knows that the job trains."""
    monkeypatch.setattr(hub_client, "PROGRESS_SECONDS", 3600.0)
    received: list[dict[str, Any]] = []
    told = threading.Semaphore(0)

    async def meet(server: ServerConnection) -> None:
        async for text in server:
            message = json.loads(text)
            if message["type"] == "hello":
                welcome = {"heartbeatSeconds": 5, "timeoutSeconds": 60}
                await server.send(json.dumps({"v": 1, "type": "welcome", **welcome}))
            else:
                received.append(message)
                told.release()

    async def run() -> None:
        async with hub_at(tmp_path, meet) as hub:
            for progress in (wire.Progress(1, step=1), wire.Progress(2, step=1)):
                hub.report(progress)
                assert await asyncio.to_thread(told.acquire, timeout=30)
            hub.report(wire.Progress(2, step=2))  # it waits, until something else is told
            hub.publish(wire.AgentState(step=2))
            assert await asyncio.to_thread(hub.flush, 30)
            await asyncio.to_thread(hub.close)

    asyncio.run(run())
    assert [message.get("step") for message in received[:2]] == [1, 1]


def test_the_last_progress_is_told_before_the_end(tmp_path: Path) -> None:
    """Progress is told once a second at most, and a script may end sooner after its last step."""
    received: list[dict[str, Any]] = []
    first, over = threading.Event(), threading.Event()

    async def meet(server: ServerConnection) -> None:
        async for text in server:
            message = json.loads(text)
            received.append(message)
            if message["type"] == "hello":
                welcome = {"heartbeatSeconds": 5, "timeoutSeconds": 60}
                await server.send(json.dumps({"v": 1, "type": "welcome", **welcome}))
            elif message["type"] == "progress":
                first.set()
        over.set()

    async def run() -> None:
        async with hub_at(tmp_path, meet) as hub:
            hub.report(wire.Progress(1, step=1))
            assert await asyncio.to_thread(first.wait, 30)
            hub.report(wire.Progress(1, step=2))
            hub.publish(wire.AgentState(phase=wire.SUCCEEDED))
            assert await asyncio.to_thread(hub.flush, 30)
            await asyncio.to_thread(hub.close)
            assert await asyncio.to_thread(over.wait, 30)

    asyncio.run(run())
    assert [message["type"] for message in received] == ["hello", "progress", "progress", "state"]
    assert received[2]["step"] == 2


def test_an_agent_whose_pod_the_operator_does_not_know_yet_asks_again(tmp_path: Path) -> None:
    """The operator may learn of a pod after its agent is there: a lagging watch is no reason to end the pod."""
    token = tmp_path / "token"
    token.write_text("a-token")
    began = time.monotonic()
    welcomed, fatal = threading.Event(), threading.Event()

    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(403, "unknown\n") if time.monotonic() - began < 5.0 else None

    async def meet(server: ServerConnection) -> None:
        await server.recv()
        await server.send(json.dumps({"v": 1, "type": "welcome", "heartbeatSeconds": 5, "timeoutSeconds": 60}))
        await server.wait_closed()

    def see(view: HubView) -> None:
        if view.fatal is not None:
            fatal.set()
        if view.fatal is not None or view.welcome is not None:
            welcomed.set()

    async def run() -> None:
        async with serve(meet, "127.0.0.1", 0, close_timeout=0.2, process_request=refuse) as listening:
            port = next(iter(listening.sockets)).getsockname()[1]
            settings = Settings(hub_url=f"ws://127.0.0.1:{port}", token_file=token, pod_ip="127.0.0.1")
            hub = Hub(settings, {}, wire.AgentState(), see)
            hub.start()
            try:
                assert await asyncio.to_thread(welcomed.wait, 60)
            finally:
                await asyncio.to_thread(hub.close)

    asyncio.run(run())
    assert not fatal.is_set()


def test_an_agent_that_ends_without_a_farewell_connects_without_an_error(tmp_path: Path) -> None:
    """Its thread is a daemon, and the interpreter starts no other thread once the main one has ended."""
    token = tmp_path / "token"
    token.write_text("a-token")
    told = subprocess.run([sys.executable, PROGRAM, token], check=True, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in told.stderr


def test_an_agent_that_ends_while_it_connects_does_not_wait_for_the_hub(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = Settings(hub_url=f"ws://127.0.0.1:{silent.getsockname()[1]}", token_file=token, pod_ip="127.0.0.1")
        hub = Hub(settings, {}, wire.AgentState(), lambda view: None)
        before = {*threading.enumerate()}
        hub.start()
        connection = silent.accept()[0]
        hub.close()
        assert {*threading.enumerate()} <= before
        connection.close()
