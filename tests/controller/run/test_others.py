"""Two operators of different releases that see the same job, without a cluster: what each of them writes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import make_agent, make_job, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.model.claims import Verdict
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan.plan import Plan
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options
from elasticjob_operator.run.others import Others

pytestmark = pytest.mark.timeout(60)

KEY: Final = ("t", "j")
JOB: Final = "/apis/elasticjob.dev/v1alpha1/namespaces/t/elasticjobs/j"
LEASE: Final = 0.25  # seconds, so that an answer is waited for 1.5 s
A, B = "a/lease", "b/lease"


def raw_job(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "j", "namespace": "t", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"replicas": 1, "template": template, "network": {"policy": False}, **spec},
        "status": status,
    }


def merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    merged = dict(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged


class Server:
    """One job, and its pods. Each change of the job is told to all operators, as their watches do."""

    def __init__(self, status: dict[str, Any] | None = None, *, prunes: bool = False, **spec: Any) -> None:
        self.job, self.prunes = raw_job(status or {}, **spec), prunes
        self.pods: dict[str, dict[str, Any]] = {}
        self.operators: list[Operator] = []
        self.patches: list[dict[str, Any]] = []  # of the status ...
        self.writers: list[str] = []  # ... and whose each is
        self.told = Counter[str]()
        self.conflicts = self.passes = 0

    @property
    def claim(self) -> dict[str, Any]:
        return dict(self.job["status"].get("operator") or {})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.split("/")[-1]
        body = await request.json() if request.can_read_body else {}
        if kind == "events" and request.method == "GET":
            return web.json_response({"items": []})
        if kind == "events":
            self.told[body["reason"]] += 1
            return web.json_response(body)
        if request.method == "POST" and kind == "pods":
            return self._create(body)
        if request.path.startswith(JOB):
            return (
                self._patch(body, request.headers["User-Agent"])
                if request.method == "PATCH"
                else web.json_response(self.job)
            )
        return web.json_response({"kind": "Status", "code": 404}, status=404)

    def _create(self, body: dict[str, Any]) -> web.StreamResponse:
        name = body["metadata"]["name"]
        if name in self.pods:
            return web.json_response({"kind": "Status", "reason": "AlreadyExists", "code": 409}, status=409)
        body["metadata"] |= {"uid": f"pod-{name}", "resourceVersion": "1"}
        self.pods[name] = body
        return web.json_response(body)

    def written_by(self, release: str) -> list[dict[str, Any]]:
        return [patch for patch, writer in zip(self.patches, self.writers, strict=True) if writer == release]

    def _patch(self, body: dict[str, Any], writer: str) -> web.StreamResponse:
        if body["metadata"].get("resourceVersion") != self.job["metadata"]["resourceVersion"]:
            self.conflicts += 1
            return web.json_response({"kind": "Status", "reason": "Conflict", "code": 409}, status=409)
        if "status" in body:
            self.patches.append(copy.deepcopy(body["status"]))
            self.writers.append(writer)
            if self.prunes:
                body["status"].pop("operator", None)
        before, self.job = self.job, {**self.job, "status": merge(self.job["status"], body.get("status") or {})}
        if self.job != before:
            version = int(before["metadata"]["resourceVersion"]) + 1
            self.job["metadata"] = {**before["metadata"], "resourceVersion": str(version)}
            for operator in self.operators:
                operator.cache.put_job(self.job)
        return web.json_response(self.job)

    def _observe(self, job: Job, plan: Plan, seconds: float) -> None:
        self.passes += 1

    @contextlib.asynccontextmanager
    async def operator(self, directory: Path, release: str) -> AsyncIterator[Operator]:
        directory.mkdir(exist_ok=True)
        namespace, _, lease = release.partition("/")
        async with answering(self.answer, directory, user_agent=release) as connected:
            made = Operator(Options(operator_namespace=namespace, lease_name=lease, lease_seconds=LEASE), connected)
            made.applier.settings = replace(made.applier.settings, hub_url="ws://hub:1", release=release)
            connected.leadership.lend(math.inf)
            made.cache.put_job(self.job)
            made.controller.observer = self._observe
            self.operators.append(made)
            made.controller.start()
            try:
                yield made
            finally:
                self.operators.remove(made)
                await made.controller.stop()


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not look():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)


async def test_a_job_that_nobody_has_claimed_is_claimed_with_its_first_status(tmp_path: Path) -> None:
    server = Server()
    async with server.operator(tmp_path, A):
        await until(lambda: server.claim and server.pods)
    assert "conditions" in server.patches[0] and server.patches[0]["operator"] == {"release": A}
    assert [pod["metadata"]["annotations"][names.ANNOTATION_RELEASE] for pod in server.pods.values()] == [A]
    assert not server.told["DecidedElsewhere"]


async def test_the_other_one_writes_nothing_but_its_question(tmp_path: Path) -> None:
    server = Server()
    async with server.operator(tmp_path / "a", A):
        await until(lambda: server.claim and server.pods)
        async with server.operator(tmp_path / "b", B) as other:
            await until(lambda: len(server.written_by(B)) >= 3)
            assert other.others.count() == 1
            page = other.metrics.expose(0.0)
    assert all(patch == {"operator": {"release": A, "asked": B}} for patch in server.written_by(B))
    answers = [patch for patch in server.written_by(A)[1:] if "operator" in patch]
    assert len(answers) >= 2 and all(patch["operator"] == {"asked": None} for patch in answers)
    assert server.claim["release"] == A
    assert server.told["DecidedElsewhere"] == 1, "once, however often it asks"
    assert not server.told["TakenOver"]
    assert b"elasticjob_jobs_of_others 1.0" in page
    assert len(server.pods) == 1


async def test_a_job_of_a_release_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    server = Server()
    async with server.operator(tmp_path / "a", A):
        await until(lambda: server.claim and server.pods)
    async with server.operator(tmp_path / "b", B) as other:
        await until(lambda: server.claim == {"release": B})
        await until(lambda: not other.others.count())
        async with server.operator(tmp_path / "a", A) as back:
            await until(back.others.count)
            await until(lambda: server.told["DecidedElsewhere"] == 2)
            assert server.claim["release"] == B, "the former one stands back when it is there again"
    assert server.told["TakenOver"] == 1


async def test_a_replica_of_the_same_release_goes_on(tmp_path: Path) -> None:
    server = Server()
    async with server.operator(tmp_path / "one", A):
        await until(lambda: server.claim and server.pods)
    written, passes = len(server.patches), server.passes
    async with server.operator(tmp_path / "two", A) as next_leader:
        await until(lambda: server.passes >= passes + 1)
        assert not next_leader.others.count()
    assert not any("operator" in patch for patch in server.patches[written:])


async def test_of_two_that_meet_a_new_job_one_decides(tmp_path: Path) -> None:
    server = Server()
    async with server.operator(tmp_path / "a", A) as one, server.operator(tmp_path / "b", B) as two:
        await until(lambda: server.claim and one.others.count() + two.others.count() == 1)
        owner = server.claim["release"]
        await until(lambda: server.pods)
        written = len(server.patches)
        await until(lambda: len(server.patches) >= written + 4)
        assert server.claim["release"] == owner
    assert not server.told["TakenOver"]


async def test_an_older_definition_that_drops_claims_costs_one_vain_write(tmp_path: Path) -> None:
    server = Server(prunes=True)
    async with server.operator(tmp_path, A) as operator:
        await until(lambda: server.pods)
        for _ in range(20):
            operator.controller.wake(KEY)
            await asyncio.sleep(0.02)
    assert sum("operator" in patch for patch in server.patches) == 1
    assert all(len(patch) > ("operator" in patch) for patch in server.patches), "none is empty but for the claim"


async def test_a_job_of_another_controller_is_not_claimed(tmp_path: Path) -> None:
    """MultiKueue copies the status of the job that runs elsewhere, with the claim of an operator there."""
    copied = {"operator": {"release": "elsewhere/lease"}, "phase": "Running"}
    server = Server(copied, managedBy="kueue.x-k8s.io/multikueue")
    async with server.operator(tmp_path, A) as operator:
        for _ in range(20):
            operator.controller.wake(KEY)
            await asyncio.sleep(0.02)
        assert not operator.others.count()
    assert server.patches == []


# The memory by itself.


def claimed(release: str, asked: str | None = None, name: str = "j", **fields: Any) -> Job:
    status = api.Status(operator=api.OperatorStatus(release=release, asked=asked))
    return replace(make_job(), name=name, uid=name, status=status, **fields)


def test_new_jobs_are_claimed_before_all_else_once_another_release_was_met() -> None:
    clock = [0.0]
    others = Others(A, clock=lambda: clock[0])
    new = Plan(revise(make_job().status, phase=api.Phase.PENDING))
    made = others.mark(make_job(), new, {})
    assert made.status.operator == api.OperatorStatus(release=A) and not made.claims, "nobody else is there"
    others.judge(claimed(A, asked=B))
    assert others.mark(make_job(), new, {}).claims
    clock[0] = 3601.0
    assert not others.mark(make_job(), new, {}).claims
    others.judge(claimed(B))
    assert others.mark(make_job(), new, {}).claims


def test_who_has_the_agents_of_an_unclaimed_job_claims_it() -> None:
    """Of two releases that were upgraded, the one whose world trains has to be the first."""
    others = Others(A)
    trains = make_job(make_spec(), api.Status(rendezvous=make_world(1)))
    idle = Plan(trains.status)
    assert others.mark(trains, idle, {}) is idle
    assert others.mark(trains, idle, {"u0": make_agent(0)}).status.operator == api.OperatorStatus(release=A)


def test_an_operator_without_a_release_knows_no_others() -> None:
    others, job = Others(), claimed(B)
    assert others.judge(job).verdict is Verdict.DECIDE
    made = Plan(revise(job.status, phase=api.Phase.PENDING))
    assert others.mark(job, made, {}) is made


def test_a_job_that_is_made_anew_is_asked_anew() -> None:
    clock = [0.0]
    others = Others(A, clock=lambda: clock[0])
    assert others.judge(claimed(B, asked=A)).verdict is Verdict.WAIT
    clock[0] = 60.0
    assert others.judge(replace(claimed(B, asked=A), uid="other")).verdict is Verdict.WAIT
    assert others.judge(replace(claimed(B, asked=A), uid="other")).look_at == 60.0
    assert others.count() == 1
    others.forget(claimed(B).key)
    assert others.count() == 0
