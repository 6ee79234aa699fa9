"""The watch and what servers send it, against a small server of our own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from elasticjob_operator.kube import Api
from elasticjob_operator.watch import Watch

pytestmark = pytest.mark.timeout(60)
PATH = "/api/v1/pods"


class Server:
    """Answers lists with a version that grows; each watch gets the next of `scripts`, then stays open."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self.scripts = list(scripts)
        self.lists = 0
        self.watched: list[str] = []  # the versions that were asked for
        self.encodings: set[str] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.encodings.add(request.headers["Accept-Encoding"])
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"items": [], "metadata": {"resourceVersion": str(10 * self.lists)}})
        self.watched.append(request.query["resourceVersion"])
        if self.scripts and self.scripts[0] == [b"410"]:
            self.scripts.pop(0)
            return web.json_response({"reason": "Expired", "message": "too old"}, status=410)
        out = web.StreamResponse(headers={"Content-Type": "application/json"})
        await out.prepare(request)
        if not self.scripts:
            await asyncio.sleep(60)
            return out
        for part in self.scripts.pop(0):
            await out.write(part)
        return out


def event(name: str, version: int, **fields: Any) -> bytes:
    metadata = {"name": name, "resourceVersion": str(version), **fields}
    return json.dumps({"type": "MODIFIED", "object": {"metadata": metadata}}).encode() + b"\n"


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


@contextlib.asynccontextmanager
async def following(server: Server, directory: Path) -> AsyncIterator[tuple[asyncio.Queue[str], asyncio.Task[None]]]:
    """The names that the watch tells of, and its task."""
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = directory / "kubeconfig"
    config.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")))
    api = await Api.connect(str(config))
    told: asyncio.Queue[str] = asyncio.Queue()
    watch = Watch(
        api, PATH, replace=lambda items: None, apply=lambda kind, raw: told.put_nowait(raw["metadata"]["name"])
    )
    task = asyncio.create_task(watch.run())
    try:
        yield told, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        await runner.cleanup()


def follow(directory: Path, server: Server, count: int) -> list[str]:
    async def run() -> list[str]:
        async with following(server, directory) as (told, task):
            names = [await asyncio.wait_for(told.get(), 30) for _ in range(count)]
            assert not task.done(), "the watch goes on"
            return names

    return asyncio.run(run())


def test_an_object_may_be_larger_than_any_buffer(tmp_path: Path) -> None:
    large = event("large", 11, annotations={"x": "y" * 1_000_000})
    assert follow(tmp_path, Server([large[:70_000], large[70_000:], event("small", 12)]), 2) == ["large", "small"]


def test_two_events_in_one_piece_and_one_in_two(tmp_path: Path) -> None:
    server = Server([event("a", 11) + event("b", 12)[:9], event("b", 12)[9:]])
    assert follow(tmp_path, server, 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("script", "next_version"),
    [
        pytest.param([event("a", 11), event("b", 12)[:9]], "10", id="cut-off-in-the-middle"),
        pytest.param([event("a", 11), b"<html>gateway</html>\n"], "10", id="no-json"),
        pytest.param([b"410"], "20", id="gone-as-an-answer"),
    ],
)
def test_a_watch_that_breaks_is_made_again(script: list[bytes], next_version: str, tmp_path: Path) -> None:
    server = Server(script, [event("c", 30)])
    names = follow(tmp_path, server, 2 if len(script) > 1 else 1)
    assert names[-1] == "c"
    assert server.watched[1] == next_version


def test_the_server_is_not_asked_to_compress(tmp_path: Path) -> None:
    server = Server([event("a", 11)])
    assert follow(tmp_path, server, 1) == ["a"]
    assert server.encodings == {"identity"}
