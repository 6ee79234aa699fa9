"""The hub: receives the states of agents and sends them directives. It makes no decisions.

The operator reads `agents`, calls `direct`, and is woken by changes. This module admits connections and runs the
protocol on them; `registry` keeps the state.

No agent makes the hub wait for it while others need it, and each costs a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from aiohttp import web

from elasticjob_operator import shares
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import admission, auth, connection, frames, handshake, limits, registry, suspects
from elasticjob_operator.kube.supervise import keep_going
from elasticjob_operator.model import observe
from elasticjob_operator.rest import http_log

STANDBY: Final = auth.Refusal(503, "not the leader; try again")
SUSPECT: Final = auth.Refusal(429, "too many tokens from this address were refused; try again")

logger = logging.getLogger(__name__)


class Hub:
    """The WebSocket server for agents."""

    def __init__(
        self,
        *,
        authenticate: auth.Authenticator,
        wake: Callable[[JobKey], None],
        clock: Callable[[], float] = time.time,
        settings: limits.HubSettings | None = None,
        on_restart: Callable[[str], None] = lambda task: None,
        expected: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`expected`: the number of pods whose agents may connect, by namespace: a new hub has still to meet them."""
        self._authenticate = authenticate
        self._clock = clock
        self._settings = settings or limits.HubSettings()
        self._registry = registry.AgentRegistry(wake, clock, self._settings)
        self._unauthenticated = shares.Room(self._settings.max_unauthenticated)  # by address, like the next one
        self._suspects = suspects.Suspects(self._settings.failures_per_second, self._settings.failure_burst)
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.ServerRunner | None = None
        self._server: asyncio.Server | None = None
        self._listener: handshake.HandshakeListener | None = None
        self._context: ssl.SSLContext | None = None
        self._leader, self._expected = False, expected
        self._crowd, self._counted = admission.Crowd({}), float("-inf")  # the agents, and when they were counted
        self._on_restart = on_restart  # called when a background task failed
        self.started_at = clock()
        self.counts = self._registry.counts  # "refused:401", "closed:silent", "message:state", ...

    # The interface for the operator's loop.

    @property
    def leader(self) -> bool:
        """Only the leader takes agents; the others answer 503. False until set."""
        return self._leader

    @leader.setter
    def leader(self, value: bool) -> None:
        if self._leader and not value:
            self._registry.dismiss_all(connection.NOT_LEADER)
        self._leader = value

    @property
    def connections(self) -> int:
        return len(self._registry)

    @property
    def pending_sockets(self) -> int:
        """The number of open sockets that have not sent a complete request."""
        return len(self._listener) if self._listener is not None else 0

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """By kind of slot: how many are taken, and how many there are."""
        known = self._registry
        rooms = {
            "strangers": self._unauthenticated,
            "pending": known.pending,
            "agents": known.places,
            "kept": known.kept,
            "arriving": known.arriving,
            "unread": known.unread,
        }
        sockets = {"newcomers": (self.pending_sockets, self._settings.max_pending_sockets)}
        return sockets | {name: (len(room), room.capacity) for name, room in rooms.items()}

    def agents(self, job: JobKey) -> Mapping[str, observe.Agent]:
        """The job's agents by pod UID, including those that recently lost their connection."""
        return self._registry.agents(job)

    def direct(self, job: JobKey, directives: Mapping[str, wire.Directive]) -> None:
        """Set the directives of the job's pods, by pod UID: see `AgentRegistry.direct`."""
        self._registry.direct(job, directives)

    def forget(self, job: JobKey) -> None:
        """The job was deleted: close its remaining connections."""
        self._registry.forget(job)

    def forget_pods(self, job: JobKey, *, but: Collection[str]) -> None:
        """The job has no pods any more but these, by UID."""
        self._registry.forget_pods(job, but=but)

    # Start and stop.

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> int:
        """Listen; return the port."""
        loop = asyncio.get_running_loop()
        self._context = ssl_context
        server = web.Server(  # not an application: with one path, its router and signals only cost
            self._handle,
            access_log=None,
            keepalive_timeout=1.0,
            tcp_keepalive=False,  # heartbeats are enough, and each setting of a socket costs
            lingering_time=0.0,  # do not read data after a request with a response
            logger=http_log.quiet_logger(f"{__name__}.http"),
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = handshake.HandshakeListener(
            self._runner.server,
            lambda: self._context,
            patience=self._settings.hello_seconds,
            capacity=self._settings.max_pending_sockets,
        )
        self._server = await loop.create_server(self._listener.accept, host, port, backlog=1024)
        self.started_at = self._clock()
        for name, work in (
            ("the hub's directives", self._registry.send_forever),
            ("the hub's sweep", self._sweep_forever),
        ):
            self._tasks.add(asyncio.create_task(keep_going(name, work, self._on_restart)))
        return int(self._server.sockets[0].getsockname()[1])

    def use_certificate(self, ssl_context: ssl.SSLContext) -> None:
        """Use this certificate for new connections; existing ones are unaffected."""
        self._context = ssl_context

    async def stop(self) -> None:
        """Close all connections so that the agents reconnect elsewhere, and stop."""
        self._leader = False
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.close()
        self._registry.dismiss_all(connection.CloseReason("stop", connection.CLOSE_GOING_AWAY))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._registry.closing, return_exceptions=True)
        self._tasks.clear()
        if self._runner is not None:
            await self._runner.cleanup()

    # One agent, from its request to the end of its connection.

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        visitor = self._listener.enter(request) if self._listener is not None else None
        admitted = await self._admit(request)
        if isinstance(admitted, auth.Refusal):
            if self._listener is not None:
                self._listener.send_away(visitor)
            return self._refused(admitted)
        identity, link = admitted
        if visitor is not None:
            visitor.change_meter(functools.partial(self._measure, link, identity))
            link.carrier = visitor.raw
        try:
            await self._greet(request, link, identity)
        except ConnectionError:
            return web.Response(status=400)
        finally:
            if visitor is not None:
                visitor.end_meter()
            self._registry.discharge(link, identity.namespace, is_over=True)
        return link.ws

    async def _greet(self, request: web.BaseRequest, link: connection.Connection, identity: auth.Identity) -> None:
        """Open the connection, and serve it if its agent says hello. Raises ConnectionError if it is not opened."""
        hello: wire.Hello | connection.CloseReason | None = None
        try:
            await link.open(request)
            hello = await link.receive_hello()
        finally:
            is_in = self._registry.settle(link, identity, stays=isinstance(hello, wire.Hello))
        if is_in:
            await self._serve(link, identity, hello)

    def _measure(self, link: connection.Connection, identity: auth.Identity, size: int) -> bool:
        """Whether the peer may send so many more bytes."""
        if not link.may_arrive(size):
            self._registry.cut_off(link, identity, connection.RATE)
            return False
        if not self._registry.charge(link, identity.namespace):
            self._registry.cut_off(link, identity, connection.CROWDED)
            return False
        return True

    async def _admit(self, request: web.BaseRequest) -> tuple[auth.Identity, connection.Connection] | auth.Refusal:
        identity = await self._review(request)
        if isinstance(identity, auth.Refusal):
            return identity
        if not self._leader:
            return STANDBY
        sharing = self._count_sharing(identity.namespace, joining=1)
        link = self._registry.admit(identity, limits.heartbeat_seconds(sharing, self._settings))
        return link if isinstance(link, auth.Refusal) else (identity, link)

    async def _review(self, request: web.BaseRequest) -> auth.Identity | auth.Refusal:
        """Authenticate the request. For an address that has failed too often, the API server is not asked."""
        if request.path != wire.PATH:
            return auth.Refusal(404, f"agents connect to {wire.PATH}")
        if request.method != "GET":
            return auth.Refusal(405, "this is a WebSocket")
        address = request.remote or ""
        if not self._leader:
            return STANDBY
        if self._suspects.is_spent(address):
            return SUSPECT
        if not self._unauthenticated.enter(address):
            return auth.Refusal(503, "busy; try again")
        try:
            async with asyncio.timeout(self._settings.authenticate_seconds):
                return await self._review_in_turn(request, address)
        except TimeoutError:
            return auth.Refusal(503, "the API server does not answer; try again")
        finally:
            self._unauthenticated.leave(address)

    async def _review_in_turn(self, request: web.BaseRequest, address: str) -> auth.Identity | auth.Refusal:
        if not await self._suspects.enter(address):
            return SUSPECT
        found: auth.Identity | auth.Refusal | None = None
        try:
            found = await self._identify(request, address)
            return found
        finally:
            is_refused = isinstance(found, auth.Refusal) and found.status in (401, 403)
            self._suspects.leave(address, is_refused=is_refused)

    async def _identify(self, request: web.BaseRequest, address: str) -> auth.Identity | auth.Refusal:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return auth.Refusal(401, "an Authorization header with a bearer token is required")
        if request.headers.get("Upgrade", "").lower() != "websocket" or request.can_read_body:
            return auth.Refusal(400, "this is a WebSocket")
        try:
            return await self._authenticate(token.strip(), address)
        except Exception:  # whatever the cause, the agent should retry and not give up
            logger.exception("authentication failed with an unexpected error")
            return auth.Refusal(503, "authentication is not available; try again")

    def _refused(self, refusal: auth.Refusal) -> web.Response:
        self.counts[f"refused:{refusal.status}"] += 1
        response = web.Response(status=refusal.status, text=refusal.message + "\n")
        if refusal.status in (429, 503) and refusal is not STANDBY:
            response.headers["Retry-After"] = "1"  # agents come back to it soon, so a standby must not say it
        response.force_close()
        return response

    async def _serve(
        self, link: connection.Connection, identity: auth.Identity, hello: wire.Hello | connection.CloseReason | None
    ) -> None:
        """Serve the connection after hello until it ends. No exception leaves this method."""
        close_reason: connection.CloseReason | None = None
        try:
            close_reason = await self._converse(link, identity, hello)
        except ConnectionError:
            pass
        except Exception:
            logger.exception("%s/%s: the connection of its agent failed", identity.namespace, identity.pod)
            close_reason = connection.CloseReason("error", 1011)
        finally:
            self._registry.leave(link, "closed")
            if close_reason is not None and link.close_reason is None:
                self._registry.count_close(close_reason, identity)
                self._registry.part(link)
                await link.close(close_reason)
                await link.drain()
            self._registry.parted(link)
            if link.unsent():
                link.abort()  # a peer that does not read would keep the socket open for ever

    async def _converse(
        self, link: connection.Connection, identity: auth.Identity, hello: wire.Hello | connection.CloseReason | None
    ) -> connection.CloseReason | None:
        """Receive messages until the connection ends; return why the hub must close it, or None if it is closed."""
        if not isinstance(hello, wire.Hello):
            return hello
        if not self._leader:
            return connection.NOT_LEADER
        entry = self._registry.enter(link, identity, hello)
        if entry is None:
            return connection.CROWDED
        welcome = wire.Welcome(
            heartbeat_seconds=link.heartbeat,
            timeout_seconds=link.timeout,
            in_process=entry.job.is_in_process,
            training=entry.job.is_training,
            peer_key=entry.job.peer_key if hello.peers else None,
            reconnect_seconds=limits.reconnect_seconds(self._count_sharing(identity.namespace), self._settings),
        )
        await link.send(frames.encode(welcome))
        self._registry.send_soon(entry)
        while True:
            message = await link.receive()
            if message is None or isinstance(message, connection.CloseReason):
                return message
            if link.close_reason is None and (reason := self._registry.receive(entry, message, link.size)) is not None:
                return reason

    def _count_sharing(self, namespace: str, *, joining: int = 0) -> int:
        """With how many agents one of this namespace shares the hub, itself included: see `admission.Crowd`.

        A new hub has still to meet most of them, and tells the first ones what fits all.
        """
        now, expected, known = asyncio.get_running_loop().time(), self._expected(), self._registry.places.held
        if now - self._counted >= self._settings.count_seconds:
            names = expected.keys() | known.keys()
            self._crowd = admission.Crowd({name: max(expected.get(name, 0), known.get(name, 0)) for name in names})
            self._counted = now
        return self._crowd.count(namespace, max(known.get(namespace, 0) + joining, expected.get(namespace, 0)))

    async def _sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            if limits.lost_seconds(loop.time() - last, self._settings):
                for _ in range(2):  # what has arrived meanwhile is read first
                    await asyncio.sleep(0)
            now = loop.time()
            lost, last = limits.lost_seconds(now - last, self._settings), now
            try:
                if self._listener is not None:
                    self._listener.sweep(now)
                self._registry.sweep(now, lost)
            except Exception:  # without the sweep no loss would be detected
                logger.exception("the sweep of connections failed")
