"""What the specs of all jobs keep in memory has a limit, of which one namespace gets half."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.counted_work import count_work
from elasticjob_operator.api import names
from elasticjob_operator.kube import job_room
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.model import observe
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(100)
MIB = 2**20
LARGE = 2 * MIB  # a job of the largest template takes more (measured: 3 MiB)


def make_job(name: str, namespace: str = "greedy", *, dense: int = 600, version: int = 5, **more: Any) -> Any:
    """A job of a template with so many objects, which take twenty times the bytes of their text."""
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": str(version)}
    pod: dict[str, Any] = {"containers": [{"name": "node", "image": "train:1", "command": ["torchrun"]}]}
    if dense:
        pod["affinity"] = {"podAffinity": [{f"{name}-{n}": {}} for n in range(dense)]}
    spec = {"replicas": 1, "template": {"spec": pod}, **more.pop("spec", {})}
    return {"metadata": {**metadata, "generation": version}, "spec": spec, **more}


def watching() -> Cache:
    """A cache into which all jobs were listed that there were."""
    cache = Cache(lambda key: None)
    asyncio.run(cache.know_jobs())
    return cache


def test_the_jobs_of_one_namespace_keep_half_of_the_room_at_most() -> None:
    cache = watching()
    for n in range(40):
        cache.put_job(make_job(f"j{n}", dense=9_900))
    kept = [key for key, (job, _) in cache.jobs.items() if job.spec is not None]
    assert 5 < len(kept) <= 48 * MIB // LARGE
    cache.put_job(make_job("usual", "other", dense=0))
    cache.put_job(make_job("usual", dense=0))
    cache.put_job(make_job("large", "other", dense=9_900))
    for key in (("other", "usual"), ("greedy", "usual"), ("other", "large")):
        assert cache.jobs[key][0].spec is not None, key


def test_jobs_that_wait_for_a_template_take_room_too() -> None:
    """Each keeps its spec as it is written until it has the template."""
    cache = watching()
    for n in range(40):
        cache.put_job(make_job(f"j{n}", dense=9_900, spec={"templateRef": {"name": "none"}}))
    kept = [key for key, (job, _) in cache.jobs.items() if job.awaited is not None]
    assert 5 < len(kept) <= 48 * MIB // LARGE
    told = cache.jobs["greedy", "j39"][0].no_room
    assert told is not None and "move large texts and lists into a ConfigMap" in told.message
    cache.put_job(make_job("usual", spec={"templateRef": {"name": "none"}}, dense=0))
    cache.put_job(make_job("large", "other", dense=9_900, spec={"templateRef": {"name": "none"}}))
    for key in (("greedy", "usual"), ("other", "large")):
        assert cache.jobs[key][0].awaited is not None, key


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_room, "MOST_KEPT_BYTES", 3 * MIB)


STARTED = {"startTime": "2026-01-01T00:00:00Z"}
ENDED = {**STARTED, "conditions": [{"type": "Complete", "status": "True", "reason": "Completed", "message": ""}]}
WAITS = {"conditions": [{"type": "Degraded", "status": "True", "reason": "NoRoom", "message": "no"}]}


def find_kept(cache: Cache) -> set[str]:
    return {name for (_, name), (job, _) in cache.jobs.items() if job.spec is not None}


def fill(cache: Cache, **more: Any) -> list[str]:
    """Jobs that are let in, until one is not."""
    made = [f"j{n}" for n in range(40)]
    for name in made:
        cache.put_job(make_job(name, **more))
        if name not in find_kept(cache):
            return made[: made.index(name)]
    raise AssertionError("there is room for all")


@pytest.mark.usefixtures("small_room")
def test_after_a_restart_the_same_jobs_are_let_in() -> None:
    """In whatever order the API server lists them, and if others need room as well."""
    first = watching()
    kept = fill(first)
    for n in range(40):
        first.put_job(make_job(f"k{n}", "second"))
    were_in = find_kept(first)
    waited = {f"j{len(kept)}", *(f"k{n}" for n in range(40))} - were_in
    assert len(were_in) > len(kept)
    again = Cache(lambda key: None)
    for name in sorted(waited):
        namespace = "greedy" if name.startswith("j") else "second"
        again.put_job(make_job(name, namespace, status=WAITS, version=6))
    for name in sorted(were_in, reverse=True):
        namespace = "greedy" if name.startswith("j") else "second"
        status = {**(STARTED if name.endswith("1") else {}), "observedGeneration": 6}
        again.put_job(make_job(name, namespace, status=status, version=6))
    assert find_kept(again) == were_in


WARNED = {"conditions": [{"type": "Warning", "status": "True", "reason": "NoRoom", "message": "no"}]}


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize(
    ("status", "leaves_room"),
    [
        pytest.param({}, True, id="made while no operator ran"),
        pytest.param({**STARTED, "observedGeneration": 5}, False, id="changed while no operator ran"),
        pytest.param({**STARTED, **WARNED, "observedGeneration": 6}, True, id="a change that waited"),
    ],
)
def test_after_a_restart_jobs_that_were_let_in_find_their_room_first(status: dict[str, Any], leaves_room: bool) -> None:
    """Those of two namespaces come first in the list, and none of them had asked for room, or had got it."""
    cache = Cache(lambda key: None)
    for namespace in ("aaa", "aab"):
        for n in range(40):
            cache.put_job(make_job(f"j{n}", namespace, status=status, version=6))
    cache.put_job(make_job("runs", "victim", status={**STARTED, "observedGeneration": 6}, version=6))
    assert cache.jobs["victim", "runs"][0].spec is not None
    asyncio.run(cache.know_jobs())
    waiting = [job for job, _ in cache.jobs.values() if job.no_room is not None or job.lacks_template]
    assert len(waiting) == 80
    for job in waiting:
        if cache.may_read_again(job):
            cache.put_job(make_job(job.name, job.namespace, status=status, version=6))
    kept = [key for key, (job, _) in cache.jobs.items() if job.spec is not None and job.late is None]
    assert len(kept) > 10
    cache.put_job(make_job("new", "third", version=1))
    assert not leaves_room or cache.jobs["third", "new"][0].spec is not None, "a namespace that has none finds room"


RUNNING = {
    **STARTED,
    **WARNED,
    "phase": "Running",
    "observedGeneration": 6,
    "rendezvous": {
        "generation": 1,
        "worldSize": 1,
        "processes": 1,
        "members": [{"pod": "runs-worker-0", "uid": "p", "node": "n", "rank": 0}],
        "store": {"address": "10.0.0.1", "port": 1},
    },
    "inForce": {"nprocPerNode": 1, "rendezvous": {"backend": "c10d"}},
}


def make_pod(phase: str, **state: Any) -> Any:
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": "runs",
        "uid": "greedy-runs",
        "controller": True,
    }
    labels = {
        names.LABEL_APP: names.LABEL_APP_VALUE,
        names.LABEL_JOB: "runs",
        names.LABEL_JOB_UID: "greedy-runs",
        names.LABEL_INDEX: "0",
    }
    metadata: Any = {"name": names.pod_name("runs", 0), "namespace": "greedy", "uid": "p", "labels": labels}
    metadata |= {
        "resourceVersion": "30" if phase == "Running" else "31",
        "ownerReferences": [owner | {"controller": True}],
    }
    status = {"phase": phase, "containerStatuses": [{"name": "node", "state": state}]}
    spec = {"nodeName": "n", "containers": [{"name": "node", "image": "train:1"}]}
    return {"metadata": metadata, "spec": spec, "status": status}


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize(
    ("code", "change", "end"),
    [
        pytest.param(0, {}, "Complete", id="it is done"),
        pytest.param(1, {"elasticPolicy": {"maxRestarts": 0}}, "Failed", id="it fails"),
        pytest.param(None, {"runPolicy": {"suspend": True}}, "Suspended", id="it is suspended"),
    ],
)
async def test_after_a_restart_a_job_is_looked_after_whose_change_waits(
    code: int | None, change: dict[str, Any], end: str, tmp_path: Path
) -> None:
    """It trains with what it had, which no operator knows any more: for all but new pods, the rest is enough."""
    spec = {"rendezvous": {"backend": "c10d"}, **change}
    server = Server(make_job("runs", status=copy.deepcopy(RUNNING), version=6, spec=spec))
    async with answering(server.answer, tmp_path) as api:
        operator = Operator(Options(), api)
        for n in range(40):
            operator.cache.put_job(make_job(f"j{n}", status={"observedGeneration": 5}, spec={"managedBy": "a.b/c"}))
        operator.cache.put_job(server.job)
        operator.cache.put_pod(make_pod("Running", running={"startedAt": "2026-01-01T00:00:00Z"}))
        await operator.cache.know_jobs()
        api.leadership.lend(math.inf)
        operator.controller.start()
        if code is not None:
            ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
            operator.cache.put_pod(make_pod("Succeeded" if code == 0 else "Failed", terminated=ended))
        else:
            await see(lambda: server.deleted)
            operator.cache.drop_pod("p")
        await see(lambda: any(c["type"] == end and c["status"] == "True" for c in server.job["status"]["conditions"]))
        assert server.pods == 0
        await operator.controller.stop()


def test_what_is_kept_of_such_jobs_takes_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace has as many of them as it likes."""
    monkeypatch.setattr(job_room, "KEPT_JOBS", 5)
    monkeypatch.setattr(job_room, "MOST_KEPT_BYTES", 64 * 1024)
    cache = Cache(lambda key: None)
    for n in range(80):
        cache.put_job(make_job(f"j{n}", status={**STARTED, **WARNED, "observedGeneration": 6}, version=6))
    jobs = [job for job, _ in cache.jobs.values()]
    assert 5 < sum(job.lacks_template for job in jobs) < 40
    assert all(job.lacks_template or job.no_room is not None for job in jobs)


@pytest.mark.usefixtures("small_room")
def test_of_such_a_job_is_known_which_container_trains() -> None:
    """However many annotations there are: its devices say how many processes a pod has."""
    raw = make_job("runs", status={**STARTED, **WARNED, "observedGeneration": 6}, version=6)
    raw["spec"]["template"]["metadata"] = {
        "annotations": {f"example.com/{n}": "x" * 100 for n in range(20)} | {names.ANNOTATION_TRAINER: "train"}
    }
    raw["spec"]["template"]["spec"]["containers"].append(
        {"name": "train", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    )
    cache = Cache(lambda key: None)
    for n in range(40):
        cache.put_job(make_job(f"j{n}", status={"observedGeneration": 5}, spec={"managedBy": "a.b/c"}))
    cache.put_job(raw)
    job, _ = cache.jobs["greedy", "runs"]
    assert job.lacks_template
    assert job.spec is not None
    assert observe.resolve_nproc(job.spec) == 4


@pytest.mark.usefixtures("small_room")
def test_such_a_job_is_read_once_for_each_status_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer tells of it, and then the watch does."""
    measured = list[object]()
    measure = job_room._measure_spec

    def note(spec: Any) -> int:
        measured.append(spec)
        return measure(spec)

    monkeypatch.setattr(job_room, "_measure_spec", note)
    cache = Cache(lambda key: None)
    for n in range(40):
        cache.put_job(make_job(f"j{n}", status={"observedGeneration": 5}, spec={"managedBy": "a.b/c"}))
    status = {**STARTED, **WARNED, "observedGeneration": 6}
    cache.put_job(make_job("runs", status=status, version=6))
    asyncio.run(cache.know_jobs())
    measured.clear()
    written = make_job("runs", status={**status, "replicas": 1}, version=6)
    written["metadata"]["resourceVersion"] = "7"
    again = copy.deepcopy(written)
    first = count_work(lambda: cache.put_job(written))
    assert cache.jobs["greedy", "runs"][0].lacks_template and len(measured) == 1
    assert count_work(lambda: cache.put_job(again)) < first / 20
    assert len(measured) == 1


@pytest.mark.usefixtures("small_room")
async def test_such_a_job_gets_new_pods_when_there_is_room(tmp_path: Path) -> None:
    server = Server(
        make_job("runs", status=copy.deepcopy(RUNNING), version=6, spec={"rendezvous": {"backend": "c10d"}})
    )
    async with answering(server.answer, tmp_path) as api:
        operator = Operator(Options(), api)
        made = [f"j{n}" for n in range(40)]
        for name in made:
            operator.cache.put_job(make_job(name, status={"observedGeneration": 5}, spec={"managedBy": "a.b/c"}))
        operator.cache.put_job(server.job)
        await operator.cache.know_jobs()
        api.leadership.lend(math.inf)
        operator.controller.start()
        await see(lambda: "no new pods" in server.told())
        assert server.pods == 0
        for name in made:
            operator.cache.drop_job(("greedy", name), f"greedy-{name}")
        await see(lambda: server.pods == 1)
        assert "affinity" in server.made["spec"]
        await operator.controller.stop()


@pytest.mark.usefixtures("small_room")
def test_a_job_that_has_started_keeps_the_spec_that_it_had() -> None:
    cache = watching()
    cache.put_job(make_job("runs", dense=0, status=STARTED))
    fill(cache)
    large = make_job("runs", status=STARTED, version=6)
    for version in ("7", "8"):
        large["metadata"]["resourceVersion"] = version
        cache.put_job(large)
        job, _ = cache.jobs["greedy", "runs"]
        assert job.spec is not None
        assert "affinity" not in job.spec.template["spec"]
        assert [notice.reason for notice in job.notices] == ["NoRoom"]
    cache.drop_job(("greedy", "j0"), "greedy-j0")
    cache.put_job(make_job("runs", status=STARTED, version=9))
    job, _ = cache.jobs["greedy", "runs"]
    assert job.spec is not None
    assert "affinity" in job.spec.template["spec"]
    assert job.notices == ()


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize("status", [{}, STARTED])
def test_a_job_that_waits_and_is_read_again_as_it_was_has_no_pass_for_that(status: dict[str, Any]) -> None:
    """A pass may read it again: each would cause the next one."""
    woken = list[object]()
    cache = Cache(woken.append)
    asyncio.run(cache.know_jobs())
    fill(cache)
    waits = make_job("waits", status=status)
    cache.put_job(waits)
    assert woken[-1] == ("greedy", "waits")
    woken.clear()
    cache.put_job(waits)
    assert woken == []
    cache.drop_job(("greedy", "j0"), "greedy-j0")
    woken.clear()
    cache.put_job(waits)
    assert woken == [("greedy", "waits")]
    assert cache.jobs["greedy", "waits"][0].spec is not None


@pytest.mark.usefixtures("small_room")
def test_jobs_that_grow_once_they_have_started_leave_room_for_another_namespace() -> None:
    """What is let in again after a restart does not ask for others: a job that grows does."""
    cache = watching()
    for version, dense in ((5, 0), (6, 600)):
        for n in range(40):
            for namespace in ("greedy", "second"):
                cache.put_job(make_job(f"j{n}", namespace, dense=dense, status=STARTED, version=version))
    cache.put_job(make_job("large", "third"))
    assert cache.jobs["third", "large"][0].spec is not None
    late = [name for name, (job, _) in cache.jobs.items() if job.late is not None]
    assert late
    assert not any(cache.may_read_again(cache.jobs[key][0]) for key in late), "it would be read in each pass"
    grown = next(key for key in cache.jobs if cache.jobs[key][0].late is None)
    cache.put_job(make_job(grown[1], grown[0], status=STARTED, version=7, spec={"replicas": 2}))
    assert cache.jobs[grown][0].late is None, "what does not grow keeps its room"


SMALL_CHANGES = [
    pytest.param({"replicas": 3}, lambda spec: spec.wanted == 3, id="scale"),
    pytest.param({"runPolicy": {"suspend": True}}, lambda spec: spec.run_policy.suspend, id="suspend"),
    pytest.param(
        {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}, lambda spec: spec.max_replicas == 4, id="more pods"
    ),
]


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("change", "is_in_force"), SMALL_CHANGES)
def test_what_takes_no_memory_does_not_wait_for_room(
    change: dict[str, Any], is_in_force: Callable[[Any], bool], at_once: bool
) -> None:
    cache = watching()
    cache.put_job(make_job("runs", dense=0, status=STARTED))
    fill(cache)
    for version in (6,) if at_once else (6, 7):
        cache.put_job(make_job("runs", status=STARTED, version=version, spec=change if at_once or version == 7 else {}))
    job, _ = cache.jobs["greedy", "runs"]
    assert job.late is not None
    assert is_in_force(job.spec)
    assert job.spec is not None
    assert "affinity" not in job.spec.template["spec"]
    assert "spec.replicas" in job.notices[-1].message, "it says what does not wait"


@pytest.mark.usefixtures("small_room")
def test_a_change_that_takes_memory_waits_for_room_as_a_whole() -> None:
    cache = watching()
    cache.put_job(make_job("runs", dense=0, status=STARTED))
    fill(cache)
    metrics = [{"type": "Pods", "pods": {"metric": {"name": "x" * 2_000}, "target": {"type": "Value", "value": "1"}}}]
    policy = {"maxReplicas": 4, "metrics": metrics}
    cache.put_job(make_job("runs", status=STARTED, version=6, spec={"replicas": 3, "elasticPolicy": policy}))
    job, _ = cache.jobs["greedy", "runs"]
    assert job.late is not None
    assert job.spec is not None
    assert job.spec.wanted == 1


@pytest.mark.usefixtures("small_room")
async def test_a_job_is_suspended_while_its_template_waits_for_room(tmp_path: Path) -> None:
    server = Server(make_job("runs", dense=0, status=dict(STARTED)))
    async with answering(server.answer, tmp_path) as api:
        operator = Operator(Options(), api)
        await operator.cache.know_jobs()
        operator.cache.put_job(server.job)
        fill(operator.cache, spec={"managedBy": "example.com/other"})
        server.job["spec"] = make_job("runs", spec={"runPolicy": {"suspend": True}})["spec"]
        server.job["metadata"] |= {"resourceVersion": "20", "generation": 20}
        operator.cache.put_job(server.job)
        api.leadership.lend(math.inf)
        operator.controller.start()
        await see(lambda: server.job["status"].get("phase") == "Suspended")
        assert "KiB" in server.told()
        await operator.controller.stop()


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize("observed", [pytest.param(4, id="corrected"), pytest.param(5, id="as it was")])
def test_a_job_that_begins_anew_keeps_its_template(observed: int) -> None:
    cache = watching()
    failed = {"type": "Failed", "status": "True", "reason": "InvalidSpec", "message": "spec.template"}
    cache.put_job(make_job("refused", status={"conditions": [failed], "observedGeneration": observed}))
    job, _ = cache.jobs["greedy", "refused"]
    assert job.spec is not None
    assert ("affinity" in job.spec.template["spec"]) is job.is_corrected is (observed == 4)


@pytest.mark.usefixtures("small_room")
def test_a_job_that_has_finished_takes_no_room_and_keeps_its_term() -> None:
    cache = watching()
    policy = {"runPolicy": {"ttlSecondsAfterFinished": 60}}
    for n in range(40):
        cache.put_job(make_job(f"ended{n}", status=ENDED, spec=policy))
    (one, _), *rest = cache.jobs.values()
    assert one.spec is not None
    assert one.spec.run_policy.ttl_seconds_after_finished == 60
    assert "affinity" not in one.spec.template["spec"]
    assert len(rest) == 39
    assert all(job.spec is not None for job, _ in rest)
    assert fill(cache)


@pytest.mark.usefixtures("small_room")
def test_whoever_waits_for_one_of_many_jobs_to_go_is_let_in_when_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the condition says: the jobs that have finished take no room, but each is one of those that are kept."""
    monkeypatch.setattr(job_room, "KEPT_JOBS", 60)
    cache = watching()
    for n in range(60):
        cache.put_job(make_job(f"ended{n}", dense=0, status=ENDED))
    fill(cache)
    small = [make_job(f"small{n}", dense=10) for n in range(500)]
    for one in small:
        cache.put_job(one)
    waits = next(one for one in small if one["metadata"]["name"] not in find_kept(cache))
    name = waits["metadata"]["name"]
    assert not cache.may_read_again(cache.jobs["greedy", name][0])
    cache.drop_job(("greedy", "ended0"), "greedy-ended0")
    assert cache.may_read_again(cache.jobs["greedy", name][0])
    cache.put_job(waits)
    assert name in find_kept(cache)


@pytest.mark.usefixtures("small_room")
async def test_a_change_that_waited_for_room_is_read_when_there_is_some(tmp_path: Path) -> None:
    """Nobody writes to a job that is suspended, so the operator looks for itself."""
    suspended = {"runPolicy": {"suspend": True}}
    server = Server(make_job("runs", dense=0, status=dict(STARTED), spec=suspended))
    async with answering(server.answer, tmp_path) as api:
        operator = Operator(Options(), api)
        await operator.cache.know_jobs()
        operator.cache.put_job(server.job)
        kept = fill(operator.cache, spec={"managedBy": "example.com/other"})
        server.job["spec"] = make_job("runs", spec=suspended)["spec"]
        server.job["metadata"] |= {"resourceVersion": "20", "generation": 20}
        operator.cache.put_job(server.job)
        api.leadership.lend(math.inf)
        operator.controller.start()
        await see(lambda: operator.cache.jobs["greedy", "runs"][0].status.is_true("Warning"))
        for name in kept:
            operator.cache.drop_job(("greedy", name), f"greedy-{name}")
        await see(lambda: not server.told())
        await operator.controller.stop()
    spec = operator.cache.jobs["greedy", "runs"][0].spec
    assert spec is not None
    assert "affinity" in spec.template["spec"]


class Server:
    """An API server with one job; it stores the status that is written."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.pods = 0
        self.made: dict[str, Any] = {}  # the last pod
        self.deleted = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH" and request.path.endswith("/status"):
            body = await request.json()
            merge(self.job.setdefault("status", {}), body["status"])
            self.job["metadata"]["resourceVersion"] = str(int(self.job["metadata"]["resourceVersion"]) + 1)
        elif request.method == "POST":
            made = await request.json()
            if request.path.endswith("/pods"):
                self.pods += 1
                self.made = made
            made["metadata"] |= {"uid": f"made-{self.pods}", "resourceVersion": "7", "namespace": "greedy"}
            return web.json_response(made)
        self.deleted += request.method == "DELETE" and "/pods/" in request.path
        return web.json_response(self.job)

    def told(self) -> str:
        conditions = self.job.get("status", {}).get("conditions", [])
        return next((c["message"] for c in conditions if c["reason"] == "NoRoom" and c["status"] == "True"), "")


def merge(stored: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            stored.pop(name, None)
        elif isinstance(value, dict) and isinstance(stored.get(name), dict):
            merge(stored[name], value)
        else:
            stored[name] = value


async def see(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("small_room")
async def test_a_job_waits_for_room_and_says_so(tmp_path: Path) -> None:
    server = Server(make_job("waits"))
    async with answering(server.answer, tmp_path) as api:
        operator = Operator(Options(), api)
        await operator.cache.know_jobs()
        fill(operator.cache)
        operator.cache.put_job(server.job)
        api.leadership.lend(math.inf)
        operator.controller.start()
        await see(server.told)
        assert "KiB" in server.told()
        assert "delete" in server.told()
        assert server.job["status"]["phase"] == "Pending"
        for name in ("j0", "j1"):
            operator.cache.drop_job(("greedy", name), f"greedy-{name}")
        operator.controller.wake(("greedy", "waits"))
        await see(lambda: not server.told())
        await see(lambda: server.job["status"].get("startTime"))
        await operator.controller.stop()
