"""Who stops to follow a job or its logs leaves nothing open: the garbage collector may be too late for the loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller import client_fixture as given
from controller.client.test_client import write_config
from elasticjob_operator.client import Client, WaitTimeoutError

pytestmark = pytest.mark.timeout(60)

JOB = {**given.manifest(), "status": given.running_status(1)}
JOB["metadata"] = {"name": "digits", "namespace": "default", "uid": "u", "resourceVersion": "1"}
STATE = {"name": "worker", "state": {"running": {}}}
POD = {
    "metadata": {"name": "digits-worker-0", "namespace": "default", "uid": "p"},
    "spec": {"containers": [{"name": "worker"}]},
    "status": {"phase": "Running", "containerStatuses": [STATE]},
}


async def answer(request: web.Request) -> web.StreamResponse:
    """One job with one pod; watches and logs begin, and do not end."""
    if request.path.endswith("/log"):
        begins = b"2026-01-01T00:00:00Z hello\n"
    elif "watch" in request.query:
        begins = json.dumps({"type": "MODIFIED", "object": JOB}).encode() + b"\n"
    elif request.path.endswith("/digits"):
        return web.json_response(JOB)
    else:
        items = [POD] if request.path.endswith("/pods") else [JOB]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(begins)
    await asyncio.Event().wait()
    return response


@contextlib.contextmanager
def left_to_the_collector() -> Iterator[list[str]]:
    """The generators that nobody has closed, and that have not come to their end."""
    before, left = sys.get_asyncgen_hooks(), list[str]()

    def note(generator: AsyncGenerator[object, None]) -> None:
        left.append(str(getattr(generator, "__qualname__", generator)))
        if before.finalizer is not None:
            before.finalizer(generator)

    sys.set_asyncgen_hooks(firstiter=before.firstiter, finalizer=note)
    try:
        yield left
    finally:
        sys.set_asyncgen_hooks(*before)


async def watch(client: Client) -> None:
    changes = client.watch("digits")
    seen = [await anext(changes), await anext(changes)]
    assert [change.type for change in seen] == ["ADDED", "MODIFIED"], "the second one comes from the stream"
    await changes.aclose()


async def wait(client: Client) -> None:
    with pytest.raises(WaitTimeoutError):
        await client.wait("digits", "Complete", timeout=0.5)


async def logs(client: Client) -> None:
    lines = client.logs("digits", follow=True)
    assert (await anext(lines)).text == "hello"
    await lines.aclose()


@pytest.mark.parametrize("leave", [watch, wait, logs])
async def test_who_leaves_a_stream_closes_it(leave: Callable[[Client], Awaitable[None]], tmp_path: Path) -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    with left_to_the_collector() as left:
        async with TestServer(app) as server:
            assert server.port is not None
            async with Client(kubeconfig=str(write_config(tmp_path, server.port))) as client:
                await leave(client)
                assert left == []
