"""Plain requests to the API server over `kubernetes.aio`: JSON in, JSON out, one kind of error.

The typed client builds a model object for every field of every pod; we keep slim records and need only the JSON.
Address, TLS, credentials and their refresh are the client's; the requests go straight to its aiohttp session, for
what lies between costs a third of a request's CPU.
"""

from __future__ import annotations

import gc
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config
from yarl import URL

from elasticjob_operator.turns import Slots, Urgency

MERGE_PATCH = "application/merge-patch+json"
# For replies of which only the metadata is new: less to write for the server and to read for us.
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
LONGEST_LINE = 2**21  # an event of a watch is one line
KEEP_ALIVE_SECONDS = 60.0  # the API server drops an idle connection after 90; a new one costs a TLS handshake
Observer = Callable[[str, str, int, float], None]  # verb, resource, status code (0: no reply), seconds


class ApiError(Exception):
    """The API server said no (`status` ≥ 400), or said nothing (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


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
        read_bufsize=LONGEST_LINE,
    )


class Api:
    """One API server. `parallel` bounds the requests under way; watches do not count."""

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
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=10)
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
        # The typed client, used for reviews of tokens and for the certificate, shares the connections.
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

        `job` is the one that it is made for: the jobs of a namespace take turns, as the namespaces do.
        """
        owner = (namespace_of(path), job)
        await self._slots.acquire(owner, urgency)
        try:
            status, started = 0, time.monotonic()
            try:
                limit = aiohttp.ClientTimeout(total=timeout, sock_connect=10) if timeout else self._timeout
                response = await self._send(method, path, body, query, content_type, limit, accept)
                status = response.status
                data = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise ApiError(0, "NoReply", f"{method} {path}: {type(error).__name__}: {error}") from error
            finally:
                self._observe(method, path, status, time.monotonic() - started)
        finally:
            self._slots.release(owner)
        if status >= 400:
            raise _error(status, data, response.headers.get("Retry-After"))
        return _decode(data) if data else {}

    async def stream(self, path: str, query: Mapping[str, str], idle: float) -> AsyncIterator[dict[str, Any]]:
        """The events of a watch, until the server ends it or nothing comes for `idle` seconds."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=idle)
        try:
            response = await self._send("GET", path, None, query, "application/json", timeout)
            self._observe("WATCH", path, response.status, 0.0)
            if response.status >= 400:
                raise _error(response.status, await response.read(), response.headers.get("Retry-After"))
            try:
                async for line in response.content:
                    if line.strip():
                        yield json.loads(line)
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: no JSON
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
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        server = configuration.tls_server_name or None
        return await self._session.request(
            method, url, data=data, headers=headers, timeout=timeout, server_hostname=server
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


def _decode(data: bytes) -> Any:
    """JSON as Python values, without the garbage collector: it would look at each value of a long list many times over.

    Nothing of it is garbage yet, and none of it can ever be a cycle.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return json.loads(data)
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
