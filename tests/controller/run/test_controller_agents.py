"""The controller considers only agents of the job's own pods, not those of a deleted job with the same name."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.api import names, wire
from elasticjob_operator.hub import auth
from elasticjob_operator.plan.plan import Plan
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)
POD = names.pod_name("j", 0)
CHARGED = {"user": 2, "total": 2, "step": 50, "generation": 1, "windowStart": "2026-01-01T00:00:00.000Z"}


def job_of(uid: str) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    member, store = {"pod": POD, "uid": f"pod-of-{uid}", "rank": 0}, {"address": "10.0.0.1", "port": 29500}
    world = {"generation": 2, "worldSize": 1, "members": [member], "store": store}
    started = {"startTime": "2026-01-01T00:00:00.000Z", "replicas": 1, "rendezvous": world, "restarts": CHARGED}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "j", "namespace": "t", "uid": uid, "resourceVersion": "5", "generation": 1},
        "spec": {"replicas": 1, "template": template},
        "status": started,
    }


def pod_of(uid: str) -> dict[str, Any]:
    """The worker pod of the job with this UID; its own UID says whose it is."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "j", "uid": uid, "controller": True}
    labels = {names.LABEL_JOB: "j", names.LABEL_JOB_UID: uid, names.LABEL_INDEX: "0"}
    metadata = {"name": POD, "namespace": "t", "uid": f"pod-of-{uid}", "resourceVersion": "6", "labels": labels}
    return {
        "metadata": {**metadata, "ownerReferences": [owner], "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "containers": [{"name": "w"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "w", "state": {"running": {}}}]},
    }


def entry(operator: Operator, pod_uid: str) -> None:
    """The agent of that pod trains and reports a step beyond the one of the last failure."""
    entries = operator.hub._registry
    identity = auth.Identity("t", POD, pod_uid, "j")
    link = entries.admit(identity, 10.0)
    assert not isinstance(link, auth.Refusal)
    state = wire.AgentState(phase=wire.AgentPhase.RUNNING, generation=2)
    taken = entries.enter(link, identity, wire.Hello(agent="a", state=state))
    entries.settle(link, identity, stays=True)
    assert taken is not None
    entries.receive(taken, wire.Progress(generation=2, step=100), 100)


@pytest.mark.parametrize(
    ("whose", "user", "step"),
    [
        pytest.param("this", 0, 100, id="the job's own agent gives the budget back"),
        pytest.param("predecessor", 2, None, id="the agent of a deleted namesake is not heard"),
    ],
)
async def test_whose_progress_counts(tmp_path: Path, whose: str, user: int, step: int | None) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(job_of("this") if "/elasticjobs/" in request.path else pod_of("this"))

    async with answering(answer, tmp_path) as api:
        operator = Operator(Options(), api)
        operator.cache.put_job(job_of("this"))
        operator.cache.put_pod(pod_of("this"))
        operator.cache.put_pod(pod_of("predecessor"))  # it still ends
        entry(operator, f"pod-of-{whose}")
        made: list[Plan] = []
        operator.controller.observer = lambda key, plan, seconds: made.append(plan)
        api.leadership.lend(math.inf)
        operator.controller.start()
        async with asyncio.timeout(20):
            while not made:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        await operator.controller.stop()
    status = made[0].status
    assert (status.restarts.user, status.progress and status.progress.step) == (user, step)
    assert set(made[0].directives) <= {f"pod-of-{whose}"}


async def test_an_agent_whose_pod_came_and_went_between_two_passes_is_forgotten(tmp_path: Path) -> None:
    """What the hub keeps of it would stay until the job is deleted, and anybody can make any number of pods in turn."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(job_of("this") if "/elasticjobs/" in request.path else pod_of("this"))

    async with answering(answer, tmp_path) as api:
        operator = Operator(Options(), api)
        operator.cache.put_job(job_of("this"))
        operator.cache.put_pod(pod_of("this"))
        entry(operator, "pod-of-this")
        for number in range(3):
            raw = pod_of("this")
            raw["metadata"]["uid"] = f"short-{number}"
            operator.cache.put_pod(raw)
            entry(operator, f"short-{number}")
            operator.cache.drop_pod(f"short-{number}")
        api.leadership.lend(math.inf)
        operator.controller.start()
        async with asyncio.timeout(20):
            while len(operator.hub.agents(("t", "j"))) > 1:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        await operator.controller.stop()
        assert set(operator.hub.agents(("t", "j"))) == {"pod-of-this"}
