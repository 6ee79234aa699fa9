"""The part of the kubelet's API that logs and exec need: `/containerLogs/...`, `/exec/...` and `/healthz`, over TLS.

Only the API server may ask; other certificates of the cluster are refused. Exec is for clients that speak WebSocket,
and has no stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from elasticjob_devcluster.config import ADMINISTRATORS, KUBELET_CLIENT
from elasticjob_devcluster.node.context import Node
from elasticjob_devcluster.node.pod import PodWorker
from elasticjob_devcluster.runtime import containerlog

POLL_SECONDS = 0.1
EXEC_POLL_SECONDS = 0.02
EXEC_PROTOCOL = "v4.channel.k8s.io"
STDOUT, STDERR, VERDICT = 1, 2, 3  # its channels
CHUNK = 64 * 1024


@web.middleware
async def _refuse_others(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if not is_api_server(request.get_extra_info("peercert")):
        return web.Response(status=403, text="only the API server may ask a node")
    return await handler(request)


def is_api_server(certificate: Mapping[str, Any] | None) -> bool:
    """Whether this is the certificate of the API server for kubelets, as `SSLSocket.getpeercert` has it."""
    subject = {field for part in (certificate or {}).get("subject", ()) for field in part}
    return subject == {("organizationName", ADMINISTRATORS), ("commonName", KUBELET_CLIENT)}


class NodeServer:
    def __init__(self, node: Node, find: Callable[[str, str], PodWorker | None]) -> None:
        self._node = node
        self._find = find
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(middlewares=[_refuse_others])
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        settings = self._node.settings
        pki = Path(settings.pki)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "ca.crt"))
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_cert_chain(pki / f"node-{settings.name}.crt", pki / f"node-{settings.name}.key")
        site = web.TCPSite(self._runner, settings.address, settings.port, ssl_context=tls, shutdown_timeout=0.1)
        await site.start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        worker = self._find(request.match_info["namespace"], request.match_info["pod"])
        loop = worker.container(request.match_info["container"]) if worker else None
        if worker is None or loop is None:
            return web.Response(status=404, text="no such container on this node")
        query = request.query
        attempt = loop.state.restarts - (1 if query.get("previous") == "true" else 0)
        path = self._node.log_path(worker.uid, loop.name, attempt)
        if attempt < 0 or not path.exists():
            name = request.match_info["container"]
            text = f'container "{name}" in pod "{request.match_info["pod"]}" has no logs: it has not run'
            return web.Response(status=400, text=text)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        follow = query.get("follow") == "true" and query.get("previous") != "true"
        await self._stream(response, path, query, lambda: follow and loop.running_id is not None)
        await response.write_eof()
        return response

    async def _stream(
        self,
        response: web.StreamResponse,
        path: Path,
        query: object,
        more: Callable[[], bool],
    ) -> None:
        get = getattr(query, "get")  # noqa: B009 - any mapping
        times, since = get("timestamps") == "true", get("sinceTime") or ""
        if seconds := get("sinceSeconds"):
            since = containerlog.time_before(float(seconds))
        left = int(get("limitBytes") or -1)
        with path.open("rb") as file:
            raws = file.readlines()
            if tail := get("tailLines"):
                raws = raws[-int(tail) :] if int(tail) > 0 else []
            while True:
                going = more()
                data = b"".join(containerlog.show(raw, times=times, since=since) for raw in raws)
                if left >= 0:
                    data, left = data[:left], left - len(data[:left])
                if data:
                    await response.write(data)
                if left == 0:
                    return
                raws = file.readlines()
                if not raws:
                    if not going:
                        return
                    await asyncio.sleep(POLL_SECONDS)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        worker = self._find(request.match_info["namespace"], request.match_info["pod"])
        loop = worker.container(request.match_info["container"]) if worker else None
        if loop is None or loop.running_id is None:
            return web.Response(status=404, text="no such container runs on this node")
        socket = web.WebSocketResponse(protocols=[EXEC_PROTOCOL])
        await socket.prepare(request)
        argv = request.query.getall("command", [])
        with tempfile.TemporaryDirectory(prefix="exec-", dir=self._node.directory) as folder:
            files = {STDOUT: Path(folder, "out"), STDERR: Path(folder, "err")}
            for file in files.values():
                file.touch()
            out, err = map(str, files.values())
            call = asyncio.create_task(
                self._node.runtime.call("exec-to-files", id=loop.running_id, argv=argv, out=out, err=err)
            )
            await _pass_on(socket, files, call)
        await socket.close()
        return socket


async def _pass_on(
    socket: web.WebSocketResponse, files: Mapping[int, Path], call: asyncio.Task[dict[str, object]]
) -> None:
    """Send what a command writes to the files while it runs, and then how it ended."""
    with contextlib.ExitStack() as opened:
        readers = {channel: opened.enter_context(path.open("rb")) for channel, path in files.items()}
        while not socket.closed:
            over = call.done()
            for channel, reader in readers.items():
                while data := reader.read(CHUNK):
                    await socket.send_bytes(bytes([channel]) + data)
            if over:
                await socket.send_bytes(bytes([VERDICT]) + json.dumps(judge_exec(call.result())).encode())
                return
            await asyncio.wait((call,), timeout=EXEC_POLL_SECONDS)


def judge_exec(answer: dict[str, object]) -> dict[str, object]:
    """The Status that ends an exec, from the runtime's answer."""
    if answer.get("code") == 0:
        return {"metadata": {}, "status": "Success"}
    if "code" not in answer:
        return {"metadata": {}, "status": "Failure", "message": str(answer.get("failure"))}
    code = answer["code"]
    number = 128 - code if isinstance(code, int) and code < 0 else code
    causes = [{"reason": "ExitCode", "message": str(number)}]
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: {number}",
        "details": {"causes": causes},
    }
