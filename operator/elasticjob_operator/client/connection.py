"""The connection to the API server: which cluster, which namespace, and one function that sends a request.

The configuration is found like kubectl does: an explicit file, `KUBECONFIG`, `~/.kube/config`, the pod's service
account. Requests and transport are shared with the operator (`rest`); errors become readable messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from elasticjob_operator import __version__
from elasticjob_operator.client import errors
from elasticjob_operator.rest import json_stream
from elasticjob_operator.rest.errors import decode_error, read_wait
from elasticjob_operator.rest.request import Request
from elasticjob_operator.rest.transport import CONNECT_SECONDS, NO_ANSWER, READ_BUFFER, Prepared, Transport

_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ASK: Final = aiohttp.ClientTimeout(total=60, sock_connect=CONNECT_SECONDS)
_TRIES: Final = 10  # like kubectl
_STREAM: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)


class _Lines:
    """Splits a stream into lines. Of one that is too long, only its beginning is in memory: it may have no end."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def split(self, chunk: bytes) -> Iterator[str]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            yield self.end()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._parts.append(part[: max(0, self._longest - self._size)])
        self._size += len(part)
        if not self._parts[-1]:
            self._parts.pop()

    def end(self) -> str:
        """The line as far as it has arrived."""
        line, is_cut = b"".join(self._parts).decode("utf-8", "replace"), self._size > self._longest
        self._parts, self._size = [], 0
        return f"{line[:-1]}…" if is_cut else line


class Connection:
    """A connection pool to one API server, which converts error responses to `ClientError`s."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self.namespace = namespace

    @property
    def configuration(self) -> Configuration:
        return self._transport.configuration

    async def close(self) -> None:
        await self._transport.close()  # waits for the connections that are in the pool
        await asyncio.sleep(0)  # those that were aborted are gone in the next iteration of the loop

    async def ask(self, request: Request) -> dict[str, Any]:
        """Send a request and return the JSON object of the response. Raises ClientError."""
        async with self._answer(request, _ASK) as response:
            parsed = json.loads(await response.text())
        return parsed if isinstance(parsed, dict) else {}

    async def ask_items(
        self, request: Request, take: Callable[[Any], object], most: int | None = None
    ) -> dict[str, Any] | None:
        """The same for a list; each of its items is replaced by what `take` makes of it, before the next is decoded.

        None for a response of more bytes than `most`.
        """
        async with self._answer(request, _ASK) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if most is not None and len(data) > most:
                    return None
        parsed = await json_stream.decode(data, take, reduce=json.loads)
        return parsed if isinstance(parsed, dict) else {}

    async def stream_lines(self, request: Request, longest: int) -> AsyncGenerator[str, None]:
        """The lines of a streaming response. One of more bytes than `longest` is cut, and ends in an ellipsis."""
        lines = _Lines(longest)
        try:
            async with self._answer(request, _STREAM, min(longest, READ_BUFFER)) as response:
                async for chunk in response.content.iter_any():
                    for line in lines.split(chunk):
                        yield line
        except aiohttp.ClientPayloadError:  # the server closed the connection early: treated as the end
            pass
        if rest := lines.end():
            yield rest

    @contextlib.asynccontextmanager
    async def _answer(
        self, request: Request, timeout: aiohttp.ClientTimeout, read_buffer: int = READ_BUFFER
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        prepared = await self._transport.prepare(request)
        try:
            response = await self._send(prepared, timeout, read_buffer)
        except NO_ANSWER as error:
            raise errors.UnreachableError(
                f"{request.title}: {self.configuration.host} does not answer ({error or type(error).__name__}): is the "
                "cluster up, and is this the right --context?"
            ) from error
        try:
            if response.status >= 400:
                raise errors.explain(decode_error(response.status, await response.read()), request.title)
            yield response
        finally:
            unread = response.connection  # of a stream that somebody has left
            if unread is not None and unread.transport is not None:
                unread.transport.abort()  # closing waits for the server, maybe longer than our loop runs
            response.close()

    async def _send(
        self, prepared: Prepared, timeout: aiohttp.ClientTimeout, read_buffer: int
    ) -> aiohttp.ClientResponse:
        """Send again while the server asks to come back later: it has too much to do, or a CRD is new."""
        left = _TRIES
        while True:
            response = await self._transport.send(prepared, timeout, read_buffer)
            wait = read_wait(response.headers.get("Retry-After")) if response.status == 429 else None
            left -= 1
            if wait is None or left == 0:
                return response
            response.close()
            await asyncio.sleep(wait)


async def connect(
    kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
) -> Connection:
    """Open the connection to a cluster. No request is sent: a wrong address shows with the first one.

    Raises ConfigError if the kubeconfig is missing or invalid.
    """
    configuration = Configuration()
    path = find_kubeconfig(kubeconfig, os.environ.get("KUBECONFIG"), Path.home())
    try:
        if path is None:
            default = _load_own_account(configuration, context)
        else:
            default = await _load_file(configuration, path, context)
    except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise errors.ConfigError(f"kubeconfig {path or ''}: {error}".replace("  ", " ")) from error
    try:
        transport = Transport(configuration, user_agent=f"kubectl-elasticjob/{__version__}")
    except (OSError, ssl.SSLError) as error:
        raise errors.ConfigError(f"kubeconfig {path}: its certificates cannot be used: {error}") from error
    return Connection(transport, namespace or default)


def find_kubeconfig(explicit: str | None, environment: str | None, home: Path) -> str | None:
    """The file to read; None if there is none and only a pod's own service account is left."""
    if explicit:
        if not Path(explicit).is_file():
            raise errors.ConfigError(f"kubeconfig {explicit}: no such file: check --kubeconfig")
        return explicit
    if environment:
        present = [p for p in environment.split(os.pathsep) if p and Path(p).is_file()]
        if not present:
            raise errors.ConfigError(f"KUBECONFIG={environment}: no such file: correct or unset the variable")
        return os.pathsep.join(present)
    default = home / ".kube" / "config"
    return str(default) if default.is_file() else None


async def _load_file(configuration: Configuration, path: str, context: str | None) -> str:
    contexts, active = kube_config.list_kube_config_contexts(config_file=path)
    if context is not None:
        known = [str(c["name"]) for c in contexts or []]
        if context not in known:
            raise ConfigException(f"no context {context!r}: it has {', '.join(known) or 'none'}")
        active = next(c for c in contexts if c["name"] == context)
    await kube_config.load_kube_config(
        config_file=path, context=context, client_configuration=configuration, persist_config=False
    )
    return str(((active or {}).get("context") or {}).get("namespace") or "default")


def _load_own_account(configuration: Configuration, context: str | None) -> str:
    if context is not None:
        raise ConfigException(f"no kubeconfig holds the context {context!r}: give --kubeconfig")
    try:
        kube_config.load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise ConfigException("none found: give --kubeconfig, set KUBECONFIG or create ~/.kube/config") from error
    return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.is_file() else "default"
