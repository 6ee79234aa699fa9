"""Pods that may have been made though nothing said so."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import make_job, make_spec
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.new_pods import NewPods
from elasticjob_operator.apply.refused_writes import RefusedWrites
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.threads import Threads
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.values import Deletion, NewPod
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.times import format_time

pytestmark = pytest.mark.timeout(60)


class Silent:
    """An API server that stores the first pod without an answer."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(self.made)
        if self.made:
            return web.json_response({"kind": "Status", "reason": "AlreadyExists", "code": 409}, status=409)
        body = await request.json()
        stored = {"uid": "pod", "namespace": "default", "resourceVersion": "7"}
        stored["creationTimestamp"] = format_time(time.time())
        self.made = {**body, "metadata": {**body["metadata"], **stored}}
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


@pytest.mark.parametrize("is_watched", [pytest.param(True, id="watched"), pytest.param(False, id="not yet seen")])
async def test_a_pod_whose_job_has_changed_since_it_was_sent_is_not_an_altered_one(
    tmp_path: Path, is_watched: bool
) -> None:
    """Nobody but its user has changed the sizes that its variables tell."""
    deleted, server = list[str](), Silent()

    async def delete(job: Job, deletion: Deletion) -> None:
        deleted.append(deletion.why)

    before, after = (make_job(make_spec(max=size)) for size in (4, 8))
    assert before.spec is not None and after.spec is not None
    async with answering(server.answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        cache = Cache(lambda key: None)
        settings = manifests.Settings(hub_url="ws://hub:1")
        pods = NewPods(api, cache, lambda: settings, Threads("test"), RefusedWrites(), delete)
        with pytest.raises(ApiError):
            await pods.create(before, NewPod(0))
        if is_watched:
            cache.put_pod(server.made)
            assert await pods.look_at_unanswered(after) == []
        else:
            await pods.create(after, NewPod(0))
        assert [pod.uid for pod in cache.pods(after.key)] == ["pod"]
    assert deleted == []
