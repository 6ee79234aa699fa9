"""A small hub that implements `docs/protocol.md` with simple membership rules: enough to test and to measure agents.

It runs in a separate thread, forms a world when `size` agents are ready, regroups when a member is lost, fails, leaves
or is not wanted, or when a joiner fits, and records every message with its time. The pod is identified by its token,
`token-<pod>`; any other token is rejected with 401. It imports nothing of the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response


@dataclass
class Agent:
    """The hub's record of one pod."""

    pod: str
    uid: str
    state: dict[str, Any]
    socket: ServerConnection | None
    lost_at: float | None = None
    told: dict[str, Any] | None = None
    since: int = 0  # order of arrival

    @property
    def phase(self) -> str:
        return str(self.state["phase"])

    @property
    def generation(self) -> int:
        return int(self.state.get("generation", 0))


@dataclass
class World:
    generation: int
    pods: list[str]
    agents: list[str]
    over: bool = False
    announced_at: float = 0.0
    store: dict[str, Any] = field(default_factory=dict)
    successes: set[str] = field(default_factory=set)


class FakeHub:
    """Use as a context manager; change `size` or `wanted` with `set_size`, wait with `wait_for`."""

    def __init__(
        self, size: int = 1, max_size: int = 64, port: int = 0, heartbeat: float = 1.0, timeout: float = 10.0
    ) -> None:
        self.size = size  # no world is formed with fewer
        self.max_size = max_size
        self.heartbeat = heartbeat
        self.timeout = timeout
        self.reconnect_grace = 5.0  # generous: tests run on busy machines
        self.form_grace = 0.3  # the world is broken anyway, and a living agent is back at once
        self.port = port
        self.generation = 0
        self._charged: set[int] = set()  # generations in which a worker failed
        self.in_process: bool | None = None  # what to tell newcomers; None: what the others say of themselves
        # Who of those that are ready is in the next world, by rank, with UIDs: of the last world, and of all that are
        # ready, survivors first. None: all of them.
        self.seat: Callable[[list[str], list[str]], list[str]] | None = None
        self.probe: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # what to tell a pod in its preflight
        self.agents: dict[str, Agent] = {}
        self.world: World | None = None
        self.stop_reason: tuple[str, bool] | None = None
        self.lets_save = False  # what it stops may save before
        self.code: dict[str, Any] | None = None  # that the next worlds run
        self.unwanted: set[str] = set()
        self.history: list[tuple[float, str, dict[str, Any]]] = []  # time, pod, message
        self.regroups: list[tuple[float, str]] = []
        self.changed = threading.Condition()
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._ended: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._arrivals = 0

    # From the test's thread.

    def __enter__(self) -> FakeHub:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._ready.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20), "the fake hub did not start"

    def close(self) -> None:
        """Disconnect like a killed operator; `start` continues from the recorded state."""
        if self._loop is not None and self._ended is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(20)
        self._loop = None

    def call(self, function: Callable[[], None]) -> None:
        """Change something in the hub's thread and decide again."""
        assert self._loop is not None
        done = threading.Event()

        def run() -> None:
            function()
            self._think()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(20)

    def set_size(self, size: int, max_size: int | None = None) -> None:
        def change() -> None:
            self.size = size
            self.max_size = self.max_size if max_size is None else max_size

        self.call(change)

    def remove(self, pod: str) -> None:
        """An announced shrink: the world continues without this pod, which is then stopped."""
        self.call(lambda: self.unwanted.add(pod))

    def stop(self, reason: str = "test", ok: bool = True) -> None:
        def change() -> None:
            self.stop_reason = (reason, ok)

        self.call(change)

    def suspend(self) -> None:
        """All pods may save, and are then stopped. Those that come after `resume` form the next world."""

        def change() -> None:
            self.stop_reason, self.lets_save = ("suspended", True), True
            if self.world is not None:
                self.world.over = True

        self.call(change)

    def resume(self) -> None:
        def change() -> None:
            self.stop_reason, self.lets_save = None, False

        self.call(change)

    def disconnect(self, pod: str) -> None:
        """Break the connection of one pod."""

        def change() -> None:
            socket = self.agents[pod].socket
            if socket is not None:
                socket.transport.abort()

        self.call(change)

    def declare_lost(self, pod: str) -> None:
        """The hub's reaction to `timeout` seconds of silence."""

        def change() -> None:
            agent = self.agents[pod]
            if agent.socket is not None:
                agent.socket.transport.abort()
            agent.socket, agent.lost_at = None, time.monotonic() - 60

        self.call(change)

    def wait_for(self, predicate: Callable[[], Any], timeout: float = 60.0, what: str = "") -> Any:
        with self.changed:
            ok = self.changed.wait_for(predicate, timeout)
        assert ok, f"waited {timeout} s for {what or predicate}; {self.describe()}"
        return ok

    def wait_for_world(self, pods: int, newer_than: int = 0, timeout: float = 60.0) -> World:
        """Wait until a world of this many pods runs."""

        def runs() -> bool:
            world = self.world
            return (
                world is not None
                and not world.over
                and len(world.pods) == pods
                and world.generation > newer_than
                and all(
                    self.agents[pod].phase == "running" and self.agents[pod].generation == world.generation
                    for pod in world.pods
                )
            )

        self.wait_for(runs, timeout, f"a world of {pods} newer than {newer_than}")
        assert self.world is not None
        return self.world

    def phases(self, pod: str) -> list[str]:
        return [
            message["state"]["phase"] for _, who, message in list(self.history) if who == pod and "state" in message
        ]

    @property
    def restarts(self) -> int:
        """Worlds that a worker's failure ended; those in which a session had to begin again are free."""
        free = {failure["generation"] for failure in self.failures() if failure.get("kind") == "restart"}
        return len(self._charged - free)

    def failures(self) -> list[dict[str, Any]]:
        return [
            message["state"]["failure"]
            for _, _, message in list(self.history)
            if message.get("state", {}).get("failure")
        ]

    def messages(self, kind: str) -> list[dict[str, Any]]:
        return [message for _, _, message in list(self.history) if message["type"] == kind]

    def describe(self) -> str:
        agents = {pod: (a.phase, a.generation, a.socket is not None) for pod, a in self.agents.items()}
        return f"world {self.world}, agents {agents}, regroups {self.regroups}"

    # In the hub's thread.

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with serve(
            self._handle,
            "127.0.0.1",
            self.port,
            process_request=self._authenticate,
            ping_interval=None,
            close_timeout=0.2,
        ) as server:
            self._server = server
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._ready.set()
            ticker = asyncio.create_task(self._tick())
            await self._ended.wait()
            ticker.cancel()
            for agent in self.agents.values():
                if agent.socket is not None:
                    agent.socket.transport.abort()
                    agent.socket, agent.lost_at = None, time.monotonic() + 5.0  # time to come back

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/v1/agent":
            return connection.respond(HTTPStatus.NOT_FOUND, "no such path\n")
        if not request.headers.get("Authorization", "").startswith("Bearer token-"):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "bad token\n")
        return None

    async def _handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        pod = socket.request.headers["Authorization"].removeprefix("Bearer token-")
        try:
            message = json.loads(await asyncio.wait_for(socket.recv(), 5))
            self._note(pod, message)
            agent = self._admit(pod, message, socket)
            await self._send(
                agent,
                {
                    "type": "welcome",
                    "peerKey": "secret",
                    "heartbeatSeconds": self.heartbeat,
                    "timeoutSeconds": self.timeout,
                    "inProcess": self._is_in_process(),
                    "probes": self.probe is not None,
                    "training": any(a.phase == "running" for a in self.agents.values()),
                },
            )
            agent.told = None
            self._think()
            async for text in socket:
                message = json.loads(text)
                self._note(pod, message)
                if message["type"] == "state":
                    agent.state = message["state"]
                    self._think()
        except (TimeoutError, ConnectionClosed):
            pass
        finally:
            agent_now = self.agents.get(pod)
            if agent_now is not None and agent_now.socket is socket:
                agent_now.socket, agent_now.lost_at = None, time.monotonic()
                self._think()

    def _note(self, pod: str, message: dict[str, Any]) -> None:
        with self.changed:
            self.history.append((time.time(), pod, message))
            self.changed.notify_all()

    def _admit(self, pod: str, hello: dict[str, Any], socket: ServerConnection) -> Agent:
        known = self.agents.get(pod)
        if known is None or known.uid != hello["agent"]:
            self._arrivals += 1
            known = Agent(pod, hello["agent"], hello["state"], socket, since=self._arrivals)
            self.agents[pod] = known
        known.state, known.socket, known.lost_at = hello["state"], socket, None
        return known

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self._think()

    async def _send(self, agent: Agent, message: dict[str, Any]) -> None:
        if agent.socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await agent.socket.send(json.dumps({"v": 1, **message}))

    def _tell(self, agent: Agent, directive: dict[str, Any]) -> None:
        if agent.told == directive or agent.socket is None:
            return
        agent.told = directive
        asyncio.get_running_loop().create_task(self._send(agent, {"type": "directive", "directive": directive}))

    def order_regroup(self, pod: str, generation: int) -> None:
        """Send one pod a regroup of a world that it never saw, like after an operator that died in between."""

        def order() -> None:
            self.generation = generation
            self._tell(self.agents[pod], self._regroup_directive(generation, "over", checkpoint=False))

        self.call(order)

    # Membership, much simpler than the operator's.

    def _think(self) -> None:
        now = time.monotonic()
        if self.world is not None and not self.world.over:
            self._watch(self.world, now)
        if self.world is None or self.world.over:
            self._form(now)
        for agent in self.agents.values():
            if self.stop_reason is not None:
                saves = {"checkpoint": True, "graceSeconds": 30} if self.lets_save else {}
                reason, ok = self.stop_reason
                self._tell(agent, {"action": "stop", "reason": reason, "ok": ok, **saves})
            elif self._is_stale(agent):
                self._tell(agent, self._regroup_directive(agent.generation, "fenced", checkpoint=False))
            elif self.probe is not None and not agent.state.get("preflight", {"over": True})["over"]:
                self._tell(agent, {"action": "probe", **self.probe(agent.state["preflight"])})
            elif self._may_go(agent):
                self._tell(agent, {"action": "stop", "reason": "not wanted", "ok": True})
        with self.changed:
            self.changed.notify_all()

    def _is_in_process(self) -> bool:
        if self.in_process is not None:
            return self.in_process
        tried = [a.state for a in self.agents.values() if a.socket is not None and a.generation > 0]
        return bool(tried) and all(state.get("inProcess") for state in tried)

    def _is_stale(self, agent: Agent) -> bool:
        """It runs in a world that is over and was not there when that was said."""
        if self.world is None or agent.phase not in ("running", "leaving"):
            return False
        return agent.generation < self.world.generation and agent.uid not in self.world.agents

    def _regroup_directive(self, generation: int, reason: str, checkpoint: bool) -> dict[str, Any]:
        return {
            "action": "regroup",
            "generation": generation,
            "reason": reason,
            "checkpoint": checkpoint,
            "graceSeconds": 5,
        }

    def _may_go(self, agent: Agent) -> bool:
        if agent.pod not in self.unwanted:
            return False
        world = self.world
        return world is None or agent.pod not in world.pods or (world.over and agent.phase == "ready")

    def _is_gone(self, agent: Agent | None, now: float) -> bool:
        if agent is None:
            return True
        return agent.lost_at is not None and now - agent.lost_at > self.reconnect_grace

    def _watch(self, world: World, now: float) -> None:
        members = [self.agents.get(pod) for pod in world.pods]
        world.successes |= {a.pod for a in members if a is not None and a.phase == "succeeded"}
        if world.successes:
            if len(world.successes) == len(world.pods):
                self.stop_reason = ("complete", True)
            return None
        failed = any(
            a is not None
            and a.generation == world.generation
            and a.phase in ("ready", "stopping", "failed")
            and a.state.get("failure")
            for a in members
        )
        if any(self._is_gone(a, now) or (a is not None and a.uid not in world.agents) for a in members) or (
            failed and any(a is None or a.lost_at is not None for a in members)
        ):
            for agent in members:
                if agent is not None and agent.lost_at is not None:
                    agent.lost_at -= 60  # judged: it need not be waited for
            return self._regroup("member lost", checkpoint=False)
        if failed:
            self._charged.add(world.generation)
            return self._regroup("worker failed", checkpoint=False)
        if members[0] is not None and members[0].phase == "ready" and members[0].state["store"] != world.store:
            return self._regroup("store gone", checkpoint=False)  # it was announced from what rank 0 said before
        if any(a is not None and a.phase == "ready" and a.generation == world.generation for a in members):
            return self._regroup("member ready again", checkpoint=False)
        if any(a is not None and a.phase == "leaving" for a in members) or self.unwanted & set(world.pods):
            return self._regroup("shrink", checkpoint=True)
        joiners = [a for a in self._candidates(now) if a.pod not in world.pods]
        if joiners and len(self._choose([*filter(None, members), *joiners])) > len(world.pods):
            return self._regroup("grow", checkpoint=True)
        return None

    def _regroup(self, reason: str, checkpoint: bool) -> None:
        assert self.world is not None
        self.world.over = True
        self.regroups.append((time.time(), reason))
        directive = self._regroup_directive(self.world.generation, reason, checkpoint)
        for pod in self.world.pods:
            if pod in self.agents:
                self._tell(self.agents[pod], directive)

    def _stop_waiting_for_lost(self, world: World, now: float) -> None:
        """Where a member was lost before it had left its world, the others cannot end a last step with it."""
        still = [self.agents[pod] for pod in world.pods if pod in self.agents]
        still = [agent for agent in still if agent.phase in ("running", "stopping")]
        if any(agent.lost_at is not None and now - agent.lost_at > self.form_grace for agent in still):
            for agent in still:
                self._tell(agent, self._regroup_directive(world.generation, "member lost", checkpoint=False))

    def _candidates(self, now: float) -> list[Agent]:
        return [
            a
            for a in self.agents.values()
            if a.socket is not None and a.phase == "ready" and a.pod not in self.unwanted
        ]

    def _choose(self, ready: list[Agent]) -> list[Agent]:
        """The members of the next world, by rank; `ready` has the survivors first, in the order of their ranks."""
        if self.seat is None:
            return ready[: self.max_size]
        found = {agent.uid: agent for agent in ready}
        return [found[uid] for uid in self.seat([] if self.world is None else self.world.agents, list(found))]

    def _form(self, now: float) -> None:
        if self.lets_save:
            return
        old = self.world.pods if self.world is not None else []
        if self.world is not None:
            self._stop_waiting_for_lost(self.world, now)
        for pod in old:
            agent = self.agents.get(pod)
            if agent is None or agent.phase in ("leaving", "failed", "succeeded", "starting"):
                continue
            if agent.lost_at is not None and now - agent.lost_at > self.form_grace:
                continue
            if agent.phase != "ready":
                return  # it still stops its workers
        ready = sorted(self._candidates(now), key=lambda a: a.since)
        ranks = {} if self.world is None else {uid: rank for rank, uid in enumerate(self.world.agents)}
        ready.sort(key=lambda a: ranks.get(a.uid, len(ranks)))  # another agent of the same pod is a newcomer
        ready = self._choose(ready)
        if len(ready) < self.size or self.stop_reason is not None:
            return
        self.generation += 1
        pods = [a.pod for a in ready]
        uids, store = [a.uid for a in ready], ready[0].state["store"]
        self.world = World(self.generation, pods, uids, announced_at=time.time(), store=store)
        members = [
            {"pod": a.pod, "rank": rank, "address": a.state.get("address"), "nproc": a.state.get("nproc", 1)}
            for rank, a in enumerate(ready)
        ]
        for rank, agent in enumerate(ready):
            self._tell(
                agent,
                {
                    "action": "world",
                    "generation": self.generation,
                    "rank": rank,
                    "members": members,
                    "store": ready[0].state["store"],
                    "restarts": self.restarts,
                    **({} if self.code is None else {"code": self.code}),
                },
            )
