"""The transport to one API server: an aiohttp session with TLS and credentials from `kubernetes.aio`.

The typed client builds a model object for every field of every pod; we need only the JSON. So address, TLS, credentials
and their refresh come from that client, but requests go directly to the session: the layers in between cost a third of
a request's CPU time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from kubernetes.aio import client
from yarl import URL

from elasticjob_operator.rest.request import Request

READ_BUFFER: Final = 2**20
LARGE_BYTES: Final = 2**15  # a body of this size takes long enough to encode that other tasks should run in between
KEEP_ALIVE_SECONDS: Final = 60.0  # the API server drops an idle connection after 90; a new one costs a TLS handshake
CONNECT_SECONDS: Final = 10.0
NO_ANSWER: Final = (aiohttp.ClientError, TimeoutError, OSError)  # may be raised by `send` and by reading its response


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its credentials and its encoded body, ready to be sent."""

    method: str
    url: URL
    headers: Mapping[str, str]
    data: bytes | None


def find_proxy(host: str) -> str | None:
    """The proxy for this server by HTTPS_PROXY and NO_PROXY; None for a direct connection."""
    split = urlsplit(host)
    return None if proxy_bypass(split.netloc) else getproxies().get(split.scheme)


class _GuardedConnector(aiohttp.TCPConnector):
    """Calls `guard` again once a request has its connection: obtaining one may have taken any time.

    A process that was stopped meanwhile gets the connection and the expiry of its timeout in the same iteration of the
    loop.
    """

    guard: Callable[[str, str], object] = staticmethod(lambda method, path: None)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        try:
            self.guard(req.method, req.url.path)
        except BaseException:
            connection.release()
            raise
        return connection


class _GuardedBody(aiohttp.BytesPayload):
    """Calls `check` at the last moment: on Python 3.11, a request is written in a later turn of the event loop.

    Its headers wait for the body, so nothing of it has been sent by then.
    """

    def __init__(self, value: bytes, check: Callable[[], object]) -> None:
        super().__init__(value)
        self._check = check
        self.refusal: Exception | None = None  # aiohttp hides it in one of its own

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        try:
            self._check()
        except Exception as error:
            self.refusal = error
            raise
        await super().write_with_length(writer, content_length)


class Transport:
    """One session with one API server. Raises OSError if the certificates of the configuration cannot be used."""

    def __init__(
        self, configuration: client.Configuration, *, user_agent: str, encoding: str = "gzip, deflate"
    ) -> None:
        configuration.retries = None  # callers retry by their own rules
        self.configuration = configuration
        self.typed = client.ApiClient(configuration)  # shares the session
        self.typed.user_agent = user_agent
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": encoding}
        # The proxy is set once: with `trust_env`, aiohttp reads it, and ~/.netrc, in a thread before every request.
        self._connector = _GuardedConnector(
            limit=0, ssl=self.typed.rest_client.ssl_context, keepalive_timeout=KEEP_ALIVE_SECONDS
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            proxy=configuration.proxy or find_proxy(configuration.host),
        )
        self.typed.rest_client.pool_manager = self._session
        self._encoding = asyncio.Lock()

    def guard(self, check: Callable[[str, str], object]) -> None:
        """`check` gets method and path of every request that is about to be sent, and raises if it must not be."""
        self._connector.guard = check

    async def close(self) -> None:
        await self.typed.close()
        await self._session.close()

    async def prepare(self, request: Request) -> Prepared:
        """Do everything that may take time before the request is sent: credentials, encoding of a large body."""
        headers = {**self._headers, "Accept": request.accept, "Content-Type": request.content_type}
        bearer = (await self.configuration.auth_settings()).get("BearerToken")
        if bearer and bearer["value"]:
            headers[bearer["key"]] = bearer["value"]
        query = f"?{urlencode(request.query)}" if request.query else ""
        url = URL(self.configuration.host + request.path + query, encoded=True)
        data = None if request.body is None else await self._encode(request.body)
        return Prepared(request.method, url, headers, data)

    async def send(
        self, request: Prepared, timeout: aiohttp.ClientTimeout, read_buffer: int = READ_BUFFER
    ) -> aiohttp.ClientResponse:
        """Send; return the response once its headers have arrived, whatever the status. Raises one of `NO_ANSWER`.

        Twice the `read_buffer` is in memory of what nobody has read.
        """

        def check() -> None:
            self._connector.guard(request.method, request.url.path)

        body = None if request.data is None else _GuardedBody(request.data, check)
        try:
            return await self._session.request(
                request.method,
                request.url,
                data=body,
                headers=request.headers,
                timeout=timeout,
                read_bufsize=read_buffer,
                server_hostname=self.configuration.tls_server_name or None,
            )
        except aiohttp.ClientConnectionError:
            if body is not None and body.refusal is not None:
                raise body.refusal from None
            raise

    async def _encode(self, body: Mapping[str, Any]) -> bytes:
        """Encode at most one large body per loop iteration: many pods with a large template must not block
        other tasks.
        """
        async with self._encoding:
            data = json.dumps(body, separators=(",", ":")).encode()
            if len(data) > LARGE_BYTES:
                await asyncio.sleep(0)
        return data
