"""Resizing pods against a small server: what is sent, and what each answer leads to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import make_job, make_spec
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.resizing import resize_all
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.plan.policy import Resize
from elasticjob_operator.plan.values import NewPod

pytestmark = pytest.mark.timeout(60)
AMOUNTS = {"requests": {"cpu": "2", "memory": "4Gi"}}
JOB = make_job(make_spec(template={"spec": {"containers": [{"name": "worker", "resources": AMOUNTS}]}}))


class Server:
    """Stores what it is sent, unless `refusal` says otherwise; `stored` are the amounts that it keeps instead."""

    def __init__(self, refusal: int = 0, stored: dict[str, Any] | None = None) -> None:
        self.refusal, self.stored = refusal, stored
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path} {request.content_type}")
        if self.refusal:
            body = {"reason": "Invalid", "message": "no", "code": self.refusal}
            return web.json_response(body, status=self.refusal)
        sent = await request.json()
        assert JOB.spec is not None
        pod = manifests.build_pod(JOB, JOB.spec, NewPod(0), manifests.Settings(hub_url="ws://hub:1"))
        resources = self.stored or sent["spec"]["containers"][0]["resources"]
        pod["metadata"] |= {"uid": sent["metadata"]["uid"], "resourceVersion": "8"}
        pod["spec"] |= {"containers": [{"name": "worker", "resources": resources}]}
        return web.json_response(pod)


@pytest.mark.parametrize(
    ("server", "requests", "expected"),
    [
        pytest.param(Server(), 2, "", id="all of them"),
        pytest.param(Server(409), 2, "", id="they were replaced"),
        pytest.param(Server(422), 1, "no", id="what one is refused, the others are not asked for"),
        pytest.param(
            Server(stored={"requests": {"cpu": "1", "memory": "4Gi"}}),
            1,
            "the API server stores other amounts: a webhook may want them",
            id="somebody changes what is written",
        ),
    ],
)
async def test_pods_are_resized_one_after_the_other(
    server: Server, requests: int, expected: str, tmp_path: Path
) -> None:
    assert JOB.spec is not None
    resizes = [Resize(f"digits-worker-{i}", f"u{i}", JOB.spec.shape.sizes) for i in range(2)]
    cache = Cache(lambda key: None)
    async with answering(server.answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        template, why = await resize_all(api, cache, JOB, resizes)
    assert (template, why) == (JOB.spec.template_hash if expected else "", expected)
    path = "/api/v1/namespaces/default/pods/digits-worker-0/resize"
    assert server.asked[0] == f"PATCH {path} application/strategic-merge-patch+json"
    assert len(server.asked) == requests
