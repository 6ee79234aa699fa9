"""A proxy between operator and API server that injects faults of API servers, networks and operators.

It listens on plain HTTP, connects to the API server as the cluster's admin, counts every request, and lets rules decide
what to do with it. A rule is a function of the request alone, so the same requests meet the same faults. Watches are
processed event by event; a second kind of rule decides about events. It is independent of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from elasticjob_operator.rest.request import resource_name

WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Questions that are sent as a POST, and Events, which are for people: no state of a job rests on them.
NO_STATE = ("tokenreviews", "events")


class Do(StrEnum):
    """What to do with one request."""

    KILL_BEFORE = "kill-before"  # the operator dies, the API server never hears of it
    KILL_AFTER = "kill-after"  # the operator dies, the write is done
    DROP_REPLY = "drop-reply"  # the write is done, the connection closes without a word
    RESET = "reset"  # the same, and the API server never hears of it
    ANSWER = "answer"  # the proxy answers with `status`
    HANG = "hang"  # nothing is sent and nothing is closed
    SLOW = "slow"  # passed on after `seconds`


@dataclass(frozen=True, slots=True)
class Fault:
    do: Do
    status: int = 0
    retry_after: int | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class Request:
    number: int
    write: int  # 1, 2, …: the how manieth write of state it is; 0 where it is none
    verb: str  # GET, LIST, WATCH or the method
    resource: str
    path: str
    at: float
    status: int = 0
    fault: str = ""


class DoEvent(StrEnum):
    """What to do with one event of a watch."""

    MISS = "miss"  # this one and all of the next `seconds` are never told; then 410, so the client lists anew
    TWICE = "twice"
    LATE = "late"  # this one and, in order, those after it come `seconds` later
    SWAP = "swap"  # told after its successor, or after `seconds` where there is none
    STALL = "stall"  # from here on the watch is silent, for `seconds`; then the connection breaks
    GONE = "gone"  # 410 instead of it
    BREAK = "break"  # the connection breaks instead of it


@dataclass(frozen=True, slots=True)
class EventFault:
    do: DoEvent
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    resource: str
    number: int  # over all watches of this resource
    kind: str  # ADDED, MODIFIED, DELETED
    name: str


Rule = Callable[[Request], Fault | None]
EventRule = Callable[[Event], EventFault | None]


class EndWatchError(Exception):
    """End the watch here."""


@dataclass
class FaultProxy:
    """Runs in a separate thread. `on_kill` ends the operator; it is called in that thread and must not block."""

    kubeconfig: Path  # of the cluster's admin
    directory: Path
    on_kill: Callable[[], None] = lambda: None
    rule: Rule = lambda request: None
    event_rule: EventRule = lambda event: None
    requests: list[Request] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    stale_version: str = ""  # lists are answered as of this version …
    stale_until: float = 0.0  # … and watches are silent until then (monotonic seconds)
    url: str = ""

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._writes = 0
        self._events: Counter[str] = Counter()
        self._call(self._open())

    def stop(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def end_watches(self) -> None:
        """Break all streams, like a server that ends its watches."""
        for transport in list(self._streams):
            self._loop.call_soon_threadsafe(transport.abort)

    async def _open(self) -> None:
        self._streams: set[asyncio.Transport] = set()
        server, tls = _read_admin(self.kubeconfig, self.directory)
        self._server = server
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        self.own_kubeconfig = self.directory / "proxy.kubeconfig"
        self.own_kubeconfig.write_text(json.dumps(_kubeconfig(self.url)))

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        rest = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.05)  # closed TLS connections need a turn of the loop to be gone

    # What was asked.

    @property
    def writes(self) -> int:
        return self._writes

    def count(self, since: int = 0) -> Counter[str]:
        """Requests by verb and resource, from this number on."""
        return Counter(f"{r.verb} {r.resource}" for r in self.requests[since:])

    def _note(self, request: web.Request) -> Request:
        verb, path = request.method, request.path
        if verb == "GET":
            verb = "WATCH" if request.query.get("watch") in ("1", "true") else _get_or_list(path)
        resource = resource_name(path)
        write = 0
        if verb in WRITES and resource not in NO_STATE:
            self._writes += 1
            write = self._writes
        noted = Request(len(self.requests) + 1, write, verb, resource, path, time.monotonic())
        self.requests.append(noted)
        return noted

    # Serving.

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        noted = self._note(request)
        fault = self.rule(noted)
        if fault is not None:
            noted.fault = fault.do.value
            self.faults[fault.do.value] += 1
            answer = await self._fail_before(request, fault)
            if answer is not None:
                noted.status = answer.status
                return answer
        try:
            if noted.verb == "WATCH":
                return await self._watch(request, noted)
            answer = await self._forward(request, noted, body)
        except (aiohttp.ClientError, OSError):  # the API server is down: so are we
            self._abort(request)
            raise
        if fault is not None and fault.do in (Do.KILL_AFTER, Do.DROP_REPLY):
            if fault.do is Do.KILL_AFTER:
                self.on_kill()
            self._abort(request)
        return answer

    async def _fail_before(self, request: web.Request, fault: Fault) -> web.Response | None:
        if fault.do is Do.KILL_BEFORE:
            self.on_kill()
            self._abort(request)
            return web.Response(status=503)
        if fault.do is Do.HANG:
            await asyncio.sleep(fault.seconds or 3600)
            self._abort(request)
            return web.Response(status=503)
        if fault.do is Do.ANSWER:
            return _say_no(fault)
        if fault.do is Do.RESET:
            self._abort(request)
            return web.Response(status=503)
        await asyncio.sleep(fault.seconds)
        return None

    def _abort(self, request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()

    def _upstream(self, request: web.Request, body: bytes | None) -> Any:
        kept = ("Content-Type", "Accept", "User-Agent")
        headers = {k: request.headers[k] for k in kept if k in request.headers}
        query = dict(request.query)
        is_list = request.method == "GET" and _get_or_list(request.path) == "LIST" and "watch" not in query
        if is_list and time.monotonic() < self.stale_until:
            query |= {"resourceVersion": self.stale_version, "resourceVersionMatch": "Exact", "limit": "500"}
            self.faults["stale-list"] += 1
        url = self._server + request.path
        return self._session.request(request.method, url, params=query, data=body, headers=headers)

    async def _forward(self, request: web.Request, noted: Request, body: bytes) -> web.Response:
        async with self._upstream(request, body or None) as reply:
            data = await reply.read()
            noted.status = reply.status
            kept = {k: reply.headers[k] for k in ("Content-Type", "Retry-After") if k in reply.headers}
            return web.Response(body=data, status=reply.status, headers=kept)

    # Watches.

    async def _watch(self, request: web.Request, noted: Request) -> web.StreamResponse:
        hold = self.stale_until - time.monotonic()
        out = web.StreamResponse(headers={"Content-Type": "application/json"})
        async with self._upstream(request, None) as reply:
            noted.status = reply.status
            out.set_status(reply.status)
            await out.prepare(request)
            if hold > 0:
                self.faults["stale-watch"] += 1
                await asyncio.sleep(hold)
            stream = _WatchStream(self, noted.resource, out)
            transport = request.transport
            assert transport is not None
            self._streams.add(transport)
            with contextlib.suppress(ConnectionResetError):
                try:
                    async for line in reply.content:
                        await stream.pass_on(line)
                except EndWatchError:
                    self._abort(request)
                finally:
                    self._streams.discard(transport)
                    stream.close()
        return out

    def judge_event(self, resource: str, line: bytes) -> tuple[EventFault | None, str]:
        raw = json.loads(line)
        kind, metadata = raw.get("type", ""), raw.get("object", {}).get("metadata", {})
        if kind in ("BOOKMARK", "ERROR"):
            return None, kind
        self._events[resource] += 1
        fault = self.event_rule(Event(resource, self._events[resource], kind, metadata.get("name", "")))
        if fault is not None:
            self.faults[f"event-{fault.do.value}"] += 1
        return fault, kind


class _WatchStream:
    """One watch on its way to the operator."""

    def __init__(self, proxy: FaultProxy, resource: str, out: web.StreamResponse) -> None:
        self._proxy, self._resource, self._out = proxy, resource, out
        self._held: bytes | None = None
        self._timer: asyncio.Task[None] | None = None
        self._late = 0.0
        self._deaf_until: float | None = None

    async def pass_on(self, line: bytes) -> None:
        if not line.strip():
            return
        fault, kind = self._proxy.judge_event(self._resource, line)
        if self._deaf_until is not None:
            await self._stay_deaf()
            return
        if fault is not None:
            await self._spoil(fault, line)
            return
        if self._late and kind != "BOOKMARK":
            await asyncio.sleep(self._late)
        await self._out.write(line)
        await self._release()

    async def _spoil(self, fault: EventFault, line: bytes) -> None:
        if fault.do is DoEvent.MISS:
            self._deaf_until = time.monotonic() + fault.seconds
            self._timer = asyncio.create_task(self._gone_after(fault.seconds))
        elif fault.do is DoEvent.TWICE:
            await self._out.write(line)
            await self._out.write(line)
        elif fault.do is DoEvent.LATE:
            self._late = fault.seconds
            await asyncio.sleep(fault.seconds)
            await self._out.write(line)
        elif fault.do is DoEvent.SWAP:
            await self._release()
            self._held = line
            self._timer = asyncio.create_task(self._release_after(fault.seconds or 0.5))
        elif fault.do is DoEvent.GONE:
            await self._out.write(_gone())
            raise EndWatchError
        elif fault.do is DoEvent.BREAK:
            raise EndWatchError
        else:
            await asyncio.sleep(fault.seconds)
            raise EndWatchError

    async def _stay_deaf(self) -> None:
        if self._deaf_until is not None and time.monotonic() >= self._deaf_until:
            raise EndWatchError

    async def _gone_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with contextlib.suppress(ConnectionResetError):
            await self._out.write(_gone())

    async def _release_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with contextlib.suppress(ConnectionResetError):
            await self._release()

    async def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await self._out.write(held)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _gone() -> bytes:
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
    return json.dumps({"type": "ERROR", "object": said | {"message": "too old resource version"}}).encode() + b"\n"


def _say_no(fault: Fault) -> web.Response:
    reasons = {
        401: "Unauthorized",
        409: "Conflict",
        410: "Expired",
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServiceUnavailable",
    }
    said = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": fault.status,
        "reason": reasons.get(fault.status, "Unknown"),
        "message": "a fault that the proxy makes",
    }
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return web.json_response(said, status=fault.status, headers=headers)


def _get_or_list(path: str) -> str:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "LIST" if len(parts) == 1 else "GET"


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "users": [{"name": "proxy", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
    }


def _read_admin(kubeconfig: Path, directory: Path) -> tuple[str, ssl.SSLContext]:
    import base64

    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    files = []
    for key in ("client-certificate-data", "client-key-data"):
        file = directory / key
        file.touch(mode=0o600)
        file.write_bytes(base64.b64decode(user[key]))
        files.append(file)
    tls.load_cert_chain(files[0], files[1])
    return str(cluster["server"]), tls
