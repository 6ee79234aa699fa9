"""An API server of ElasticJobs, pods, events and logs in this process, for tests of the dashboard without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from elasticjob_operator.api import names

JOBS = f"/apis/{names.API_VERSION}"


class FakeApi:
    def __init__(self) -> None:
        self.jobs: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.logs: dict[str, list[str]] = {}  # by pod
        self.denied: set[str] = set()  # verbs that are forbidden: "patch", "list pods", ...
        self.patches: list[tuple[str, Any]] = []
        self.is_down = False
        self.texts: list[str] = []  # of further jobs in its lists
        self._version = 0
        self._told: list[dict[str, Any]] = []
        self._watchers: list[asyncio.Queue[dict[str, Any] | None]] = []

    def put(self, job: dict[str, Any]) -> None:
        """Create or replace a job, with its status."""
        metadata = job["metadata"]
        key = (metadata.setdefault("namespace", "default"), metadata["name"])
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        metadata.setdefault("uid", f"uid-{'-'.join(key)}")
        self._tell("MODIFIED" if key in self.jobs else "ADDED", job)
        self.jobs[key] = job

    def delete(self, namespace: str, name: str) -> None:
        self._version += 1
        self._tell("DELETED", self.jobs.pop((namespace, name)))

    def garble(self) -> None:
        """A line of every watch is cut off, as where the server ends in the middle of it."""
        for watcher in self._watchers:
            watcher.put_nowait({"type": "MODIFIED", "object": "cut"})

    def break_watches(self) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def _tell(self, type: str, job: dict[str, Any]) -> None:
        change = {"version": self._version, "type": type, "object": json.loads(json.dumps(job))}
        self._told.append(change)
        for watcher in self._watchers:
            watcher.put_nowait(change)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.is_down:
            return web.json_response({"message": "no etcd"}, status=503)
        path, namespace = request.path, request.path.partition("/namespaces/")[2].partition("/")[0]
        if path.startswith("/api/v1/") and path.endswith("/log"):
            return await self._log(request)
        if path.endswith(("/pods", "/events")):
            kind = path.rpartition("/")[2]
            if f"list {kind}" in self.denied:
                return deny(f"{kind} is forbidden: User cannot list resource")
            items = self.pods if kind == "pods" else self.events
            wanted = request.query.get("labelSelector", "")
            label = wanted.partition(f"{names.LABEL_JOB}=")[2].partition(",")[0]
            chosen = [i for i in items if not label or i["metadata"]["labels"].get(names.LABEL_JOB) == label]
            return web.json_response({"items": [i for i in chosen if i["metadata"]["namespace"] == namespace]})
        if not path.startswith(JOBS):
            return web.json_response({"message": path}, status=404)
        rest = path.partition(names.PLURAL)[2].strip("/")
        if not rest:
            return await (self._watch(request) if "watch" in request.query else self._list(namespace))
        job = self.jobs.get((namespace, rest.partition("/")[0]))
        if job is None:
            return web.json_response({"reason": "NotFound", "message": f"{rest} not found"}, status=404)
        if request.method == "PATCH":
            if "patch" in self.denied:
                return deny(f'elasticjobs "{rest}" is forbidden: User "dev" cannot patch resource')
            self.patches.append((path, json.loads(await request.text())))
        return web.json_response(job)

    async def _list(self, namespace: str) -> web.Response:
        if "list jobs" in self.denied:
            return deny("elasticjobs is forbidden: User cannot list resource")
        found = [job for (space, _), job in self.jobs.items() if not namespace or space == namespace]
        items = ",".join([*map(json.dumps, found), *self.texts])
        text = f'{{"metadata": {{"resourceVersion": "{self._version}"}}, "items": [{items}]}}'
        return web.Response(text=text, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        since = int(request.query["resourceVersion"])
        for change in [told for told in self._told if told["version"] > since]:
            queue.put_nowait(change)
        self._watchers.append(queue)
        await response.prepare(request)
        try:
            while (told := await queue.get()) is not None:
                line = json.dumps(told).encode()
                await response.write((line[:-3] if told["object"] == "cut" else line) + b"\n")
        finally:
            self._watchers.remove(queue)
        return response

    async def _log(self, request: web.Request) -> web.StreamResponse:
        pod = request.path.split("/")[-2]
        response = web.StreamResponse()
        await response.prepare(request)
        sent = 0
        while request.transport is not None and not request.transport.is_closing():
            lines = self.logs.get(pod, [])
            for i, line in enumerate(lines[sent:], sent):
                await response.write(f"2026-01-01T00:00:{i // 1000:02}.{i % 1000:03}Z {line}\n".encode())
            sent = len(lines)
            if "follow" not in request.query:
                break
            await asyncio.sleep(0.02)
        return response


def deny(message: str) -> web.Response:
    return web.json_response({"reason": "Forbidden", "message": message}, status=403)


@contextlib.asynccontextmanager
async def served(api: FakeApi, directory: Path) -> AsyncIterator[str]:
    """The path of a kubeconfig for this API server."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield str(path)
    finally:
        await runner.cleanup()
