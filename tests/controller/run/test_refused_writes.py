"""Pods that the API server refuses are tried again, but few of them: others share that server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import pickle
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import names
from elasticjob_operator.apply import apply, manifests, refused_writes
from elasticjob_operator.plan.values import NewPod
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.run import controller
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options
from elasticjob_operator.times import format_time

pytestmark = pytest.mark.timeout(60)

QUOTA = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "exceeded quota: q"}
HOOK = {"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500, "message": "webhook x failed"}
BUSY = {"kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429, "message": "a sealed vault"}
SECONDS = 4.0  # by which the first, quick tries are over; later ones are more than that apart


def make_job(replicas: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    policy = {"minReplicas": 1, "maxReplicas": replicas}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "j", "namespace": "t", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"replicas": replicas, "elasticPolicy": policy, "template": template, "network": {"policy": False}},
    }


DISTURBED_SECONDS: Final = 2.0  # after the first try
SETTLED_SECONDS: Final = 0.5  # without a try, although there is news
KEY: Final = ("t", "j")
MOST_IN_A_MINUTE: Final = 10


class Refusing:
    """An API server that refuses every object that is created for a job, or the deletion of its pods."""

    def __init__(self, refusal: dict[str, Any], replicas: int, method: str = "POST") -> None:
        self.refusal, self.method = refusal, method
        self.stored = make_job(replicas)
        self.tries: list[float] = []
        self.told = ""
        self.has_told = False
        self._pod = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            return web.json_response(await request.json())
        if request.method == self.method:
            self.tries.append(time.monotonic())
            return web.json_response(self.refusal, status=self.refusal["code"])
        if "/elasticjobs/" not in request.path:
            return web.Response(status=404)
        if request.method == "PATCH":
            status = (await request.json()).get("status") or {}
            self._store(status={**self.stored.get("status", {}), **status})
            conditions = status.get("conditions") or ()
            degraded = [c["message"] for c in conditions if (c["type"], c["status"]) == ("Degraded", "True")]
            self.told = degraded[0] if degraded else self.told if not conditions else ""
            self.has_told |= self.refusal["message"] in self.told
        return web.json_response(self.stored)

    def _store(self, **fields: Any) -> None:
        metadata = self.stored["metadata"]
        self.stored = {**self.stored, "metadata": {**metadata, "resourceVersion": f"{self.version + 1}"}, **fields}

    @property
    def version(self) -> int:
        return int(self.stored["metadata"]["resourceVersion"])

    @contextlib.asynccontextmanager
    async def running(self, directory: Path) -> AsyncIterator[Operator]:
        async with answering(self.answer, directory) as api:
            operator = Operator(Options(), api)
            operator.cache.put_job(self.stored)
            api.leadership.lend(math.inf)
            operator.controller.start()
            try:
                yield operator
            finally:
                await operator.controller.stop()

    # What may come in between.

    def scale(self, operator: Operator) -> None:
        """As an autoscaler does."""
        spec, metadata = self.stored["spec"], self.stored["metadata"]
        self._store(spec={**spec, "replicas": 1 + spec["replicas"] % spec["elasticPolicy"]["maxReplicas"]})
        self.stored["metadata"]["generation"] = metadata["generation"] + 1
        operator.cache.put_job(self.stored)

    def report(self, operator: Operator) -> None:
        """As an agent does at each step."""
        operator.controller.wake(KEY)

    def move_pods(self, operator: Operator) -> None:
        """Another pod in place of the last one."""
        if self._pod:
            operator.cache.drop_pod(self._pod)
        self._pod = self.put_pod(operator, 0)

    def put_pod(self, operator: Operator, index: int) -> str:
        """The UID of a new pod of the job."""
        job, _ = operator.cache.jobs[KEY]
        assert job.spec is not None
        raw = manifests.build_pod(job, job.spec, NewPod(index), manifests.Settings(hub_url="ws://hub:1"))
        uid = f"pod-{index}-{time.monotonic()}"
        raw["metadata"] |= {"uid": uid, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        operator.cache.put_pod(raw)
        return uid


Disturb = Callable[[Refusing, Operator], None]


REFUSALS: Final = {"quota": QUOTA, "webhook": HOOK, "busy": BUSY}


async def disturb_for_seconds(server: Refusing, directory: Path, disturb: Disturb, pods: int = 0) -> None:
    directory.mkdir()
    async with server.running(directory) as operator:
        for index in range(pods):
            server.put_pod(operator, index)
        tries = server.tries
        while len(tries) < 2 or not server.has_told or time.monotonic() < tries[0] + DISTURBED_SECONDS:
            disturb(server, operator)
            await asyncio.sleep(0.05)


async def count_quick_tries(directory: Path, refusal: dict[str, Any], replicas: int) -> int:
    directory.mkdir()
    server = Refusing(refusal, replicas)
    async with server.running(directory):
        while not server.tries or server.tries[-1] < server.tries[0] + SECONDS:  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)
    return sum(at < server.tries[0] + SECONDS for at in server.tries)


async def test_few_pods_are_refused(tmp_path: Path) -> None:
    """What they wait for is time: so all wait together, each with a server and an operator of its own."""
    cases = [(name, replicas) for name in REFUSALS for replicas in (1, 3, 64)]
    counts = [count_quick_tries(tmp_path / f"{name}-{size}", REFUSALS[name], size) for name, size in cases]
    found = dict(zip(cases, await asyncio.gather(*counts), strict=True))
    assert all(quick <= 8 for quick in found.values()), found


@pytest.mark.parametrize("name", REFUSALS)
async def test_whatever_happens_no_more_are_refused_in_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each of these is a reason to try again at once; there may be many of them."""
    monkeypatch.setattr(controller, "TROUBLE_SECONDS", 1.0)
    cases = [Refusing.scale, Refusing.report, Refusing.move_pods]
    servers = [Refusing(REFUSALS[name], 3) for _ in cases]
    await asyncio.gather(
        *(
            disturb_for_seconds(server, tmp_path / disturb.__name__, disturb)
            for server, disturb in zip(servers, cases, strict=True)
        )
    )
    for server, disturb in zip(servers, cases, strict=True):
        assert 1 < len(server.tries) <= MOST_IN_A_MINUTE, disturb
        assert server.refusal["message"] in server.told, f"it says why all the time: {disturb}"


async def test_deletions_that_are_refused_are_few_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies that guard pods against deletion do not know who deletes them."""
    monkeypatch.setattr(controller, "TROUBLE_SECONDS", 1.0)
    servers = {name: Refusing(refusal, 1, method="DELETE") for name, refusal in REFUSALS.items()}
    await asyncio.gather(
        *(disturb_for_seconds(server, tmp_path / name, Refusing.report, pods=16) for name, server in servers.items())
    )
    for name, server in servers.items():
        assert 1 < len(server.tries) <= 15 + MOST_IN_A_MINUTE, f"all at once, and then a few: {name}"
        assert server.refusal["message"] in server.told, name


async def test_little_is_remembered_of_what_was_refused(tmp_path: Path) -> None:
    """The pods that it was refused for may be gone soon, and their job stays: a quota for pods does not limit those."""
    server = Refusing(QUOTA, 300)
    async with server.running(tmp_path) as operator:
        for index in range(200):
            server.put_pod(operator, index)
        async with asyncio.timeout(30):
            while not server.has_told:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        loop = operator.controller._loops[KEY]
        assert loop.refused_on is not None and len(pickle.dumps(loop.refused_on)) < 100


class Narrow(Refusing):
    """An API server that refuses the job's Service, and nothing else."""

    def __init__(self, refusal: dict[str, Any]) -> None:
        super().__init__(refusal, 3)
        self.stored["spec"] |= {"replicas": 1, "network": {"policy": False, "service": True}}
        self.made: list[dict[str, Any]] = []
        self.going = ""  # UID of a pod that is gone before this server has answered once more
        self.operator: Operator | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert self.operator is not None
        if request.path.endswith("/services"):
            if self.going:
                self.operator.cache.drop_pod(self.going)
            return await super().answer(request)
        if request.method != "POST":
            return await super().answer(request)
        body = await request.json()
        if request.path.endswith("/pods"):
            created = {"resourceVersion": "7", "creationTimestamp": format_time(time.time())}
            body["metadata"] |= {"uid": f"pod-{len(self.made)}", **created}
            self.made.append(body)
            self.operator.cache.put_pod(body)
        return web.json_response(body, status=201)

    def lose_pod(self) -> None:
        """Its deletion is seen twice: that it goes, and, while that is looked at, that it is gone."""
        assert self.operator is not None
        pod = self.made[0]
        self.going = pod["metadata"]["uid"]
        deleted = {"resourceVersion": "8", "deletionTimestamp": format_time(time.time())}
        self.operator.cache.put_pod({**pod, "metadata": {**pod["metadata"], **deleted}})

    async def settle(self) -> None:
        """Until nothing more is tried, although there is news."""
        assert self.operator is not None
        while not self.made or time.monotonic() < self.tries[-1] + SETTLED_SECONDS:
            self.report(self.operator)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", ["quota", "webhook"])
async def test_pods_do_not_wait_for_what_their_job_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A lost pod would be missing for minutes, only because a quota has no room for a Service."""
    monkeypatch.setattr(controller, "REFUSED_SECONDS", 30.0)  # as after a few refusals
    server = Narrow(REFUSALS[name])
    async with answering_to(server, tmp_path), asyncio.timeout(20):
        await server.settle()
        server.lose_pod()
        while len(server.made) < 2:  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.02)
    assert len(server.tries) <= MOST_IN_A_MINUTE


@pytest.mark.parametrize("name", ["quota", "webhook"])
async def test_what_a_job_has_to_do_without_is_told_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also while it is not tried, since it was refused too often."""
    monkeypatch.setattr(controller, "TROUBLE_SECONDS", 1.0)
    monkeypatch.setattr(controller, "REFUSED_SECONDS", 0.05)
    server = Narrow(REFUSALS[name])
    async with answering_to(server, tmp_path), asyncio.timeout(30):
        assert server.operator is not None
        while len(server.tries) < refused_writes.OFTEN or time.monotonic() < server.tries[-1] + DISTURBED_SECONDS:
            server.report(server.operator)
            await asyncio.sleep(0.02)
        server.scale(server.operator)
        known, until = set[str](), time.monotonic() + SETTLED_SECONDS
        while len(server.made) < 2 or time.monotonic() < until:
            known.add(server.told)
            server.report(server.operator)
            await asyncio.sleep(0.02)
    assert all(server.refusal["message"] in told for told in known), known
    assert len(server.tries) <= MOST_IN_A_MINUTE


@contextlib.asynccontextmanager
async def answering_to(server: Narrow, directory: Path) -> AsyncIterator[None]:
    async with server.running(directory) as operator:
        server.operator = operator
        yield


class Breaking(Refusing):
    """An API server that breaks off whenever a pod is created, as one does in which an admission policy panics."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/pods"):
            self.tries.append(time.monotonic())
            assert request.transport is not None
            request.transport.abort()
        return await super().answer(request)


async def test_a_write_that_is_never_answered_is_told_while_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "TROUBLE_SECONDS", 1.0)
    server = Breaking(QUOTA, 1, method="none")
    async with server.running(tmp_path):
        async with asyncio.timeout(30):
            while "/api/v1/namespaces/t/pods" not in server.told:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
    assert len(server.tries) <= 2 * MOST_IN_A_MINUTE


class Away(Breaking):
    """An API server that breaks off whatever it is asked, while it is away."""

    is_away = True

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self.is_away:
            return await Refusing.answer(self, request)
        self.tries.append(time.monotonic())
        assert request.transport is not None
        request.transport.abort()
        return web.Response(status=404)


async def test_a_server_that_was_away_is_not_told_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where it goes away again, after it has answered."""
    monkeypatch.setattr(controller, "TROUBLE_SECONDS", 0.1)
    server = Away(QUOTA, 3, method="none")
    server.stored["spec"]["runPolicy"] = {"suspend": True}  # so that its pass creates nothing
    async with server.running(tmp_path) as operator, asyncio.timeout(60):
        for _ in range(2):
            server.tries.clear()
            server.is_away = True
            server.scale(operator)
            while len(server.tries) < 6:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
            loop = operator.controller._loops[KEY]
            assert loop.troubled_since is not None, "it is seen"
            assert (loop.last_trouble, loop.trouble) == (None, None), "and there is nothing to tell"
            server.is_away = False
            while loop.troubled_since is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


class Overloaded(Refusing):
    """An API server that is too busy for each status of a job, and for nothing else."""

    def __init__(self) -> None:
        super().__init__(BUSY, 1, method="none")
        self.events: list[str] = []
        self.is_overloaded = True

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            self.events.append((await request.json())["message"])
        if request.path.endswith("/status") and self.is_overloaded:
            self.tries.append(time.monotonic())
            return web.json_response(BUSY, status=429, headers={"Retry-After": "1"})
        if request.method == "POST" and request.path.endswith("/pods"):
            made = await request.json()
            metadata = {**made["metadata"], "uid": "pod", "namespace": "t", "resourceVersion": "7"}
            return web.json_response({**made, "metadata": metadata}, status=201)
        return await super().answer(request)


async def test_a_status_for_which_the_server_is_too_busy_is_held_back_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever news there are, as each message of an agent is: others share that server."""
    monkeypatch.setattr(apply, "TOLD_SECONDS", 2.0)
    server = Overloaded()
    async with server.running(tmp_path) as operator, asyncio.timeout(30):
        while not server.events or len(server.tries) < 3:
            server.report(operator)
            await asyncio.sleep(0.02)
    first = server.tries[0]
    assert sum(at < first + 0.9 for at in server.tries) == 1, "it asked for a second"
    assert sum(at < first + 2.5 for at in server.tries) <= 3, "and is asked later and later"
    told = [one for one in server.events if "its status" in one]
    assert len(told) == 1 and "a sealed vault" in told[0]


class BusyQueue:
    """A queue whose objects the API server is too busy for."""

    def __init__(self) -> None:
        self.tries: list[float] = []

    def keys(self) -> tuple[()]:
        return ()

    def see(self, job: Any, pods: Any) -> None:
        return None

    async def forget(self, key: Any, pods: Any) -> None:
        pass

    async def settle(self, job: Any, pods: Any, made: Any, now: float) -> float | None:
        self.tries.append(time.monotonic())
        raise ApiError(429, "TooManyRequests", "a sealed vault", 1.0)


async def test_quota_for_which_the_server_is_too_busy_is_asked_for_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "TROUBLE_SECONDS", 1.0)
    server, queue = Overloaded(), BusyQueue()
    server.is_overloaded = False
    async with server.running(tmp_path) as operator, asyncio.timeout(30):
        operator.controller._queue = queue
        while len(queue.tries) < 3 or "a sealed vault" not in server.told:
            server.report(operator)
            await asyncio.sleep(0.02)
    first = queue.tries[0]
    assert sum(at < first + 0.9 for at in queue.tries) == 1, "it asked for a second"
    assert sum(at < first + 2.5 for at in queue.tries) <= 3, "and is asked later and later"


class Altering(Refusing):
    """An API server with an admission policy that takes from each pod what makes it a worker."""

    def __init__(self, field: str) -> None:
        super().__init__(QUOTA, 1, method="none")
        self.field = field
        self.kept: set[str] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/pods"):
            self.tries.append(time.monotonic())
            made = await request.json()
            uid = f"pod-{len(self.tries)}"
            self.kept.add(uid)
            metadata = {**made["metadata"], "uid": uid, "namespace": "t", "resourceVersion": "7"}
            if self.field == "ownerReferences":
                del metadata[self.field]
            else:
                metadata["labels"] = {k: v for k, v in metadata["labels"].items() if k != self.field}
            return web.json_response({**made, "metadata": metadata}, status=201)
        if request.method == "DELETE":
            self.kept.discard((await request.json())["preconditions"]["uid"])
            return web.json_response({})
        return await super().answer(request)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        *((key, f"metadata.labels[{key}]") for key in (names.LABEL_JOB_UID, names.LABEL_APP)),
        ("ownerReferences", "metadata.ownerReferences"),
    ],
)
async def test_a_pod_that_a_policy_makes_a_strangers_is_told_and_not_kept(
    tmp_path: Path, field: str, told: str
) -> None:
    server = Altering(field)
    async with server.running(tmp_path):
        async with asyncio.timeout(30):
            while told not in server.told or server.kept:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
    assert "an admission webhook or a policy" in server.told
    assert "rename the job" not in server.told


class Storing(Refusing):
    """An API server with a policy that replaces the command of each pod; the operator is told of them as by a watch."""

    def __init__(self, *, is_watched: bool = True) -> None:
        super().__init__(QUOTA, 1, method="none")
        self.is_watched, self.loses_first = is_watched, False
        self.operator: Operator | None = None
        self.pods: dict[str, dict[str, Any]] = {}
        self.deleted = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert self.operator is not None
        cache, name = self.operator.cache, request.path.rpartition("/")[2]
        if request.method == "POST" and name == "pods":
            return await self._make(request)
        if "/pods/" not in request.path:
            return await super().answer(request)
        pod = self.pods.get(name)
        if pod is None:
            return web.Response(status=404)
        if request.method == "DELETE":
            self.deleted += 1
            del self.pods[name]
            uid = pod["metadata"]["uid"]
            asyncio.get_running_loop().call_later(0.1, cache.drop_pod, uid)  # its node has let it go
            return web.json_response({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": format_time(0.0)}})
        return web.json_response(pod)

    async def _make(self, request: web.Request) -> web.StreamResponse:
        self.tries.append(time.monotonic())
        made = await request.json()
        name = made["metadata"]["name"]
        is_taken = name in self.pods
        if not is_taken:
            self.store(made, str(len(self.tries)), time.time())
        if self.loses_first and len(self.tries) == 1:
            assert request.transport is not None
            request.transport.abort()
        if is_taken:
            taken = {"kind": "Status", "reason": "AlreadyExists", "code": 409, "message": "it exists"}
            return web.json_response(taken, status=409)
        return web.json_response(self.pods[name], status=201)

    def store(self, made: dict[str, Any], uid: str, created: float) -> None:
        metadata = made["metadata"] | {"uid": f"pod-{uid}", "namespace": "t", "resourceVersion": "7"}
        metadata["creationTimestamp"] = format_time(created)
        trainer = {**made["spec"]["containers"][0], "command": ["sleep"], "args": ["1"]}
        pod = {**made, "metadata": metadata, "spec": {**made["spec"], "containers": [trainer]}}
        self.pods[metadata["name"]] = pod
        if self.is_watched:
            assert self.operator is not None
            self.operator.cache.put_pod(pod)

    @contextlib.asynccontextmanager
    async def running(self, directory: Path) -> AsyncIterator[Operator]:
        self.stored["spec"]["template"]["spec"]["containers"][0]["command"] = ["torchrun", "t.py"]
        async with super().running(directory) as operator:
            self.operator = operator
            yield operator


async def test_altered_pods_are_made_less_and_less_often(tmp_path: Path) -> None:
    """That each of them comes and goes is no reason to make the next one at once."""
    server = Storing()
    async with server.running(tmp_path) as operator:
        while not server.tries or time.monotonic() < server.tries[0] + SECONDS:
            server.report(operator)
            await asyncio.sleep(0.02)
    assert 1 < len(server.tries) <= 4, "at once, and after 1, 2, 4 ... seconds"
    assert "PodAltered" in str(server.stored["status"]["conditions"])


@pytest.mark.parametrize("is_watched", [pytest.param(True, id="watched"), pytest.param(False, id="not yet seen")])
async def test_an_altered_pod_is_not_kept_where_the_answer_was_lost(tmp_path: Path, is_watched: bool) -> None:
    server = Storing(is_watched=is_watched)
    server.loses_first = True
    async with server.running(tmp_path), asyncio.timeout(30):
        while not server.deleted or "command" not in server.told:  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)
    assert "torchrun t.py became sleep" in server.told


@pytest.mark.parametrize("loses_first", [pytest.param(False, id="answered"), pytest.param(True, id="not answered")])
async def test_a_pod_that_was_there_before_is_not_compared(tmp_path: Path, loses_first: bool) -> None:
    """Another version of the operator may have made it otherwise."""
    server = Storing(is_watched=False)
    async with server.running(tmp_path) as operator, asyncio.timeout(30):
        job, _ = operator.cache.jobs[KEY]
        assert job.spec is not None
        made = manifests.build_pod(job, job.spec, NewPod(0), manifests.Settings(hub_url="ws://hub:1"))
        server.store(made, "earlier", time.time() - 60)
        server.loses_first = loses_first
        while not operator.cache.pods(KEY):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        server.report(operator)
        await operator.controller.stop()
    assert server.tries and not server.deleted
    assert operator.cache.pods(KEY)[0].uid == "pod-earlier"
