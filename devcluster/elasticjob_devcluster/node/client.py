"""The node's two connections: to the API server (over TLS, with its own identity) and to its container runtime (over a
Unix socket).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from elasticjob_devcluster.system.sockets import connect_unix

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """JSON requests; a status other than 2xx raises ApiError."""

    def __init__(self, server: str, ca: Path, certificate: Path, key: Path) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.load_cert_chain(certificate, key)
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        async with self._open().request(
            method,
            self._server + path,
            data=data,
            headers={"Content-Type": content_type, "Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=timeout),
        ) as response:
            text = await response.text()
            if response.status >= 300:
                raise ApiError(response.status, text[:500])
            answer: dict[str, Any] = json.loads(text)
            return answer

    async def watch(self, path: str) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a watch until the server ends it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
        async with self._open().get(self._server + path, timeout=timeout) as response:
            if response.status >= 300:
                raise ApiError(response.status, (await response.text())[:500])
            buffer = b""
            async for chunk in response.content.iter_any():
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    if line:
                        yield json.loads(line)


class RuntimeGone(Exception):  # noqa: N818 - says what happened
    """The node's container runtime does not respond."""


class RuntimeClient:
    """The client of `runtime`; `on_exit` is called when a container exits."""

    def __init__(self, path: Path, on_exit: Callable[[dict[str, Any]], None]) -> None:
        self._path = path
        self._on_exit = on_exit
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()

    async def connect(self, timeout: float = 20.0) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            try:
                connection = connect_unix(self._path)
                break
            except OSError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise RuntimeGone(f"the container runtime does not answer: {error}") from error
                await asyncio.sleep(0.02)
        connection.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=connection, limit=16 * 1024 * 1024)
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "exit" in message:
                    self._on_exit(message["exit"])
                elif (future := self._pending.pop(message["n"], None)) and not future.done():
                    future.set_result(message)
        except ConnectionError:
            pass
        self.gone.set()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(RuntimeGone("the container runtime is gone"))

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        if self._writer is None or self.gone.is_set():
            raise RuntimeGone("the container runtime is gone")
        self._next += 1
        number = self._next
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        self._writer.write(json.dumps({"n": number, "op": op, **arguments}).encode() + b"\n")
        answer = await future
        if "error" in answer:
            raise RuntimeError(f"runtime {op}: {answer['error']}")
        return answer
