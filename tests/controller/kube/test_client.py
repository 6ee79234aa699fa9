"""The connection to the API server: the choice of the proxy."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from collections.abc import ItemsView
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.kube.client import LARGEST_BYTES
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.rest.errors import ApiError, UnreadableError
from elasticjob_operator.rest.transport import LARGE_BYTES, find_proxy

VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128", id="https"),
        pytest.param({"HTTP_PROXY": "http://proxy:3128"}, None, id="for http only"),
        pytest.param({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1"}, None, id="but not for this address"),
        pytest.param({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.2"}, "http://proxy:3128", id="another"),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str | None
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy("https://10.0.0.1:6443") == expected


async def test_large_bodies_are_encoded_one_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    """A row of pods with a large template is ready at once; between two of them others have to be heard."""
    turn = 0
    encoded: list[int] = []

    class Body(dict[str, Any]):
        def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
            encoded.append(turn)
            return super().items()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.json_response({})

    async with answering(answer, tmp_path) as api:
        counting = asyncio.create_task(count_turns())
        path = "/api/v1/namespaces/team/pods"
        api.leadership.lend(math.inf)
        await asyncio.gather(*(api.request("POST", path, Body(text="x" * LARGE_BYTES)) for _ in range(16)))
        counting.cancel()
    assert len(encoded) == 16
    assert len(set(encoded)) == 16


async def test_a_refusal_of_any_size_is_a_refusal(tmp_path: Path) -> None:
    """The API server repeats what a tenant wrote. If that counted as no answer, no job would say why it waits."""

    async def answer(request: web.Request) -> web.StreamResponse:
        said = {"kind": "Status", "message": "no", "reason": "Invalid", "details": {"x": "y" * LARGEST_BYTES}}
        return web.json_response(said, status=422)

    async with answering(answer, tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await api.request("GET", "/api/v1/namespaces/team/pods/x")
    assert caught.value.status == 422
    assert "no" in caught.value.message


async def test_a_response_that_does_not_come_whole_keeps_no_connection(tmp_path: Path) -> None:
    """Whoever holds the error holds its traceback, and with it the response."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{")
        while request.transport and not request.transport.is_closing():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)
        over.set()
        return response

    async with answering(answer, tmp_path) as api:
        with pytest.raises(ApiError) as kept:
            await api.request("GET", "/version", timeout=0.3)
        await asyncio.wait_for(over.wait(), 10)
    assert kept.value.reason == "NoReply"


async def test_the_deletions_of_one_tenant_do_not_hold_up_the_pods_of_another(tmp_path: Path) -> None:
    served: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        served.append(request.method)
        return web.json_response({})

    async with answering(answer, tmp_path, parallel=8) as api:
        api.leadership.lend(math.inf)
        path = "/api/v1/namespaces/{}/pods"
        gone = [api.request("DELETE", f"{path.format('a')}/p{i}", urgency=Urgency.NOW, job=f"j{i}") for i in range(400)]
        deletions = asyncio.gather(*gone)
        await asyncio.sleep(0)
        await api.request("POST", path.format("b"), {}, job="j")
        assert len(served) < 100
        await deletions


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param({"x": [[]] * 200_000}, "more than 75000 values", id="values"),
        pytest.param({"x": "<" * 5_000_000}, "larger than 4194304 bytes", id="bytes"),
    ],
)
async def test_an_object_that_its_author_made_too_large_is_not_read(
    more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"name": "x"}, "spec": more})

    async with answering(answer, tmp_path) as api:
        with pytest.raises(UnreadableError, match=why):
            await api.request("GET", "/api/v1/namespaces/team/configmaps/x")


async def test_large_objects_are_not_decoded_together(tmp_path: Path) -> None:
    """Fourteen are read at the same time, and one character makes the text of each four times as large in memory."""
    text = ('{"spec":"\U0001f600' + "x" * 2_000_000 + '"}').encode()
    begun, end = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal begun
        out = web.StreamResponse()
        await out.prepare(request)
        await out.write(text[:-1])
        begun += 1
        if begun == 14:
            end.set()
        await end.wait()
        await out.write(text[-1:])
        return out

    async def read(number: int) -> None:
        await api.request("GET", f"/api/v1/namespaces/t{number}/configmaps/x")

    async with answering(answer, tmp_path, parallel=16) as api:
        tracemalloc.start()
        try:
            await asyncio.gather(*(read(number) for number in range(14)))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 100_000_000
