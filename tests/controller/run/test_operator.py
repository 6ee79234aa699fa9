"""A whole replica in this process, against a server that records the requests."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import names
from elasticjob_operator.hub import certificate_secret, certificates
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)
CHECK_SECONDS = 0.05
LISTS = {"elasticjobs": [
    {
        "metadata": {"name": "j", "namespace": "t", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "w", "image": "i"}]}}},
    }
]}  # fmt: skip

_VERSION = {"groupVersion": names.API_VERSION, "version": names.VERSION}
GROUP = {"name": names.GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}


class Server:
    """A cluster with one job that has no pods, where somebody else holds the Lease until `holder` is changed."""

    def __init__(self) -> None:
        self.holder = "somebody-else"
        self.secret: dict[str, Any] = {}
        self.secret_looks = 0
        self.writes: list[str] = []

    def make_secret(self) -> None:
        bundle = certificates.create(["localhost"], datetime.now(UTC))  # other names than this replica's: to be renewed
        self.secret = {"metadata": {"name": "hub-tls", "labels": {names.LABEL_APP: names.LABEL_APP_VALUE}}}
        self.secret["data"] = certificate_secret.to_secret_data(bundle)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        resource = request.path.rpartition("/")[2]
        if "/leases" in request.path:
            return await self._answer_lease(request)
        if request.method != "GET":
            self.writes.append(f"{request.method} {request.path}")
            body = await request.json()
            body.setdefault("metadata", {}).update(resourceVersion="9", uid="new", namespace="t", name="j")
            return web.json_response({**LISTS["elasticjobs"][0], **body})
        if "/secrets/" in request.path:
            self.secret_looks += 1
            return web.json_response(self.secret, status=200 if self.secret else 404)
        if "watch" in request.query:
            out = web.StreamResponse()
            await out.prepare(request)
            await asyncio.sleep(60)
            return out
        if request.path.startswith("/apis/kueue"):
            return web.json_response({"message": "no endpoints available"}, status=503)
        if request.path == "/apis":
            kueue = {
                "name": "kueue.x-k8s.io",
                "versions": [{"groupVersion": "kueue.x-k8s.io/v1beta2", "version": "v1beta2"}],
            }
            return web.json_response({"groups": [GROUP, kueue]})
        if resource == names.VERSION:
            kind = {"name": names.PLURAL, "singularName": "elasticjob", "kind": names.KIND, "namespaced": True}
            return web.json_response({"resources": [{**kind, "verbs": ["get", "list", "watch", "patch"]}]})
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": LISTS.get(resource, [])})

    async def _answer_lease(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.holder = (await request.json())["spec"]["holderIdentity"]
        spec = {"holderIdentity": self.holder, "renewTime": str(time.time()), "leaseDurationSeconds": 1}
        return web.json_response({"metadata": {"resourceVersion": "1"}, "spec": spec})


def leads(operator: Operator) -> bool:
    """Asked anew: a type checker takes an attribute for something that stays what an assertion has seen."""
    return operator.hub.leader


async def until(holds: Any, operator: asyncio.Task[None]) -> None:
    while not holds():
        assert not operator.done(), operator.exception()
        await asyncio.sleep(0.01)


async def test_a_follower_looks_at_the_certificate_and_writes_nothing(tmp_path: Path) -> None:
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        loopback = {"hub_host": "127.0.0.1", "hub_port": 0, "http_host": "127.0.0.1", "http_port": 0}
        options = Options(
            **loopback,  # type: ignore[arg-type]
            tls_secret="hub-tls",
            identity="me",
            lease_seconds=3.0,
            certificate_check_seconds=CHECK_SECONDS,
        )
        operator = Operator(options, api)
        life = asyncio.create_task(operator.run())
        await until(lambda: server.secret_looks >= 2, life)  # it waits for the leader to make one
        assert operator.hub_port == 0
        server.make_secret()
        await until(lambda: operator.hub_port, life)
        looks = server.secret_looks
        await until(lambda: server.secret_looks >= looks + 10, life)
        with pytest.raises(RuntimeError, match="only the leader"):
            operator.controller.start()
        assert server.writes == [] and not leads(operator)

        server.holder, before = "", server.secret_looks  # given back: it leads, and only now it acts
        await until(lambda: any("/elasticjobs/j" in w for w in server.writes), life)
        assert leads(operator) and server.secret_looks > before
        assert any(w.startswith("PUT") and "/secrets/" in w for w in server.writes), "it renews the certificate"
        operator.stop()
        await life


class Deleting(Server):
    """Jobs are deleted between two lists, and nobody is told: one after the operator's first list, one in a gap."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = ["stays", "goes-first", "goes-in-a-gap"]
        self.lists: list[str] = []  # the limits that were asked for
        self.gap = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        if request.path == "/api/v1":  # kopf wants to know that there are namespaces
            kind = {"name": "namespaces", "singularName": "namespace", "kind": "Namespace", "namespaced": False}
            return web.json_response({"resources": [{**kind, "verbs": ["get", "list", "watch"]}]})
        if request.path == "/apis":
            return web.json_response({"groups": [GROUP]})
        if request.path.rpartition("/")[2] != "elasticjobs":
            return await super().answer(request)
        if "watch" in request.query:
            return await self._watch_until_the_gap(request)
        self.lists.append(request.query["limit"])
        pattern = LISTS["elasticjobs"][0]
        jobs = [{**pattern, "metadata": {**pattern["metadata"], "name": name, "uid": name}} for name in self.jobs]
        if request.query["limit"] == "500" and "goes-first" in self.jobs:
            self.jobs.remove("goes-first")
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": jobs})

    async def _watch_until_the_gap(self, request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse()
        await out.prepare(request)
        await self.gap.wait()
        if "goes-in-a-gap" in self.jobs:
            self.jobs.remove("goes-in-a-gap")
            await out.write(b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n')
        else:
            await asyncio.sleep(60)
        return out


async def test_jobs_that_were_deleted_before_a_list_of_kopfs_are_missed(tmp_path: Path) -> None:
    server = Deleting()
    async with answering(server.answer, tmp_path) as api:
        options = Options(hub_host="127.0.0.1", hub_port=0, http_host="127.0.0.1", http_port=0, identity="me")
        operator = Operator(options, api)
        life = asyncio.create_task(operator.run())
        await until(lambda: len(operator.cache.jobs) == 3, life)
        await until(lambda: len(operator.cache.jobs) == 2, life)
        assert set(operator.cache.jobs) == {("t", "stays"), ("t", "goes-in-a-gap")}
        server.gap.set()
        await until(lambda: len(operator.cache.jobs) == 1, life)
        assert set(operator.cache.jobs) == {("t", "stays")}
        assert server.lists.index("500") < server.lists.index("5"), "the operator's own list comes before kopf's"
        operator.stop()
        await life


async def test_a_job_that_cannot_be_looked_at_is_tried_again(tmp_path: Path) -> None:
    writes = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal writes
        if request.path.endswith("/status"):
            writes += 1
            return web.json_response({"reason": "Conflict"}, status=409)
        return web.json_response({"metadata": {}})  # no object that could be taken in

    async with answering(answer, tmp_path) as api:
        operator = Operator(Options(), api)
        operator.cache.put_job({"apiVersion": names.API_VERSION, "kind": names.KIND, **LISTS["elasticjobs"][0]})
        api.leadership.lend(math.inf)
        operator.controller.start()
        async with asyncio.timeout(20):
            while writes < 3:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        await operator.controller.stop()


async def test_what_is_left_out_and_what_begins_anew_is_counted(tmp_path: Path) -> None:
    async with answering(Server().answer, tmp_path) as api:
        operator = Operator(Options(), api)
        operator.intake.take("pods", {"metadata": {"name": "p"}}, [].pop)
        runs: list[int] = []

        async def work() -> None:
            runs.append(1)
            if len(runs) == 1:
                raise KeyError

        await operator._keep_going("a watch", work)
        text = operator.metrics.expose(0.0).decode()
        assert 'elasticjob_objects_skipped_total{error="IndexError",kind="pods"} 1.0' in text
        assert 'elasticjob_background_restarts_total{task="a watch"} 1.0' in text


async def test_a_kueue_that_does_not_answer_keeps_nobody_from_leading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_operator.run.operator.KUEUE_SECONDS", 0.2)
    server = Server()
    async with answering(server.answer, tmp_path) as api:
        loopback = {"hub_host": "127.0.0.1", "hub_port": 0, "http_host": "127.0.0.1", "http_port": 0}
        operator = Operator(
            Options(**loopback, leader_election=False, integrations=("kueue",)),  # type: ignore[arg-type]
            api,
        )
        life = asyncio.create_task(operator.run())
        await until(lambda: any("/elasticjobs/j" in w for w in server.writes), life)
        assert leads(operator)
        operator.stop()
        await life
