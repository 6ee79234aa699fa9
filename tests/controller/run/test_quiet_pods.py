"""The events of a pod that waits: whoever may write events in its namespace may write megabytes into them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import NOW, make_job, make_pod
from controller.run.test_turns_of_jobs import Nothing
from elasticjob_operator.api import names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.run.controller import Controller
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options
from elasticjob_operator.run.quiet_pods import EventLists, QuietPods
from elasticjob_operator.times import format_time

pytestmark = pytest.mark.timeout(60)
EVENT = b'{"type":"Warning","message":"' + b"x" * 65_536 + b'"}'
CROWD = 200  # jobs
EVENTS = 240  # less than a response may have


async def test_large_events_are_not_read_to_their_end(tmp_path: Path) -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        for number in range(EVENTS):
            await response.write((b'{"items":[' if not number else b",") + EVENT)
            sent += len(EVENT)
            await asyncio.sleep(0)
        await response.write(b"]}")
        return response

    pod = make_pod(0, "Pending", created=NOW - 900, scheduled=NOW - 900, waiting="ContainerCreating")
    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        quiet = QuietPods()
        await quiet.look(api, EventLists(), make_job(), [pod], ("node0",), NOW)
    assert quiet.said == {pod.uid: (False, "")}, "and the job goes on without them"
    assert sent < EVENTS * len(EVENT) / 2


async def test_a_pod_without_a_node_is_looked_at_before_others_remove_it(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []})

    young: dict[str, Any] = {"created": NOW - 1, "scheduled": NOW - 1, "waiting": "ContainerCreating"}
    for nodes, seconds in (((), 4), (("node0",), 14)):
        async with answering(answer, tmp_path) as api:
            _, again = await QuietPods().look(
                api, EventLists(), make_job(), [make_pod(0, "Pending", **young)], nodes, NOW
            )
        assert again == NOW + seconds


def waiting_for(job: str, namespace: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A job, and its pod, which says nothing of why it waits."""
    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    made: dict[str, Any] = {"apiVersion": names.API_VERSION, "kind": names.KIND}
    made["metadata"] = {"name": job, "namespace": namespace, "uid": f"u-{job}", "resourceVersion": "5"}
    made["spec"] = {"replicas": 1, "template": template, "network": {"policy": False}}
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": f"u-{job}", "controller": True}
    labels = {names.LABEL_APP: names.LABEL_APP_VALUE, names.LABEL_JOB: job, names.LABEL_JOB_UID: f"u-{job}"}
    metadata: dict[str, Any] = {"name": names.pod_name(job, 0), "namespace": namespace, "uid": f"p-{job}"}
    metadata |= {"labels": {**labels, names.LABEL_INDEX: "0"}, "ownerReferences": [owner], "resourceVersion": "1"}
    metadata["creationTimestamp"] = format_time(NOW - 300)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(NOW - 300)}
    status = {"phase": "Pending", "conditions": [scheduled]}
    return made, {"metadata": metadata, "spec": {"nodeName": "n", "containers": [{"name": "w"}]}, "status": status}


async def test_a_namespace_with_many_jobs_has_its_events_read_a_few_times_a_second(tmp_path: Path) -> None:
    """Each time, the API server looks at all events of the namespace, which are as many as somebody likes."""
    reads = Counter[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events") and request.method == "GET":
            reads[request.path.split("/")[4]] += 1
        return web.json_response({"items": []})

    async with answering(answer, tmp_path) as api:
        parts = Operator(Options(), api)
        for namespace, count in (("crowd", CROWD), ("other", 3)):
            for number in range(count):
                job, pod = waiting_for(f"{namespace}{number}", namespace)
                parts.cache.put_job(job)
                parts.cache.put_pod(pod)
        api.leadership.lend(math.inf)
        passed = set[JobKey]()
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(
            *(api, parts.cache, parts.hub, applier, parts.controller.config),
            clock=lambda: NOW,
            observer=lambda job, plan, seconds: passed.add(job.key),
        )
        controller.start()
        async with asyncio.timeout(50):
            while len(passed) < CROWD + 3 or reads["other"] < 3:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        await controller.stop()
    assert reads["other"] == 3
    assert 0 < reads["crowd"] < CROWD / 2
