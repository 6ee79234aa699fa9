"""The operator's API client: fair queueing, writes only while leading, and bounded responses.

It builds on `rest`, which the command line uses, too. It adds what a process that serves many jobs needs: slots shared
by namespaces and jobs, the leadership check, metrics, and decoding that yields to the event loop.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from elasticjob_operator.api import names
from elasticjob_operator.kube.clock import ClusterClock
from elasticjob_operator.kube.fair_queue import Owner, Slots, Urgency
from elasticjob_operator.kube.leadership import Leadership
from elasticjob_operator.kube.token_file import TokenFile
from elasticjob_operator.rest.errors import BUSY, ApiError, UnreadableError, decode_error, no_reply
from elasticjob_operator.rest.json_stream import (
    LARGE_BYTES,
    Head,
    Lines,
    Take,
    TooManyError,
    Unreadable,
    decode,
    ignore,
    keep,
    outline_event,
)
from elasticjob_operator.rest.request import JSON, Query, Request, namespace_of, resource_name
from elasticjob_operator.rest.transport import CONNECT_SECONDS, NO_ANSWER, Transport

# Limit for a response and for a watch event. Objects may have 1.5 MB, and in JSON each byte may become six.
LARGEST_BYTES = 2**24
# For one object that is read alone: the largest that makes sense has half as much, and many may be read at once.
MOST_OBJECT_BYTES = 2**22
READS = ("GET", "HEAD")
FREE_TO_ALL = ("leases", "tokenreviews")  # the first makes a replica the leader; the second changes nothing
Observer = Callable[[str, str, int, float], None]  # verb, resource, status code (0: no reply), seconds


class NotLeadingError(ApiError):
    """The write was refused because this replica does not hold the Lease."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(0, "NotLeading", f"{method} {path}: only the leader writes, and this replica does not lead")


class Api:
    """One API server. `parallel` limits the concurrent requests, not counting watches.

    Writes are rejected while `leadership` is not held: see `elasticjob_operator.kube.leadership`.
    """

    def __init__(self, transport: Transport, *, parallel: int = 32, timeout: float = 30.0) -> None:
        self._transport = transport
        self._slots = Slots(parallel, reserved=parallel // 8, share=(parallel + 1) // 2)
        self._decoding = Slots(1)  # of large bodies, whose text takes several times as much memory
        self._turning = Slots(1)  # pages of lists that are large
        self._timeout = timeout
        self.leadership = Leadership()
        self.clock = ClusterClock()
        transport.guard(self._seconds_to_send)
        self.observer: Observer | None = None
        self.heard = time.monotonic()  # when the API server answered last, or told an event
        self.served = -math.inf  # when it did so last, but for saying that it is busy

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        user_agent: str = names.FIELD_MANAGER,
        **options: Any,
    ) -> Api:
        """Connect with a kubeconfig if one is given or found, otherwise with the pod's service account."""
        configuration = client.Configuration()
        if kubeconfig is None and context is None:
            try:
                config.load_incluster_config(configuration, try_refresh_token=False)
                configuration.refresh_api_key_hook = TokenFile().refresh  # type: ignore[assignment]  # no stub has it
            except config.ConfigException:
                await config.load_kube_config(client_configuration=configuration)
        else:
            await config.load_kube_config(kubeconfig, context, configuration)
        # Compressing a long list costs the server more than sending it costs the cluster's network.
        return cls(Transport(configuration, user_agent=user_agent, encoding="identity"), **options)

    @property
    def client(self) -> client.ApiClient:
        """The typed client, for APIs without another one; it shares the connections."""
        return self._transport.typed

    async def close(self) -> None:
        await self._transport.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Query = (),
        content_type: str = JSON,
        timeout: float | None = None,
        urgency: Urgency | None = Urgency.NORMAL,
        accept: str = JSON,
        job: str = "",
        most_bytes: int = MOST_OBJECT_BYTES,
        reduce: Callable[[str], Any] | None = None,
    ) -> Any:
        """Send a request and decode the response. `job` is the owner of the request for fair queueing.

        Without `urgency` it waits for no other request: for what is small, and sent one at a time.

        Raises ApiError for an error response, or if there is none within `timeout` seconds.
        Raises UnreadableError if the response is larger than `most_bytes`, not JSON, or has too many values: see
        `reduce` of `json_stream.decode`. A write has been made even so.
        Raises NotLeadingError, without sending anything, for a write while this replica does not lead.
        """
        request = Request(method, path, query=query, body=body, content_type=content_type, accept=accept)
        owner = (namespace_of(path), job)
        async with self._slot(owner, urgency):  # until it is decoded: no more bodies wait for that than there are slots
            data = await self._ask(request, timeout, most_bytes)
            if len(data) <= LARGE_BYTES:
                return await decode_body(data, request.title) if data else {}
            await self._decoding.acquire(owner)
            try:
                return await decode_body(data, request.title, reduce=reduce)
            finally:
                self._decoding.release(owner)

    async def fetch(self, path: str, query: Query, accept: str) -> bytearray:
        """The body of a GET, for `decode_page`. Raises ApiError; UnreadableError if it is too large."""
        async with self._slot((namespace_of(path), ""), Urgency.NORMAL):
            return await self._ask(Request("GET", path, query=query, accept=accept), None, LARGEST_BYTES)

    async def decode_page(
        self, data: bytearray, path: str, take: Take, head: Head, reduce: Callable[[str], Any]
    ) -> None:
        """Decode a page of a list: see `decode_body`. Large ones take turns, as all kinds are listed together."""
        if len(data) <= LARGE_BYTES:
            await decode_body(data, path, take, head, reduce)
            return
        owner = (namespace_of(path), "")
        await self._turning.acquire(owner)
        try:
            await decode_body(data, path, take, head, reduce)
        finally:
            self._turning.release(owner)

    @contextlib.asynccontextmanager
    async def _slot(self, owner: Owner, urgency: Urgency | None) -> AsyncIterator[None]:
        if urgency is None:
            yield
            return
        await self._slots.acquire(owner, urgency)
        try:
            yield
        finally:
            self._slots.release(owner, urgency)

    async def _ask(self, request: Request, timeout: float | None, most_bytes: int) -> bytearray:
        """The body of the response."""
        status, started = 0, time.monotonic()
        try:
            limit = aiohttp.ClientTimeout(total=timeout or self._timeout, sock_connect=CONNECT_SECONDS)
            response = await self._send(request, limit)
            status = response.status
            try:
                data = await _read(response, request.title, most_bytes)
            except BaseException:
                response.close()  # else the connection stays until somebody collects the response
                raise
        except NO_ANSWER as error:
            raise no_reply(request.title, error) from error
        finally:
            self._observe(request.method, request.path, status, time.monotonic() - started)
        if status >= 400:
            raise decode_error(status, data, response.headers.get("Retry-After"))
        return data

    async def stream(
        self,
        path: str,
        query: Query,
        idle: float,
        accept: str = JSON,
        *,
        opened: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[dict[str, Any] | Unreadable]:
        """The events of a watch until the server ends it or nothing arrives for `idle` seconds. Raises ApiError.

        `opened` is called once the API server has accepted the watch.
        """
        request = Request("GET", path, f"watch {path}", query, accept=accept)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=idle)
        lines = Lines(LARGEST_BYTES, outline_event)
        try:
            response = await self._send(request, timeout)
            self._observe("WATCH", path, response.status, 0.0)
            try:
                if response.status >= 400:
                    data = await _read(response, request.title)
                    raise decode_error(response.status, data, response.headers.get("Retry-After"))
                opened()
                with contextlib.suppress(aiohttp.SocketTimeoutError):  # an idle watch ends normally
                    async for chunk in response.content.iter_any():
                        self.heard = time.monotonic()  # which says nothing about requests: a busy server refuses those
                        async for event in lines.feed(chunk):
                            yield event
            finally:
                response.close()
        except NO_ANSWER as error:
            raise no_reply(request.title, error) from error

    async def _send(self, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        prepared = await self._transport.prepare(request)
        sent = time.monotonic()
        # Check permission as late as possible: everything before may have taken time.
        response = await self._transport.send(prepared, self._permit(request, timeout))
        self.heard = time.monotonic()
        if response.status < 500:  # else a proxy may have answered, which has a clock of its own
            self.clock.note(response.headers.get("Date"), self.heard - sent)
        if response.status not in BUSY:
            self.served = self.heard
        return response

    def _permit(self, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientTimeout:
        """The timeout of a permitted request. A write must get its connection while it is permitted."""
        left = self._seconds_to_send(request.method, request.path)
        if left is None:
            return timeout
        return aiohttp.ClientTimeout(
            total=timeout.total, connect=min(CONNECT_SECONDS, left), sock_connect=min(CONNECT_SECONDS, left)
        )

    def _seconds_to_send(self, method: str, path: str) -> float | None:
        """For how many seconds the request may be sent; None: without limit. Raises NotLeadingError if it may not."""
        if method in READS or resource_name(path) in FREE_TO_ALL:
            return None
        left = self.leadership.seconds_left()
        if left <= 0:
            raise NotLeadingError(method, path)
        return left

    def _observe(self, method: str, path: str, status: int, seconds: float) -> None:
        if self.observer is not None:
            self.observer(method, resource_name(path), status, seconds)


async def _read(response: aiohttp.ClientResponse, what: str, most_bytes: int = LARGEST_BYTES) -> bytearray:
    data = bytearray()  # which grows in place: to join the parts at the end would take long at a stretch
    async for part in response.content.iter_any():
        data += part
        if len(data) > most_bytes:
            response.close()
            if response.status >= 400:
                break  # what begins it tells enough
            raise UnreadableError(what, f"the response is larger than {most_bytes} bytes")
    return data


async def decode_body(
    data: bytearray,
    what: str,
    take: Take = keep,
    head: Head = ignore,
    reduce: Callable[[str], Any] | None = None,
) -> Any:
    """The value of the response to `what`: see `json_stream.decode`. Raises UnreadableError."""
    try:
        return await decode(data, take, head, reduce)
    except TooManyError as error:
        raise UnreadableError(what, f"the response has {error}") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableError(what, f"the response is not valid JSON: {type(error).__name__}") from None
