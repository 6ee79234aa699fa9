"""Leadership: who gets it from a Lease, how long it lasts, and that no write is sent without it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.kube.client import Api, NotLeadingError
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.kube.leadership import Leadership
from elasticjob_operator.kube.lease import Election, Sighting, Timing, is_free

pytestmark = pytest.mark.timeout(30)
TIMING = Timing(duration=3.0)
QUICK = Timing(duration=1.0)


def holds(leadership: Leadership) -> bool:
    """Asked anew: a type checker takes a property for something that stays what an assertion has seen."""
    return leadership.is_held


def test_the_right_runs_out_by_the_clock() -> None:
    now = 100.0
    leadership = Leadership(lambda: now)
    assert not holds(leadership), "nobody has it before it is lent"
    leadership.lend(107.0)
    assert holds(leadership) and leadership.seconds_left() == 7.0
    now = 107.0
    assert not holds(leadership)
    leadership.lend(110.0)
    leadership.end()
    assert not holds(leadership)


@pytest.mark.parametrize("duration", [3.0, 10.0, 300.0])
def test_times_come_from_the_duration(duration: float) -> None:
    timing = Timing(duration)
    assert timing.renew + timing.patience < timing.deadline, "a renewal without an answer can be tried again"
    assert 2 * timing.patience < timing.deadline, "answers that take as long as they may are in time"
    assert timing.deadline < duration, "the holder stops before others begin"


@pytest.mark.parametrize(
    ("sighting", "now", "free"),
    [
        pytest.param(Sighting(), 0.0, True, id="nobody's"),
        pytest.param(Sighting("me", "x", 0.0, 3.0), 1.0, True, id="mine"),
        pytest.param(Sighting("other", "x", 0.0, 3.0), 2.9, False, id="another's"),
        pytest.param(Sighting("other", "x", 0.0, 3.0), 3.0, True, id="another's that is silent"),
        pytest.param(Sighting("other", "x", 0.0, 30.0), 20.0, False, id="whose Lease is longer than ours"),
        pytest.param(Sighting("other", "x", 0.0, 2.0**31), 299.0, False, id="whose Lease is for seventy years"),
        pytest.param(Sighting("other", "x", 0.0, 2.0**31), 300.0, True, id="of which it gets five minutes"),
        pytest.param(Sighting("other", "x", 0.0, 1.0), 2.0, False, id="whose Lease is shorter than ours"),
    ],
)
def test_who_may_take_it(sighting: Sighting, now: float, free: bool) -> None:
    assert is_free(sighting, "me", TIMING, now) is free


class Server:
    """Keeps one Lease as an API server does, and everything else that is written to it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {}
        self.version = 0
        self.silent = False
        self.looks = 0
        self.conflicts = 0
        self.shown = asyncio.Event()  # cleared: the Lease cannot be looked at
        self.shown.set()
        self.written: list[str] = []

    def write(self, holder: str) -> None:
        """Somebody else does."""
        self.version += 1
        now = datetime.now(UTC).isoformat()
        spec = {"holderIdentity": holder, "renewTime": now, "leaseDurationSeconds": 60}
        self.lease = {"metadata": {"resourceVersion": str(self.version)}, "spec": spec}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.silent:
            await asyncio.sleep(60)
        if "/leases" not in request.path:
            self.written.append(f"{request.method} {request.path}")
            return web.json_response({"metadata": {"name": "x"}})
        if request.method == "GET":
            self.looks += 1
            await self.shown.wait()
            return web.json_response(self.lease, status=200 if self.lease else 404)
        body = await request.json()
        if self.lease and body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            self.conflicts += 1
            return web.json_response({"reason": "Conflict"}, status=409)
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return web.json_response(self.lease)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/t/pods",
        "/api/v1/namespaces/t/events",
        "/api/v1/namespaces/t/secrets/hub",
        "/apis/elasticjob.dev/v1alpha1/namespaces/t/elasticjobs/j/status",
        "/apis/discovery.k8s.io/v1/namespaces/t/endpointslices/hub",
    ],
)
async def test_nothing_is_written_without_the_right(method: str, path: str, tmp_path: Path) -> None:
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        with pytest.raises(NotLeadingError, match="does not lead"):
            await api.request(method, path, {})
        await api.request("GET", path)
        await api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {})
        assert server.written == [f"GET {path}", "POST /apis/authentication.k8s.io/v1/tokenreviews"]
        api.leadership.lend(math.inf)
        await api.request(method, path, {})
        assert server.written[-1] == f"{method} {path}"


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("looks", [1, 2], ids=["gets its connection", "writes to it"])
async def test_the_right_that_ends_before_it_is_used_is_over(looks: int, connected: bool, tmp_path: Path) -> None:
    """The process was stopped in between: it was asked in time, and is no longer in time when it could send."""
    server, moments = Server(), iter((0.0,) * looks)
    async with answering(server.answer, tmp_path) as api:
        if connected:
            await api.request("GET", "/api/v1/pods")
        api.leadership = Leadership(lambda: next(moments, 10.0))
        api.leadership.lend(5.0)
        with pytest.raises(NotLeadingError):
            await api.request("PATCH", "/api/v1/namespaces/t/pods/p", {})
        await api.request("GET", "/api/v1/pods")
    assert server.written == ["GET /api/v1/pods"] * (1 + connected)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nobody sets an event
        await asyncio.sleep(0.01)


async def lead(api: Api, identity: str = "me") -> tuple[Election, asyncio.Task[None]]:
    election = Election(api, "t", "operator", identity, QUICK)
    await asyncio.wait_for(election.acquire(), 5)
    assert holds(api.leadership)
    return election, asyncio.create_task(election.hold())


async def test_a_holder_keeps_it_and_gives_it_back(tmp_path: Path) -> None:
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        election, holding = await lead(api)
        first = server.version
        await until(lambda: not api.leadership.is_held or server.version >= first + 8)  # longer than its duration
        assert holds(api.leadership)
        holding.cancel()
        await election.release()
        assert not holds(api.leadership) and server.lease["spec"]["holderIdentity"] == ""


async def test_another_holder_ends_it(tmp_path: Path) -> None:
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        _, holding = await lead(api)
        server.write("other")
        await asyncio.wait_for(holding, 5)
        assert not holds(api.leadership) and server.lease["spec"]["holderIdentity"] == "other"


@pytest.mark.parametrize("left", [pytest.param({}, id="deleted"), pytest.param({"spec": {}}, id="emptied")])
async def test_a_lease_that_nobody_gave_back_is_still_held(left: dict[str, Any], tmp_path: Path) -> None:
    """Its holder has not heard of it yet, and goes on until its next renewal."""
    server = Server()
    server.write("other")
    server.lease["spec"]["leaseDurationSeconds"] = 1
    async with answering(server.answer, tmp_path) as api:
        acquiring = asyncio.create_task(Election(api, "t", "operator", "me", QUICK).acquire())
        await until(lambda: server.looks > 1)
        seen = asyncio.get_running_loop().time()
        server.lease = left and {**server.lease, **left}
        await asyncio.wait_for(acquiring, 5 * QUICK.duration)
        assert asyncio.get_running_loop().time() - seen > QUICK.deadline, "by then the other one has stopped by itself"


async def test_transitions_are_counted_as_far_as_they_can_be(tmp_path: Path) -> None:
    server = Server()
    server.write("")
    server.lease["spec"] |= {"leaseTransitions": 2**31 - 1, "leaseDurationSeconds": 1}
    async with answering(server.answer, tmp_path) as api:
        _, holding = await lead(api)
        holding.cancel()
        assert server.lease["spec"]["leaseTransitions"] == 2**31 - 1


async def test_in_doubt_nothing_is_written(tmp_path: Path) -> None:
    """A renewal that is refused means that somebody has written into the Lease: first it is seen whose it is."""
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        _, holding = await lead(api)
        server.shown.clear()
        server.write("me")
        looks = server.looks
        await until(lambda: server.looks > looks)
        assert server.conflicts == 1 and not api.leadership.is_held and not holding.done()
        server.shown.set()
        await until(lambda: api.leadership.is_held)
        holding.cancel()


async def test_a_stranger_that_touches_the_lease_takes_nothing(tmp_path: Path) -> None:
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        _, holding = await lead(api)
        server.write("me")  # a label, say: the next renewal is refused
        touched = server.version
        await until(lambda: holding.done() or server.version >= touched + 3)
        assert not holding.done() and api.leadership.is_held
        holding.cancel()


async def test_it_waits_for_no_other_request(tmp_path: Path) -> None:
    """The API server answers nothing but the Lease, and tenants' urgent writes hold all places for requests."""
    server = Server()
    busy = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/leases" not in request.path:
            busy.set()
            await asyncio.sleep(60)
        return await server.answer(request)

    async with answering(answer, tmp_path, parallel=2) as api:
        api.leadership.lend(math.inf)
        path = "/api/v1/namespaces/t/pods/p"
        writes = [asyncio.create_task(api.request("DELETE", path, {}, urgency=Urgency.NOW)) for _ in range(4)]
        await busy.wait()
        _, holding = await lead(api)
        assert not any(one.done() for one in writes)
        for task in (holding, *writes):
            task.cancel()


async def test_a_silent_api_server_ends_it_in_time(tmp_path: Path) -> None:
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        _, holding = await lead(api)
        server.silent = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: not api.leadership.is_held)
        assert loop.time() - began < QUICK.duration, "before anybody else may take it"
        with pytest.raises(NotLeadingError):
            await api.request("PATCH", "/api/v1/namespaces/t/pods/p", {})
        await asyncio.wait_for(holding, 5)
