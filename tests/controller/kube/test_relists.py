"""After a gap, what a list lacks is dropped in pieces: a namespace has as many objects as its owner likes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller import loop_turns
from controller.api_fixture import answering
from controller.integrations.kueue.test_store import workload_of
from elasticjob_operator.api import names
from elasticjob_operator.integrations.kueue.following import Follower
from elasticjob_operator.integrations.kueue.store import Store
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.jobwatch import JobWatch
from elasticjob_operator.kube.watch import Watch
from elasticjob_operator.model.served import Served
from elasticjob_operator.run.cluster import build_watches

pytestmark = pytest.mark.timeout(60)
COUNT = 300
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
Raw = dict[str, Any]


def pod(number: int, **more: Any) -> Raw:
    job, uid = f"j{number}", f"u{number}"
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": uid, "controller": True}
    labels = {
        names.LABEL_APP: names.LABEL_APP_VALUE,
        names.LABEL_JOB: job,
        names.LABEL_JOB_UID: uid,
        names.LABEL_INDEX: "0",
    }
    metadata: Raw = {"namespace": "evil", "uid": f"p{number}", "resourceVersion": "5", "labels": labels}
    metadata |= {"name": names.pod_name(job, 0), "ownerReferences": [owner]}
    return {"metadata": metadata | more, "spec": {"nodeName": "n", "containers": [{"name": "w"}]}}


def child(number: int) -> Raw:
    metadata = pod(number, name=names.service_name(f"j{number}"))["metadata"]
    return {"metadata": metadata | {"annotations": {names.ANNOTATION_DIGEST: "digest"}}}


def job(number: int) -> Raw:
    metadata = {"namespace": "evil", "name": f"j{number}", "uid": f"u{number}", "resourceVersion": "5"}
    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    return {"metadata": metadata, "spec": {"replicas": 1, "template": template}}


class Server:
    """Lists these objects at first, and none after a gap."""

    def __init__(self, kind: str, objects: Iterable[Raw]) -> None:
        self.kind, self.objects = kind, [*objects]
        self.lists = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith(f"/{self.kind}"):
            items: list[Raw] = []
        elif "watch" in request.query:
            if self.lists == 1:
                return web.Response(text=json.dumps(GONE) + "\n", content_type="application/json")
            await asyncio.sleep(60)
            raise AssertionError("the test is over by then")
        else:
            self.lists += 1
            items = self.objects if self.lists == 1 else []
        body = {"metadata": {"resourceVersion": str(10 * self.lists + 10)}, "items": items}
        return web.json_response(body, dumps=lambda value: json.dumps(value, separators=(",", ":")))


class Woken:
    """In which turns of the event loop jobs were woken."""

    def __init__(self, turns: loop_turns.Turns) -> None:
        self._turns = turns
        self.at: Counter[int] = Counter()

    def note(self, key: object) -> None:
        self.at[self._turns.now] += 1


Make = Callable[[Api, Callable[[object], None]], Watch]


def watch_of(kind: str) -> Make:
    def make(api: Api, wake: Callable[[object], None]) -> Watch:
        watches = build_watches(api, Cache(wake), Intake(), (), Served())
        return next(watch for watch in watches if watch.path.endswith(f"/{kind}"))

    return make


def watch_workloads(api: Api, wake: Callable[[object], None]) -> Watch:
    return Follower(api, (), Intake(), Store(wake), lambda: None)._watch_workloads("")


KINDS = [
    pytest.param("pods", pod, watch_of("pods"), id="pods"),
    pytest.param("services", child, watch_of("services"), id="children"),
    pytest.param("workloads", workload_of, watch_workloads, id="Workloads"),
]


@pytest.mark.parametrize(("kind", "make_object", "make_watch"), KINDS)
async def test_what_a_list_lacks_is_dropped_in_pieces(
    kind: str, make_object: Callable[[int], Raw], make_watch: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(kind, map(make_object, range(COUNT)))
    async with answering(server.answer, tmp_path) as api, loop_turns.counted(monkeypatch) as turns:
        woken = Woken(turns)
        watch = asyncio.create_task(make_watch(api, woken.note).run())
        async with asyncio.timeout(50):
            while woken.at.total() < 2 * COUNT:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert max(woken.at.values()) <= loop_turns.PIECES


async def test_jobs_that_have_gone_are_dropped_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(names.PLURAL, [])
    async with answering(server.answer, tmp_path) as api, loop_turns.counted(monkeypatch) as turns:
        woken = Woken(turns)
        cache = Cache(woken.note)
        for number in range(COUNT):
            cache.put_job(job(number))
        woken.at.clear()
        await JobWatch(api, cache, "test", (), asyncio.Event(), Intake()).catch_up()
    assert not cache.jobs
    assert woken.at.total() == COUNT
    assert max(woken.at.values()) <= loop_turns.PIECES


async def test_what_was_made_while_a_list_was_looked_through_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator makes pods and children meanwhile, which the list cannot have."""
    cache = Cache(lambda key: None)
    for number in range(COUNT):
        cache.put_pod(pod(number))
        cache.put_child("Service", child(number))
    async with loop_turns.counted(monkeypatch):
        dropping = [
            asyncio.create_task(cache.replace_pods([], "10")),
            asyncio.create_task(cache.replace_children("Service", [], "10")),
        ]
        await asyncio.sleep(0)
        last = ("evil", f"j{COUNT - 1}")
        made = child(COUNT - 1)
        made["metadata"] |= {"uid": "new", "resourceVersion": "11"}
        cache.put_pod(pod(COUNT - 1, uid="new", resourceVersion="11"))
        cache.put_child("Service", made)
        await asyncio.gather(*dropping)
    assert [pod.uid for pod in cache.pods(last)] == ["new"]
    assert cache.keys_of_pods() == (last,)
    assert {key: [child.uid for child in known.values()] for key, known in cache._children.items()} == {last: ["new"]}
