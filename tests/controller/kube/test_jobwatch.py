"""kopf's watch of the jobs, against a small server: what its connection keeps away from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import bounds
from elasticjob_operator.kube import kopf_session
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.jobwatch import JobWatch
from elasticjob_operator.rest.json_stream import MOST_VALUES

pytestmark = pytest.mark.timeout(60)
COLLECTION = "/apis/elasticjob.dev/v1alpha1/elasticjobs"


def resources(name: str, kind: str, *, namespaced: bool) -> dict[str, Any]:
    one = {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["list", "watch"]}
    return {"kind": "APIResourceList", "resources": [one]}


def group(name: str, version: str) -> dict[str, Any]:
    served = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": resources("namespaces", "Namespace", namespaced=False),
    "/apis": {"groups": [group("elasticjob.dev", "v1alpha1"), group("apiextensions.k8s.io", "v1")]},
    "/apis/elasticjob.dev/v1alpha1": resources("elasticjobs", "ElasticJob", namespaced=True),
    "/apis/apiextensions.k8s.io/v1": resources(
        "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    ),
}
REMEDY = "remove what is not needed"
MANY: list[Any] = [0] * (MOST_VALUES + 1)


def job(name: str, version: int, values: list[Any] | None = None) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "t", "uid": f"uid-{name}", "resourceVersion": str(version), "generation": 1}
    spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}, "template": {"spec": {"x": values or []}}}
    return {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": metadata, "spec": spec}


class Server:
    """Lists what there is, and sends the given events to the first watch."""

    def __init__(self, listed: list[dict[str, Any]], events: list[tuple[str, dict[str, Any]]]) -> None:
        self.listed, self.events = listed, events
        self.lists = self.watches = 0
        self.skipped: list[tuple[str, str]] = []
        self.over = asyncio.Event()  # its watches end
        self.pages: list[tuple[int, int]] = []  # how many were asked for, and bytes

    def count(self, kind: str, problem: str) -> None:
        self.skipped.append((kind, problem))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path != COLLECTION:
            return web.json_response(DISCOVERY[request.path])
        if "watch" not in request.query:
            self.lists += 1
            start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
            end = start + limit
            metadata = {"resourceVersion": "10", "continue": str(end) if end < len(self.listed) else ""}
            text = json.dumps({"items": self.listed[start:end], "metadata": metadata})
            self.pages.append((limit, len(text)))
            return web.Response(text=text, content_type="application/json")
        self.watches += 1
        out = web.StreamResponse(headers={"Content-Type": "application/json"})
        await out.prepare(request)
        for kind, item in self.events if self.watches == 1 else []:
            await out.write(json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n")
        await self.over.wait()
        return out


def follow(
    directory: Path, server: Server, is_done: Callable[[Cache], bool], holds: Callable[[], bool] = lambda: True
) -> Cache:
    """Run kopf until the cache is as wanted, without the operator's own list before it. Then, something `holds`."""

    async def run() -> Cache:
        cache, stopped = Cache(lambda key: None), asyncio.Event()
        # The server ends first: kopf would give its tasks five seconds, as it does with all that it does not know.
        async with asyncio.TaskGroup() as tasks, answering(server.answer, directory) as api:
            watch = JobWatch(api, cache, "test", (), stopped, Intake(server.count))
            task = tasks.create_task(watch.run())
            try:
                async with asyncio.timeout(30):
                    while not is_done(cache):
                        assert not task.done()
                        await asyncio.sleep(0.02)
                assert holds()
            finally:
                stopped.set()
                server.over.set()
        return cache

    return asyncio.run(run())


def read_problems(cache: Cache, name: str) -> list[str]:
    return [str(problem) for problem in cache.jobs["t", name][0].problems]


def test_of_an_event_of_very_many_values_kopf_gets_the_metadata(tmp_path: Path) -> None:
    server = Server([job("good", 3)], [("MODIFIED", job("bad", 11, MANY)), ("MODIFIED", job("good", 12))])
    cache = follow(tmp_path, server, lambda cache: ("t", "good") in cache.jobs and cache.jobs["t", "good"][1] == "12")
    assert cache.jobs["t", "bad"][1] == "11"
    assert read_problems(cache, "bad") == [f"spec.template: has more than {bounds.MOST_VALUES} values: {REMEDY}"]


def test_the_deletion_of_such_a_job_is_seen(tmp_path: Path) -> None:
    server = Server([job("bad", 3)], [("DELETED", job("bad", 11, MANY)), ("ADDED", job("good", 12))])
    cache = follow(tmp_path, server, lambda cache: ("t", "good") in cache.jobs)
    assert set(cache.jobs) == {("t", "good")}


def test_a_page_with_such_a_job_has_the_others(tmp_path: Path) -> None:
    server = Server([job("a", 1), job("bad", 2, MANY), job("z", 3)], [])
    cache = follow(tmp_path, server, lambda cache: ("t", "z") in cache.jobs)
    assert set(cache.jobs) == {("t", "a"), ("t", "bad"), ("t", "z")}
    assert read_problems(cache, "bad") == [f"spec.template: has more than {bounds.MOST_VALUES} values: {REMEDY}"]


def test_a_list_of_small_jobs_has_few_pages(tmp_path: Path) -> None:
    listed = [job(f"j{number:04}", number + 1) for number in range(1000)]
    server = Server(listed, [])
    follow(tmp_path, server, lambda cache: len(cache.jobs) == len(listed))
    assert [limit for limit, _ in server.pages][:5] == [5, 40, 320, 500, 500]


def test_large_jobs_behind_many_small_ones_are_not_read_together(tmp_path: Path) -> None:
    small = [job(f"a{number:04}", number + 1) for number in range(900)]
    large = [job(f"z{number:04}", number + 2000) for number in range(60)]
    for one in large:
        one["metadata"]["annotations"] = {"x": "y" * 250_000}
    server = Server(small + large, [])
    follow(tmp_path, server, lambda cache: len(cache.jobs) == len(small + large))
    sizes = [size for _, size in server.pages]
    assert sum(size > kopf_session.MOST_PAGE_BYTES for size in sizes) == 1, "that page is not read to its end"
    assert sizes[-1] <= 2 * kopf_session.PAGE_BYTES


def with_labels(bad: dict[str, Any], first: str, **metadata: Any) -> dict[str, Any]:
    labels = dict.fromkeys(["a", first, *(f"y{number}" for number in range(MOST_VALUES))], "")
    found = {**bad["metadata"], "labels": labels, **metadata}
    return {**bad, "metadata": dict(sorted(found.items()))}


@pytest.mark.parametrize("first", ["spec", "x", "generation", "name"])
@pytest.mark.parametrize("listed", [True, False])
def test_of_one_with_too_much_metadata_its_identity_is_known(first: str, listed: bool, tmp_path: Path) -> None:
    """What it was before is not what it is."""
    bad = with_labels(job("bad", 11), first, generation=3)
    events = [("ADDED", job("good", 12))] if listed else [("MODIFIED", bad), ("ADDED", job("good", 12))]
    cache = follow(
        tmp_path, Server([bad if listed else job("bad", 3)], events), lambda cache: ("t", "good") in cache.jobs
    )
    assert (cache.jobs["t", "bad"][1], cache.jobs["t", "bad"][0].generation) == ("11", 3)
    assert read_problems(cache, "bad") == [f"spec.template: has more than {bounds.MOST_VALUES} values: {REMEDY}"]


def test_one_whose_metadata_is_not_where_it_should_be_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = with_labels(job("bad", 11), "x", zone="x")
    cache = follow(tmp_path, Server([], [("ADDED", bad), ("ADDED", job("good", 12))]), lambda cache: bool(cache.jobs))
    assert set(cache.jobs) == {("t", "good")}
    assert f"skipping elasticjobs t/bad: more than {MOST_VALUES} values" in caplog.text


def test_a_large_event_of_few_values_is_taken(tmp_path: Path) -> None:
    large = job("large", 11)
    large["metadata"]["annotations"] = {"x": "y," * 200_000}
    cache = follow(tmp_path, Server([], [("ADDED", large)]), lambda cache: ("t", "large") in cache.jobs)
    assert cache.jobs["t", "large"][1] == "11"


def test_what_else_runs_goes_on_where_kopf_ends(tmp_path: Path) -> None:
    """kopf takes all that has begun since for its own: passes, agents' connections, the pool, and the hub's sender."""
    server = Server([job("good", 3)], [("ERROR", {"kind": "Status", "code": 500, "message": "cannot be decoded"})])
    others: list[asyncio.Task[bool]] = []

    def is_done(cache: Cache) -> bool:
        if cache.jobs and not others:
            others.append(asyncio.create_task(asyncio.Event().wait()))
        return server.watches > 1

    follow(tmp_path, server, is_done, lambda: [one.done() for one in others] == [False])
