"""In which order the writes of several jobs reach a server that takes only a few at a time."""

from __future__ import annotations

import asyncio
import math
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import make_job, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.apply import alterations, manifests
from elasticjob_operator.apply.apply import MOST_MEMBERS_IN_LOOP, Applier
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.plan.values import Child, Deletion, Kind, NewPod, Plan
from elasticjob_operator.rest.errors import ApiError

pytestmark = pytest.mark.timeout(60)
STARTING = 6
TRAINS = make_job(status=api.Status(rendezvous=make_world(1)))
WRITTEN = replace(TRAINS, status_raw=TRAINS.status.dump())


class Hub:
    def direct(self, job: Any, directives: Any) -> None:
        pass


class Server:
    """Notes what it is asked, and answers as if it had stored that."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body, parts = await request.json(), request.path.split("/")
        kind = parts[parts.index("default") + 1]
        name = body["metadata"].get("name") or parts[parts.index(kind) + 1]
        self.asked.append(f"{request.method} {kind} {name}")
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "2", "generation": 2}
        return web.json_response({**body, "metadata": {**body["metadata"], **metadata}})


def start(number: int) -> tuple[Job, Plan]:
    """A job that is created, and the plan for its first pod."""
    job = replace(make_job(), name=f"starting-{number}", uid=f"starting-{number}")
    status = revise(job.status, phase=api.Phase.PENDING, observed_generation=1)
    return job, Plan(status, create=(NewPod(0),), set_replicas=4)


@pytest.mark.parametrize(
    "regrouped",
    [
        pytest.param(Plan(api.Status(rendezvous=make_world(2)), announces=True), id="its next world"),
        pytest.param(Plan(revise(TRAINS.status, phase=api.Phase.RESCALING)), id="the end of its world"),
    ],
)
async def test_a_job_with_a_world_does_not_wait_for_those_that_start(tmp_path: Path, regrouped: Plan) -> None:
    server = Server()
    async with answering(server.answer, tmp_path, parallel=2) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        passes = [*map(start, range(STARTING)), (TRAINS, regrouped)]
        await asyncio.gather(*(applier.apply(job, "1", plan, 0.0) for job, plan in passes))
        await applier.close()
    patched = f"PATCH {names.PLURAL}"
    assert server.asked.index(f"{patched} digits") <= 2, "after those that the server had already"
    # Each starting job has its pod before any of them has all of its writes.
    pods = [index for index, line in enumerate(server.asked) if line.startswith("POST pods")]
    statuses = [index for index, line in enumerate(server.asked) if line.startswith(f"{patched} starting")]
    assert len(pods) == STARTING and len(statuses) == 2 * STARTING
    assert max(pods) < statuses[STARTING]


async def test_thousands_of_deletions_are_begun_as_their_turns_come(tmp_path: Path) -> None:
    """All at once, they would occupy the event loop of everybody before the first one is sent."""
    server, begun = Server(), list[int]()

    async def answer(request: web.Request) -> web.StreamResponse:
        begun.append(len(asyncio.all_tasks()))
        if len(begun) == 1:
            return web.json_response({"kind": "Status", "reason": "Forbidden", "code": 403}, status=403)
        return await server.answer(request) if request.method == "PATCH" else web.json_response({"kind": "Status"})

    deletions = tuple(
        Deletion(f"digits-worker-{number}", f"u{number}", "the job is suspended") for number in range(500)
    )
    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        await applier.apply(TRAINS, "1", Plan(TRAINS.status, delete=deletions), 0.0)
        await applier.close()
    assert len(begun) == 500, "one that is refused does not keep the others"
    assert max(begun) < 250


@pytest.mark.parametrize(("status", "told"), [(200, ["DeletedByForce"]), (403, []), (404, ["DeletedByForce"])])
async def test_a_pod_that_the_api_server_does_not_delete_is_not_told_as_deleted(
    status: int, told: list[str], tmp_path: Path
) -> None:
    """It would be told again with each attempt, for hours."""
    server, events = Server(), list[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            events.append((await request.json())["reason"])
        if request.method == "DELETE":
            return web.json_response({"kind": "Status", "reason": "x", "code": status}, status=status)
        return await server.answer(request)

    gone = Deletion("digits-worker-0", "u0", "its node does not respond", force=True)
    plan = Plan(TRAINS.status, delete=(gone,), events=(Event("DeletedByForce", "digits-worker-0", warning=True),))
    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        await applier.apply(TRAINS, "1", plan, 0.0)
        await applier.close()
    assert events == told


REFUSALS = {403: "Forbidden", 404: "NotFound", 409: "AlreadyExists", 422: "Invalid", 500: "InternalError"}
GUARDS = (
    Child(Kind.NETWORK_POLICY, "digits-workers"),
    Child(Kind.CONFIG_MAP, "digits-ca", (("ca.crt", "PEM"),)),
)


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.kind.value)
async def test_no_pod_starts_without_what_guards_it(guard: Child, status: int, tmp_path: Path) -> None:
    """Its network policy keeps strangers from ports through which they could run code in it."""
    server = Server()
    plural = guard.kind.value.lower().replace("policy", "policie")

    async def answer(request: web.Request) -> web.StreamResponse:
        if plural not in request.path:
            return await server.answer(request)
        if request.method == "GET":  # of the name that is taken
            return web.json_response({"metadata": {"name": guard.name, "uid": "theirs"}})
        told = {"kind": "Status", "reason": REFUSALS[status], "message": "no", "code": status}
        return web.json_response(told, status=status)

    job, plan = start(0)
    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        try:
            outcome = await applier.apply(job, "1", replace(plan, ensure=(guard,)), 0.0)
        except ApiError:
            told = ""  # it is tried again
        else:
            assert outcome.problem is not None and outcome.is_blocking
            told = outcome.problem[1]
        await applier.close()
    assert not [line for line in server.asked if line.startswith("POST pods")]
    assert [line for line in server.asked if line.startswith(f"PATCH {names.PLURAL}")], "the user is told"
    if told and guard.kind is Kind.NETWORK_POLICY:
        assert "spec.network.policy: false" in told


async def test_what_a_status_may_not_hold_is_left_out_and_told(tmp_path: Path) -> None:
    """One field that a pod has sent must not keep the end of its job from everybody, for ever."""
    sent: list[dict[str, Any]] = []
    events: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "/events" in request.path:
            events.append(body["message"])
            return web.json_response(body)
        sent.append(body["status"])
        if (body["status"].get("progress") or {}).get("metrics"):
            told = {"kind": "Status", "reason": "Invalid", "code": 422}
            why = 'ElasticJob "digits" is invalid: status.progress.metrics.name: Required value'
            return web.json_response({**told, "message": why}, status=422)
        metadata = {"name": "digits", "namespace": "default", "uid": "u", "resourceVersion": "2", "generation": 1}
        return web.json_response({"metadata": metadata, "spec": {}, "status": {}})

    progress = api.ProgressStatus(step=1, metrics=[api.Metric(name="", value=1.0)])
    job = make_job()
    plan = Plan(revise(job.status, phase=api.Phase.COMPLETE, progress=progress))
    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        for _ in range(3):
            await applier.apply(job, "1", plan, 0.0)
        await applier.close()
    assert ["progress" in status for status in sent] == [True, False, False, False], "it is not tried again"
    assert all(status["phase"] == "Complete" for status in sent)
    assert len(events) == 1 and "status.progress" in events[0]


async def test_a_status_that_decides_is_tried_rarely_and_told(tmp_path: Path) -> None:
    """Without it nothing may go on. It is not sent again at every message of an agent."""
    tried, events = 0, list[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal tried
        body = await request.json()
        if request.path.endswith("/events"):
            events.append(body["message"])
            return web.json_response(body)
        tried += 1
        told = {"kind": "Status", "reason": "Invalid", "message": "status.rendezvous: Invalid value", "code": 422}
        return web.json_response(told, status=422)

    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        plan = Plan(api.Status(rendezvous=make_world(2)), announces=True)
        for now, version, expected in ((0.0, "1", 1), (0.5, "1", 1), (2.0, "1", 2), (3.0, "1", 2), (3.1, "2", 3)):
            with pytest.raises(ApiError) as error:
                await applier.apply(TRAINS, version, plan, now)
            assert (error.value.retry_after or 0.0) > 0.0
            assert tried == expected, "later and later, until the job has changed"
        for minute in range(600):
            with pytest.raises(ApiError):
                await applier.apply(TRAINS, "2", plan, 60.0 * minute)
        assert 100 < tried < 200
        await applier.close()
    assert len([told for told in events if "the job waits" in told and "status.rendezvous" in told]) == 1


class Busy:
    """An API server that is too busy for the status of a job, and for nothing else."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds  # after which it wants to be asked again
        self.is_busy = True
        self.tries = 0
        self.events: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.path.endswith("/events"):
            self.events.append(body["message"])
            return web.json_response(body)
        self.tries += 1
        if self.is_busy:
            told = {"kind": "Status", "reason": "TooManyRequests", "message": "a sealed vault", "code": 429}
            return web.json_response(told, status=429, headers={"Retry-After": f"{self.seconds}"})
        metadata = {"name": "digits", "namespace": "default", "uid": "u", "resourceVersion": "3", "generation": 1}
        return web.json_response({"metadata": metadata, "spec": {}, "status": {}})


async def test_what_happens_while_a_status_waits_is_told_once(tmp_path: Path) -> None:
    """Until it is written, each plan has the same events again."""
    server, slow, lost = Busy(1), Event("NoProgress", "slow"), Event("MemberLost", "lost")
    status = revise(TRAINS.status, progress=api.ProgressStatus(step=1))
    async with answering(server.answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        for now, events in ((0.0, (slow,)), (0.1, (slow,)), (0.2, (slow, lost)), (0.3, (slow, lost))):
            await applier.apply(WRITTEN, "1", Plan(status, events=events), now)
        server.is_busy = False
        await applier.apply(WRITTEN, "1", Plan(status, events=(slow, lost)), 2.0)
        await applier.close()
    assert sorted(server.events) == ["lost", "slow"]


async def test_a_busy_server_is_told_in_time_and_not_asked_for_that(tmp_path: Path) -> None:
    server = Busy(60)
    plan = Plan(revise(TRAINS.status, progress=api.ProgressStatus(step=1)))
    async with answering(server.answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        again = [(await applier.apply(WRITTEN, "1", plan, now)).again_at for now in (0.0, 5.0, 8.0, 9.0)]
        await applier.close()
    assert again == [8.0, 8.0, 60.0, 60.0]
    assert server.tries == 1
    assert len(server.events) == 1 and "a sealed vault" in server.events[0]


async def test_a_busy_server_is_left_alone_although_some_passes_write_no_status(tmp_path: Path) -> None:
    """Such as those of a job with more news than may be told."""
    server, quiet = Busy(20), Plan(WRITTEN.status)
    plan = Plan(revise(TRAINS.status, progress=api.ProgressStatus(step=1)))
    async with answering(server.answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        for now, made, tries in ((0.0, plan, 1), (9.0, quiet, 1), (10.0, plan, 1), (21.0, quiet, 1), (22.0, plan, 2)):
            outcome = await applier.apply(WRITTEN, "1", made, now)
            assert server.tries == tries
            assert outcome.again_at is None or outcome.again_at > now
        assert (await applier.apply(WRITTEN, "1", quiet, 1000.0)).again_at is None
        await applier.close()
    assert len([told for told in server.events if "a sealed vault" in told]) == 1


async def test_a_status_that_decides_waits_no_longer_for_news_in_between(tmp_path: Path) -> None:
    plan, left = Plan(api.Status(rendezvous=make_world(2)), announces=True), list[float | None]()
    async with answering(Busy(4).answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        for now in (0.0, 1.0, 3.5):
            with pytest.raises(ApiError) as error:
                await applier.apply(TRAINS, "1", plan, now)
            left.append(error.value.retry_after)
        await applier.close()
    assert left == [4.0, 3.0, 0.5]


async def test_a_status_that_waits_keeps_nothing_of_the_passes_that_wait_for_it(tmp_path: Path) -> None:
    """An error that is raised again has the frames of all that have raised it, with the plan and the pods of each."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "reason": "Invalid", "message": "status", "code": 422}, status=422)

    frames = set[int]()
    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        plan = Plan(api.Status(rendezvous=make_world(2)), announces=True)
        for _ in range(20):
            with pytest.raises(ApiError) as error:
                await applier.apply(TRAINS, "1", plan, 0.0)
            frames.add(sum(1 for _ in traceback.walk_tb(error.value.__traceback__)))
        await applier.close()
    assert len(frames) <= 2, f"the first one, and each other: {sorted(frames)}"


async def test_a_job_that_breaks_a_rule_is_told_once_and_begins_nothing_new(tmp_path: Path) -> None:
    """No field of its status is to blame. A world that stops could not be followed by another one."""
    is_mended, tried, events, directed = False, list[str](), list[str](), list[Any]()

    class Directed(Hub):
        def direct(self, job: Any, directives: Any) -> None:
            directed.append(directives)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.path.endswith("/events"):
            events.append(body["message"])
            return web.json_response(body)
        tried.append(request.path)
        if is_mended:
            metadata = {"name": "digits", "namespace": "default", "uid": "u", "resourceVersion": "3", "generation": 2}
            return web.json_response({"metadata": metadata, "spec": {}, "status": {}})
        why = 'ElasticJob.elasticjob.dev "digits" is invalid: <nil>: Invalid value: replicas are above maxReplicas'
        return web.json_response({"kind": "Status", "reason": "Invalid", "message": why, "code": 422}, status=422)

    job = WRITTEN

    def trained(step: int) -> Plan:
        status = revise(TRAINS.status, progress=api.ProgressStatus(step=step))
        return Plan(status, directives={"a": wire.Stop(reason="done")})

    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(
            connected, Cache(lambda key: None), Directed(), manifests.Settings(hub_url="ws://hub:1"), "me"
        )
        again = [(await applier.apply(job, "1", trained(step), 0.1 * step)).again_at for step in range(1, 1200)]
        assert len(tried) == 7, "after 1, 2, 4 ... seconds"
        assert all(at is not None and at > 0.1 * step for step, at in enumerate(again, 1))
        assert len(directed) == 1, "before anything was refused"
        with pytest.raises(ApiError):
            await applier.apply(job, "1", Plan(api.Status(rendezvous=make_world(2)), announces=True), 120.0)
        assert len(tried) == 7, "it would be refused, too"
        is_mended = True
        assert (await applier.apply(job, "2", trained(1201), 120.1)).again_at is None
        assert len(tried) == 8, "what has changed is tried at once"
        assert len(directed) == 2
        await applier.close()
    assert len(events) == 1 and "until its spec is mended" in events[0] and "above maxReplicas" in events[0]


async def test_the_operators_shared_memory_gives_way_to_that_of_a_webhook(tmp_path: Path) -> None:
    """The webhook mounts it after the operator, so that only the answer tells: once, and not for each pod."""
    sent, refused = list[dict[str, Any]](), 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal refused
        body = await request.json()
        if not request.path.endswith("/pods"):
            return web.json_response(body)
        mounts = [m["mountPath"] for c in body["spec"]["containers"] for m in c.get("volumeMounts") or ()]
        if "/dev/shm" in mounts:
            refused += 1
            why = 'spec.containers[0].volumeMounts[2].mountPath: Invalid value: "/dev/shm": must be unique'
            return web.json_response({"reason": "Invalid", "message": f"Pod is invalid: {why}"}, status=422)
        sent.append(body)
        metadata = {"uid": f"u{len(sent)}", "resourceVersion": "2"}
        return web.json_response({**body, "metadata": {**body["metadata"], **metadata}})

    job, made = start(0)
    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        for _ in range(3):
            outcome = await applier.apply(job, "1", replace(made, set_replicas=None, status=job.status), 0.0)
            assert outcome.problem is None
        await applier.close()
    assert [[v["name"] for v in body["spec"]["volumes"]] for body in sent] == 3 * [[names.VOLUME_TOKEN]]
    assert refused == 1


async def test_large_pods_are_compared_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that were asked for: a job may have as many variables as fit into its template."""
    find, compared = alterations.find_alterations, dict[str, bool]()

    def note(sent: Any, made: Any) -> Any:
        compared[sent["metadata"]["name"]] = threading.current_thread() is threading.main_thread()
        return find(sent, made)

    monkeypatch.setattr(alterations, "find_alterations", note)
    many = [{"name": f"V{n}", "value": "1"} for n in range(5_000)]
    server = Server()
    async with answering(server.answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        for name, variables in (("small", many[:5]), ("large", many)):
            template = {"spec": {"containers": [{"name": "w", "image": "i", "env": variables}]}}
            job = replace(make_job(make_spec(template=template)), name=name, uid=name)
            outcome = await applier.apply(job, "1", Plan(job.status, create=(NewPod(0),)), 0.0)
            assert outcome.problem is None
        await applier.close()
    assert compared == {"small-worker-0": True, "large-worker-0": False}


async def test_the_large_statuses_of_one_namespace_delay_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are put together in threads, and a namespace may have as many jobs of a thousand members as it likes."""
    began, may_end, build = asyncio.Event(), threading.Event(), manifests.status_patch
    loop = asyncio.get_running_loop()

    def take_long(job: Job, status: api.Status, keep: tuple[str, ...]) -> dict[str, Any]:
        if job.namespace == "greedy":
            loop.call_soon_threadsafe(began.set)
            may_end.wait(50)
        return build(job, status, keep)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "2"}})

    monkeypatch.setattr(manifests, "status_patch", take_long)
    made = Plan(api.Status(rendezvous=make_world(1, tuple(range(MOST_MEMBERS_IN_LOOP + 1)))))
    async with answering(answer, tmp_path) as connected:
        connected.leadership.lend(math.inf)
        applier = Applier(connected, Cache(lambda key: None), Hub(), manifests.Settings(hub_url="ws://hub:1"), "me")
        jobs = [replace(make_job(), namespace="greedy", name=f"j{n}", uid=f"g{n}") for n in range(40)]
        greedy = [asyncio.create_task(applier.apply(job, "1", made, 0.0)) for job in jobs]
        try:
            async with asyncio.timeout(20):
                await began.wait()
                await applier.apply(replace(make_job(), namespace="modest", uid="m"), "1", made, 0.0)
        finally:
            may_end.set()
            await asyncio.gather(*greedy)
            await applier.close()
