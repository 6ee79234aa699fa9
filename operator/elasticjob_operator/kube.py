"""Plain requests to the API server over `kubernetes.aio`: JSON in, JSON out, one kind of error.

The typed client builds a model object for every field of every pod; we keep slim records and need only the JSON.
Address, TLS, credentials and their refresh are the client's; the requests go straight to its aiohttp session, for
what lies between costs a third of a request's CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config
from yarl import URL

from elasticjob_operator.leadership import Leadership
from elasticjob_operator.lines import Lines, Unreadable
from elasticjob_operator.turns import Slots, Urgency

MERGE_PATCH = "application/merge-patch+json"
# For replies of which only the metadata is new: less to write for the server and to read for us.
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
# Of a reply, and of an event of a watch. The API server takes objects of 1.5 MB; in JSON each byte may become six.
LARGEST_BYTES = 2**24
READ_BUFFER = 2**20
LARGE_BYTES = 2**15  # of a body that takes long enough to encode for others to be let in between
KEEP_ALIVE_SECONDS = 60.0  # the API server drops an idle connection after 90; a new one costs a TLS handshake
READS = ("GET", "HEAD")
FREE_TO_ALL = ("leases", "tokenreviews")  # by the first a replica becomes the leader; the second is only a question
CONNECT_SECONDS = 10.0
Observer = Callable[[str, str, int, float], None]  # verb, resource, status code (0: no reply), seconds


class ApiError(Exception):
    """The API server said no (`status` ≥ 400), or said nothing (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class UnreadableError(ApiError):
    """The reply is larger than `LARGEST_BYTES`, or no JSON that can be read."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(0, "Unreadable", f"{what}: {why}")


class NotLeadingError(ApiError):
    """This replica may not write now: it does not hold the Lease."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(0, "NotLeading", f"{method} {path}: only the leader writes, and this replica does not lead")


def api_root(group_version: str) -> str:
    return f"/api/{group_version}" if "/" not in group_version else f"/apis/{group_version}"


def path_of(group_version: str, plural: str, namespace: str = "", name: str = "", sub: str = "") -> str:
    """The path of a resource or an object."""
    parts = [api_root(group_version)]
    if namespace:
        parts.append(f"namespaces/{namespace}")
    parts.append(plural)
    parts += [p for p in (name, sub) if p]
    return "/".join(parts)


def find_proxy(host: str) -> str | None:
    """What HTTPS_PROXY and NO_PROXY say of this server."""
    split = urlsplit(host)
    return None if proxy_bypass(split.netloc) else getproxies().get(split.scheme)


def _open_session(configuration: client.Configuration, tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """The one session of this process with the API server.

    It is told its proxy once: with `trust_env`, aiohttp asks a thread for it, and for ~/.netrc, before every request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=KEEP_ALIVE_SECONDS),
        proxy=configuration.proxy or find_proxy(configuration.host),
        read_bufsize=READ_BUFFER,
    )


class Api:
    """One API server. `parallel` bounds the requests under way; watches do not count.

    What is not a read is refused while `leadership` is not held: see `elasticjob_operator.leadership`.
    """

    def __init__(
        self,
        api_client: client.ApiClient,
        session: aiohttp.ClientSession,
        *,
        parallel: int = 32,
        timeout: float = 30.0,
        user_agent: str = "elasticjob-operator",
    ) -> None:
        self.client = api_client
        api_client.user_agent = user_agent
        self.user_agent = user_agent
        self._session = session
        self._slots = Slots(parallel, reserved=parallel // 8, share=(parallel + 1) // 2)
        self._timeout = timeout
        self._encoding = asyncio.Lock()
        self.leadership = Leadership()
        self.observer: Observer | None = None

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None, **options: Any) -> Api:
        """With a kubeconfig where one is given or found, else with the pod's own service account."""
        configuration = client.Configuration()
        if kubeconfig is None and context is None:
            try:
                config.load_incluster_config(configuration)
            except config.ConfigException:
                await config.load_kube_config(client_configuration=configuration)
        else:
            await config.load_kube_config(kubeconfig, context, configuration)
        configuration.retries = None  # the loop tries again by its own rules
        api_client = client.ApiClient(configuration)
        session = _open_session(configuration, api_client.rest_client.ssl_context)
        # The typed client, used for reviews of tokens, shares the connections.
        api_client.rest_client.pool_manager = session
        return cls(api_client, session, **options)

    async def close(self) -> None:
        await self.client.close()
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
        urgency: Urgency = Urgency.NORMAL,
        accept: str = "application/json",
        job: str = "",
    ) -> Any:
        """The decoded reply. Raises ApiError; a reply that does not come in `timeout` seconds is one too.

        Raises UnreadableError where the reply is too large or no JSON.
        Raises NotLeadingError, and sends nothing, where it would write and this replica does not lead.

        `job` is the one that it is made for: the jobs of a namespace take turns, as the namespaces do.
        """
        owner = (namespace_of(path), job)
        await self._slots.acquire(owner, urgency)
        try:
            status, started = 0, time.monotonic()
            try:
                limit = aiohttp.ClientTimeout(total=timeout or self._timeout, sock_connect=CONNECT_SECONDS)
                response = await self._send(method, path, body, query, content_type, limit, accept)
                status = response.status
                data = await _read(response, f"{method} {path}")
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise ApiError(0, "NoReply", f"{method} {path}: {type(error).__name__}: {error}") from error
            finally:
                self._observe(method, path, status, time.monotonic() - started)
        finally:
            self._slots.release(owner)
        if status >= 400:
            raise _error(status, data, response.headers.get("Retry-After"))
        return _decode(data, f"{method} {path}") if data else {}

    async def stream(
        self, path: str, query: Mapping[str, str], idle: float, accept: str = "application/json"
    ) -> AsyncGenerator[dict[str, Any] | Unreadable]:
        """The events of a watch, until the server ends it or nothing comes for `idle` seconds."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=idle)
        lines = Lines(LARGEST_BYTES)
        try:
            response = await self._send("GET", path, None, query, "application/json", timeout, accept)
            self._observe("WATCH", path, response.status, 0.0)
            try:
                if response.status >= 400:
                    data = await _read(response, f"watch {path}")
                    raise _error(response.status, data, response.headers.get("Retry-After"))
                with contextlib.suppress(aiohttp.SocketTimeoutError):  # a silent watch ends like any other
                    async for chunk in response.content.iter_any():
                        for event in lines.feed(chunk):
                            yield event
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, "NoReply", f"watch {path}: {type(error).__name__}: {error}") from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
        accept: str = "application/json",
    ) -> aiohttp.ClientResponse:
        configuration = self.client.configuration
        headers = {
            "Accept": accept,
            # A long list costs the server more to compress than it costs the network to carry it.
            "Accept-Encoding": "identity",
            "Content-Type": content_type,
            "User-Agent": self.user_agent,
        }
        bearer = (await configuration.auth_settings()).get("BearerToken")
        if bearer:
            headers[bearer["key"]] = bearer["value"]
        url = URL(configuration.host + path + (f"?{urlencode(query)}" if query else ""), encoded=True)
        data = None if body is None else await self._encode(body)
        server = configuration.tls_server_name or None
        timeout = self._permit(method, path, timeout)  # as late as can be: all before it may have taken time
        return await self._session.request(
            method, url, data=data, headers=headers, timeout=timeout, server_hostname=server
        )

    async def _encode(self, body: Mapping[str, Any]) -> bytes:
        """At most one large body in a turn of the loop: a row of pods with a large template must not hold up others."""
        async with self._encoding:
            data = json.dumps(body, separators=(",", ":")).encode()
            if len(data) > LARGE_BYTES:
                await asyncio.sleep(0)
        return data

    def _permit(self, method: str, path: str, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientTimeout:
        """The timeout of a request that may be sent. A write has to have its connection while it may be sent."""
        if method in READS or resource_name(path) in FREE_TO_ALL:
            return timeout
        left = self.leadership.seconds_left()
        if left <= 0:
            raise NotLeadingError(method, path)
        return aiohttp.ClientTimeout(
            total=timeout.total, connect=min(CONNECT_SECONDS, left), sock_connect=min(CONNECT_SECONDS, left)
        )

    def _observe(self, method: str, path: str, status: int, seconds: float) -> None:
        if self.observer is not None:
            self.observer(method, resource_name(path), status, seconds)


def namespace_of(path: str) -> str:
    """The namespace that a request is about; "" where it is about more than one."""
    return path.partition("/namespaces/")[2].partition("/")[0]


def resource_name(path: str) -> str:
    """`pods`, `elasticjobs/status`, …: what a request is about, for metrics."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return "/".join([parts[0], *parts[2:3]]) if parts else path


async def _read(response: aiohttp.ClientResponse, what: str) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > LARGEST_BYTES:
            response.close()
            raise UnreadableError(what, f"the reply is larger than {LARGEST_BYTES} bytes")
    return b"".join(parts)


def _decode(data: bytes, what: str) -> Any:
    """JSON as Python values, without the garbage collector: it would look at each value of a long list many times over.

    Nothing of it is garbage yet, and none of it can ever be a cycle.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(what, f"no JSON that can be read: {type(error).__name__}") from None
    finally:
        if was_on:
            gc.enable()


def _error(status: int, data: bytes, retry_after: str | None) -> ApiError:
    try:
        said = json.loads(data)
        reason, message = str(said.get("reason", "")), str(said.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", data[:512].decode(errors="replace")
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ApiError(status, reason, message, wait)
