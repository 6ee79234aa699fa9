"""Opening a connection to the hub: an address that does not answer is given up soon, and tried anew."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from elasticjob.agent import hub_socket
from elasticjob.env import Settings


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port whose queue of connections is full: further ones get no answer, as from a pod that is gone."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield address[1]


def settings(tmp_path: Path, url: str) -> Settings:
    token = tmp_path / "token"
    token.write_text("a-token")
    return Settings(hub_url=url, token_file=token, pod_ip="127.0.0.1")


def test_an_address_that_does_not_answer_is_given_up(
    tmp_path: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_socket, "CONNECT_SECONDS", 0.2)
    with pytest.raises(OSError, match=r"no answer from 127\.0\.0\.1 within 0\.2 s"):
        asyncio.run(hub_socket.open_socket(settings(tmp_path, f"ws://127.0.0.1:{silent_port}")))


def test_the_hub_is_patient_for_several_attempts() -> None:
    """A member whose agent is not back is given up after `restart_grace`: until then it needs a second attempt."""
    from elasticjob_operator.membership.member_health import Settings as Patience

    assert Patience().restart_grace > 3 * hub_socket.CONNECT_SECONDS


def test_a_refused_connection_names_the_refusal(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(hub_socket.open_socket(settings(tmp_path, url)))


@pytest.mark.parametrize("soon", [True, False])
def test_a_busy_hub_is_told_from_one_that_does_not_lead(tmp_path: Path, soon: bool) -> None:
    async def refuse(connection: ServerConnection, request: object) -> Response:
        response = connection.respond(503, "try again")
        if soon:
            response.headers["Retry-After"] = "1"
        return response

    async def nobody(connection: ServerConnection) -> None:
        raise AssertionError("no connection is accepted")

    async def ask() -> Exception:
        async with serve(nobody, "127.0.0.1", 0, process_request=refuse) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            chosen = settings(tmp_path, f"ws://127.0.0.1:{port}")
            with pytest.raises(InvalidStatus) as found:
                await hub_socket.open_socket(chosen)
            return hub_socket.explain(found.value, chosen)

    problem = asyncio.run(ask())
    assert isinstance(problem, ConnectionError)
    assert isinstance(problem, hub_socket.HubBusyError) is soon


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(1001, True, id="the hub stops"),
        pytest.param(1012, True, id="it does not lead any more"),
        pytest.param(1000, False, id="an ordinary end"),
        pytest.param(4409, False, id="replaced"),
        pytest.param(None, False, id="the connection broke"),
    ],
)
def test_all_agents_are_sent_away_if_the_hub_says_so(tmp_path: Path, code: int | None, expected: bool) -> None:
    async def end(server: ServerConnection) -> None:
        if code is None:
            server.transport.abort()
        else:
            await server.close(code)

    async def meet() -> bool:
        async with serve(end, "127.0.0.1", 0) as listening:
            port = next(iter(listening.sockets)).getsockname()[1]
            connection = await hub_socket.open_socket(settings(tmp_path, f"ws://127.0.0.1:{port}"))
            await asyncio.wait_for(connection.wait_closed(), 20)
            return hub_socket.is_sent_away(connection)

    assert asyncio.run(meet()) is expected
