"""Events that wait to be written: how many there are, and whose."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from pathlib import Path

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator import api as models
from elasticjob_operator.apply.events import MAX_WAITING, EventRecorder
from elasticjob_operator.model.observe import Job, observe_job
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.run import job_lines

pytestmark = pytest.mark.timeout(60)


async def test_the_events_of_one_namespace_leave_room_for_others(tmp_path: Path) -> None:
    """One tenant makes a job after the other, and the API server is slow."""
    may_answer, written = asyncio.Event(), dict[str, int]()

    async def answer(request: web.Request) -> web.StreamResponse:
        namespace = request.path.split("/")[4]
        written[namespace] = written.get(namespace, 0) + 1
        await may_answer.wait()
        return web.json_response({})

    def tell(recorder: EventRecorder, namespace: str, jobs: int) -> None:
        for number in range(jobs):
            job = Job(namespace, f"j{number}", f"{namespace}-{number}", spec=None, status=models.Status())
            recorder.record(job, [Event("R", f"event {n}") for n in range(20)], 0.0)

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        recorder = EventRecorder(api, "test")
        tell(recorder, "greedy", MAX_WAITING // 10)
        tell(recorder, "modest", 1)
        may_answer.set()
        async with asyncio.timeout(50):
            while written.get("modest", 0) < 20:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        await recorder.close()
    assert written["greedy"] <= MAX_WAITING // 2


async def test_what_is_logged_of_refused_events_counts_for_their_namespace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"code": 403, "message": "exceeded quota"}, status=403)

    caplog.set_level("INFO")
    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        recorder = EventRecorder(api, "test")
        recorder.record(Job("evil", "j", "u", spec=None, status=models.Status()), [Event("R", "said")], 0.0)
        await recorder.close()
    refused = [record for record in caplog.records if "exceeded quota" in record.getMessage()]
    assert [job_lines.find_namespace(record) for record in refused] == ["evil"]


@pytest.mark.parametrize("events", [pytest.param(1, id="written"), pytest.param(60, id="more than may be written now")])
async def test_an_event_that_waits_keeps_no_template(events: int, tmp_path: Path) -> None:
    """What a job takes is counted while it is there, and a tenant makes one after the other."""
    may_answer = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await may_answer.wait()
        return web.json_response({})

    template = {"spec": {"containers": [{"name": "w", "image": "i"}]}}
    metadata = {"namespace": "evil", "name": "j", "uid": "u", "resourceVersion": "1"}
    job = observe_job({"metadata": metadata, "spec": {"replicas": 1, "template": template}})
    assert job.spec is not None
    spec = weakref.ref(job.spec)
    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        recorder = EventRecorder(api, "test")
        recorder.record(job, [Event("R", f"event {n}") for n in range(events)], 0.0)
        await asyncio.sleep(0)
        del job
        gc.collect()
        assert spec() is None
        may_answer.set()
        await recorder.close()
