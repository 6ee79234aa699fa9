"""What is asked of the API server, and what is made of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.run.cluster import discover

V1BETA1, V1ALPHA2 = "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"


@pytest.mark.parametrize(
    ("kinds", "wanted", "asked", "expected"),
    [
        pytest.param({V1ALPHA2: "PodGroup"}, False, ["/apis"], False, id="nobody wants gangs"),
        pytest.param({V1BETA1: "PriorityClass"}, True, ["/apis", f"/apis/{V1BETA1}"], False, id="Kubernetes 1.20"),
        pytest.param({V1ALPHA2: "PodGroup"}, True, ["/apis", f"/apis/{V1ALPHA2}"], True, id="Kubernetes 1.36"),
        pytest.param({}, True, ["/apis"], False, id="Kubernetes 1.30"),
    ],
)
async def test_gangs(kinds: dict[str, str], wanted: bool, asked: list[str], expected: bool, tmp_path: Path) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        if request.path == "/apis":
            versions = [{"groupVersion": version} for version in ("policy/v1", *kinds)]
            return web.json_response({"groups": [{"name": "any", "versions": versions}]})
        return web.json_response({"resources": [{"kind": kinds[request.path.removeprefix("/apis/")]}]})

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        found = await discover(api, with_gangs=wanted, with_image_volumes=False)
    assert seen == asked
    assert found.has("PodGroup") is expected
    assert found.has("PodDisruptionBudget")


@pytest.mark.parametrize(("minor", "expected"), [("36", True), ("20", False)])
async def test_image_volumes(minor: str, expected: bool, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"groups": []} if request.path == "/apis" else {"major": "1", "minor": minor})

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        assert (await discover(api, with_gangs=False, with_image_volumes=True)).has_image_volumes is expected
        assert not (await discover(api, with_gangs=False, with_image_volumes=False)).has_image_volumes
