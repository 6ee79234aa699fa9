"""The operator reads a job's template from the API server once, and asks for none where no job names one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import names
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(100)
ROOT = f"/apis/{names.API_VERSION}/namespaces"
TEMPLATES = f"/{names.TEMPLATE_PLURAL}/"


def merge_patch(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge_patch(target[key], value)
        else:
            target[key] = value


class Server:
    """An API server with one job; it stores what is written to it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        metadata = {"name": "j", "namespace": "t", "uid": "u", "resourceVersion": "5", "generation": 1}
        self.job: dict[str, Any] = {"metadata": metadata, "spec": spec}
        self.templates: dict[str, dict[str, Any]] = {}  # by namespace
        self.forbidden: set[str] = set()  # namespaces
        self.asked: list[str] = []  # namespaces in which a template was looked for
        self.pods: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if TEMPLATES in request.path:
            return self._give_template(request.path.removeprefix(f"{ROOT}/").partition("/")[0])
        if request.method == "PATCH" and "/elasticjobs/j" in request.path:
            body = await request.json()
            body.pop("metadata")
            merge_patch(self.job, body)
            self.job["metadata"]["resourceVersion"] = str(int(self.job["metadata"]["resourceVersion"]) + 1)
            self.job["metadata"]["generation"] += "spec" in body
        elif request.method == "POST":
            made = await request.json()
            made["metadata"] |= {"uid": f"u{len(self.pods)}", "resourceVersion": "7", "namespace": "t"}
            if request.path.endswith("/pods"):
                self.pods.append(made)
            return web.json_response(made)
        return web.json_response(self.job)

    def _give_template(self, namespace: str) -> web.Response:
        self.asked.append(namespace)
        if namespace in self.forbidden:
            return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)
        found = self.templates.get(namespace)
        if found is None:
            return web.json_response({"reason": "NotFound", "message": "not found"}, status=404)
        metadata = {"name": "small", "namespace": namespace, "uid": "t", "generation": 1}
        return web.json_response({"metadata": metadata, "spec": found})

    def condition(self) -> dict[str, Any]:
        conditions = self.job.get("status", {}).get("conditions", [])
        return next((dict(c) for c in conditions if c["type"] == "Degraded" and c["status"] == "True"), {})

    def told(self, reason: str) -> str:
        conditions = self.job.get("status", {}).get("conditions", [])
        return next((str(c["message"]) for c in conditions if c["reason"] == reason), "")


async def see(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)


async def start(api: Any, server: Server) -> Operator:
    operator = Operator(Options(operator_namespace="shared"), api)
    operator.cache.put_job(server.job)
    api.leadership.lend(math.inf)
    operator.controller.start()
    return operator


POD = {"spec": {"containers": [{"name": "node", "image": "train:1", "command": ["torchrun"]}]}}


async def test_a_job_takes_its_template_from_the_operators_namespace_once(tmp_path: Path) -> None:
    server = Server({"replicas": 1, "templateRef": {"name": "small"}})
    server.forbidden = {"shared"}
    async with answering(server.answer, tmp_path) as api:
        operator = await start(api, server)
        await see(server.condition)
        assert server.condition()["reason"] == "TemplateNotFound"
        assert "in namespace t or shared" in server.condition()["message"]
        assert "It may not read them in shared" in server.condition()["message"]
        assert server.pods == []
        assert set(server.asked) == {"t", "shared"}

        server.forbidden, server.templates = set(), {"shared": {"template": POD}}
        operator.controller.wake(("t", "j"))
        await see(lambda: server.pods)
        assert server.pods[0]["spec"]["containers"][0]["image"] == "train:1"
        taken = server.job["status"]["template"]
        assert (taken["namespace"], taken["name"], taken["fields"]) == ("shared", "small", ["template"])
        assert server.condition().get("reason") != "TemplateNotFound"

        asked, passes = len(server.asked), []
        operator.controller.observer = lambda key, plan, seconds: passes.append(plan)
        operator.controller.wake(("t", "j"))
        await see(lambda: passes)
        assert len(server.asked) == asked, "it has its template"
        await operator.controller.stop()


async def test_the_jobs_own_namespace_comes_first(tmp_path: Path) -> None:
    server = Server({"replicas": 1, "templateRef": {"name": "small"}})
    server.templates = {"t": {"template": POD}, "shared": {}}
    async with answering(server.answer, tmp_path) as api:
        operator = await start(api, server)
        await see(lambda: server.pods)
        await operator.controller.stop()
    assert server.asked == ["t"]


async def test_nobody_asks_for_templates_where_no_job_names_one(tmp_path: Path) -> None:
    server = Server({"replicas": 1, "template": POD})
    async with answering(server.answer, tmp_path) as api:
        operator = await start(api, server)
        await see(lambda: server.pods)
        await operator.controller.stop()
    assert server.asked == []


async def test_the_job_of_another_manager_is_not_looked_after(tmp_path: Path) -> None:
    server = Server({"templateRef": {"name": "small"}, "managedBy": "x/y"})
    async with answering(server.answer, tmp_path) as api:
        passes: list[str] = []
        operator = Operator(Options(operator_namespace="shared"), api)
        operator.cache.put_job(server.job)
        operator.controller.observer = lambda key, plan, seconds: passes.append(plan.reason)
        api.leadership.lend(math.inf)
        operator.controller.start()
        await see(lambda: passes)
        await operator.controller.stop()
    assert (passes[0], server.asked) == ("managed by x/y", [])


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"x": [[]] * 100_000}, "more than 75000 values", id="values"),
        pytest.param({"x": "<" * 1_000_000}, "larger than 524288 bytes", id="bytes"),
        pytest.param({"x": [0] * 30_000}, "spec has more than 20000 values", id="a few too many"),
    ],
)
async def test_a_template_that_is_far_too_large_is_told_and_not_kept(
    spec: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """Each job that waits for it reads it: eighty of them would take more memory than the operator has."""
    server = Server({"replicas": 1, "templateRef": {"name": "small"}})
    server.templates = {"t": {"template": POD, **spec}}
    async with answering(server.answer, tmp_path) as api:
        operator = await start(api, server)
        await see(lambda: server.told("InvalidSpec"))
        assert "ElasticJobTemplate small of namespace t" in server.told("InvalidSpec")
        assert why in server.told("InvalidSpec")
        await operator.controller.stop()
