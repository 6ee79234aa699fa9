"""Lists of objects as large as the API server stores them: what is in memory at once has a bound."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller import client_fixture as given
from controller.client.test_client import write_config
from elasticjob_operator.api import names
from elasticjob_operator.client import Client, Happening, Pod, listing, rules
from elasticjob_operator.client.model import cut_event, cut_pod, summarize
from elasticjob_operator.client.samples import take_sample
from elasticjob_operator.dashboard import jobpage, listpage

pytestmark = pytest.mark.timeout(120)

JOBS = 60
NOW = 1_767_225_690.0
LARGE = 1_000_000


class Server:
    """It answers with pages, but for what it has in memory, and counts the bytes that it was asked to send at once."""

    def __init__(self) -> None:
        self.whole: list[int] = []  # jobs of each answer that was read to its end

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        begin = int(query.get("continue") or 0)
        end = JOBS if query.get("resourceVersion") == "0" else min(JOBS, begin + int(query["limit"]))
        more = {"continue": str(end)} if end < JOBS else {}
        head = json.dumps({"metadata": {"resourceVersion": "7", **more}})[:-1]
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(head.encode() + b', "items": [')
        for number in range(begin, end):
            raw = given.manifest(f"j{number}")
            raw["metadata"]["annotations"] = {"note": "x" * 1_400_000}
            await response.write((", " if number > begin else "").encode() + json.dumps(raw).encode())
        await response.write(b"]}")
        self.whole.append(end - begin)
        return response


@pytest.mark.parametrize("from_cache", [True, False])
async def test_a_page_of_large_jobs_is_asked_for_in_pieces(tmp_path: Path, from_cache: bool) -> None:
    server, app = Server(), web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    async with TestServer(app) as running:
        assert running.port is not None
        async with Client(kubeconfig=str(write_config(tmp_path, running.port))) as client:
            found = await client.list(from_cache=from_cache, keep=summarize)
    assert [job.name for job in found] == [f"j{number}" for number in range(JOBS)]
    assert sum(server.whole) == JOBS and max(server.whole) * 1_400_000 < listing.MOST_BYTES
    assert sum(len(json.dumps(job.raw)) for job in found) < JOBS * 1000


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"replicas": 2},
        {"elasticPolicy": {}},
        {"elasticPolicy": {"maxReplicas": 3}, "scaling": {"mode": "Goodput"}},
        {"runPolicy": {"suspend": True}},
        {"managedBy": names.MULTIKUEUE},
        {"runPolicy": {"managedBy": names.MULTIKUEUE}},
        {"replicas": -1},
        {"replicas": "many", "elasticPolicy": "none"},
        {"template": 1},
    ],
    ids=str,
)
def test_a_summary_shows_what_the_job_shows(spec: dict[str, Any]) -> None:
    job = given.job(**spec)
    for brief in (summarize(job), summarize(summarize(job))):
        assert brief.is_elsewhere == job.is_elsewhere == (names.MULTIKUEUE in str(spec))
        assert listpage.build_row(brief, NOW) == listpage.build_row(job, NOW)
        pages = [
            jobpage.build_regions(one, jobpage.Seen(), [take_sample(one, NOW)], [one], now=NOW, form_key="k")
            for one in (brief, job)
        ]
        assert pages[0] == pages[1]


def test_a_summary_has_what_the_job_took_of_a_template() -> None:
    status = given.running_status()
    status["template"] = {"namespace": "n", "name": "t", "spec": '{"elasticPolicy": {"maxReplicas": 9}}'}
    brief = summarize(given.job(status, elasticPolicy={}))
    assert brief.spec is not None and brief.spec.max_replicas == 9
    assert brief.status.template is None


@pytest.mark.parametrize(
    "state", [{}, {"running": {}}, {"waiting": {"reason": "ImagePullBackOff"}}, {"terminated": {}}]
)
@pytest.mark.parametrize("beside", [{}, {"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {}}])
@pytest.mark.parametrize("is_named", [True, False])
def test_of_a_pod_is_kept_what_is_read_of_it(state: dict[str, Any], beside: dict[str, Any], is_named: bool) -> None:
    raw = given.pod_object("digits", 3, "true")
    raw["metadata"] |= {"namespace": "team", "uid": "u", "deletionTimestamp": None}
    named = {names.ANNOTATION_TRAINER: "worker"} if is_named else {}
    raw["metadata"]["annotations"] = {**named, "note": "x" * LARGE}
    others = [f"c{number}" for number in range(5000)]
    raw["spec"] |= {"nodeName": "node-0", "volumes": [{"name": "x" * LARGE}]}
    raw["spec"]["containers"] += [{"name": name} for name in others]
    raw["status"] = {
        "phase": "Running",
        "message": "x" * LARGE,
        "containerStatuses": [
            *({"name": name, "state": beside} for name in others[:2500]),
            {"name": "worker", "state": state},
            *({"name": name, "state": beside} for name in others[2500:]),
        ],
    }
    kept = cut_pod(raw)
    for field in ("name", "uid", "index", "node", "leaving", "phase", "ended", "started", "trainer"):
        assert getattr(Pod(kept), field) == getattr(Pod(raw), field), field
    assert len(json.dumps(kept)) < 1000


@pytest.mark.parametrize(
    "more", [{}, {"count": 3}, {"series": {"count": 4, "lastObservedTime": given.GENERATION_TIME}}]
)
def test_of_an_event_is_kept_what_is_read_of_it(more: dict[str, Any]) -> None:
    raw = {
        "metadata": {"name": "x" * 200, "creationTimestamp": given.GENERATION_TIME, "annotations": {"a": "x" * LARGE}},
        "involvedObject": {"kind": "Pod", "name": "digits-worker-0", "uid": "u", "fieldPath": "x" * LARGE},
        "reason": "Pulled",
        "message": "x" * LARGE,
        **more,
    }
    kept = cut_event(raw)
    assert Happening.parse(kept) == Happening.parse(raw)
    assert kept["involvedObject"] == {"kind": "Pod", "name": "digits-worker-0", "uid": "u"}
    assert len(json.dumps(kept)) < 6000


async def answer_events(request: web.Request) -> web.StreamResponse:
    """Two that tell a size among very many that somebody else has written."""
    begin, limit, count = int(request.query.get("continue") or 0), int(request.query["limit"]), 6000
    end = min(count, begin + limit)
    items = []
    for number in range(begin, end):
        about = {"kind": "ElasticJob", "name": f"j{number}", "uid": f"u{number}"}
        noise = {
            "involvedObject": about,
            "reason": "Noise",
            "message": "x" * 4000,
            "lastTimestamp": given.GENERATION_TIME,
        }
        items.append(noise)
        if number in (1, count - 1):
            size = "generation 1 with 4 pods: the job starts" + "x" * 4000
            items.append(noise | {"reason": "WorldFormed", "message": size})
    more = {"continue": str(end)} if end < count else {}
    return web.json_response({"metadata": {"resourceVersion": "7", **more}, "items": items})


async def test_of_the_events_of_a_namespace_only_sizes_are_kept(tmp_path: Path) -> None:
    """A tenant may write as many as fit, each about another job."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer_events)
    async with TestServer(app) as running:
        assert running.port is not None
        async with Client(kubeconfig=str(write_config(tmp_path, running.port))) as client:
            gc.collect()
            tracemalloc.start()
            try:
                found = await client.sizes()
                assert tracemalloc.get_traced_memory()[1] < 24_000_000, "a few pages"
            finally:
                tracemalloc.stop()
    assert found is not None and {uid: [p.value for p in sizes] for uid, sizes in found.items()} == {
        "u1": [4],
        "u5999": [4],
    }


def test_of_any_number_of_sizes_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_SIZES", 3)
    newest = rules.NewestSizes()
    for number in range(9):
        about = {"kind": "ElasticJob", "name": "j", "uid": f"u{number}"}
        newest.take({"involvedObject": about, "reason": "Completed", "lastTimestamp": f"2026-01-01T00:00:0{number}Z"})
    assert sorted(event["involvedObject"]["uid"] for event in newest.found) == ["u6", "u7", "u8"]
