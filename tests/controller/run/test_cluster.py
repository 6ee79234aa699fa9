"""What is asked of the API server, and what is made of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.run.cluster import discover

GROUP = "scheduling.k8s.io"
V1BETA1, V1ALPHA2 = f"{GROUP}/v1beta1", f"{GROUP}/v1alpha2"
OURS = ("Workload", "PodGroup")
Versions = dict[str, tuple[str, ...] | None]  # of this group: the kinds of each; None: it is not found after all


@pytest.mark.parametrize(
    ("versions", "asked", "expected"),
    [
        pytest.param({"v1": ("PriorityClass",)}, [], "", id="Kubernetes 1.30"),
        pytest.param({"v1": (), "v1beta1": ("PriorityClass",)}, [V1BETA1], "", id="1.20: another kind"),
        pytest.param({"v1": (), "v1alpha1": ("Workload",)}, [], "", id="1.35: groups are no objects yet"),
        pytest.param({"v1": (), "v1alpha2": OURS}, [V1ALPHA2], V1ALPHA2, id="1.36 with its gates"),
        pytest.param({"v1": (), "v1alpha2": ("Workload",)}, [V1ALPHA2], "", id="only the other kind"),
        pytest.param({"v1": (), "v1beta1": OURS}, [V1BETA1], V1BETA1, id="1.37"),
        pytest.param({"v1": (), "v1alpha3": OURS}, [], "", id="a version that is not written"),
        pytest.param({"v1": (), "v1beta1": OURS, "v1alpha2": OURS}, [V1BETA1, V1ALPHA2], V1BETA1, id="the best"),
        pytest.param(
            {"v1alpha1": OURS, "v1alpha2": OURS, "v1beta1": ("PriorityClass",)},
            [V1BETA1, V1ALPHA2],
            V1ALPHA2,
            id="the best that has it",
        ),
        pytest.param({"v1beta1": None, "v1alpha2": OURS}, [V1BETA1, V1ALPHA2], V1ALPHA2, id="another server answers"),
        pytest.param({}, [], "", id="no version of the group"),
    ],
)
async def test_gangs(versions: Versions, asked: list[str], expected: str, tmp_path: Path) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        if request.path == "/apis":
            of_all = {"scheduling.volcano.sh": ("v1beta1",), "policy": ("v1",), GROUP: tuple(versions)}
            groups = [
                {"name": group, "versions": [{"groupVersion": f"{group}/{version}"} for version in some]}
                for group, some in of_all.items()
            ]
            return web.json_response({"kind": "APIGroupList", "groups": groups})
        kinds = versions[request.path.rpartition("/")[2]]
        if kinds is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response({"kind": "APIResourceList", "resources": [{"kind": kind} for kind in kinds]})

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        found = await discover(api, with_gangs=True, with_image_volumes=False)
    assert seen == ["/apis", *(f"/apis/{version}" for version in asked)]
    assert found.has("PodGroup") is bool(expected)
    assert not expected or found.version_of("PodGroup") == expected
    assert found.has("PodDisruptionBudget")


async def test_nothing_is_asked_about_gangs_that_nobody_wants(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/apis"
        return web.json_response({"groups": [{"name": GROUP, "versions": [{"groupVersion": V1ALPHA2}]}]})

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        assert not (await discover(api, with_gangs=False, with_image_volumes=False)).has("PodGroup")


@pytest.mark.parametrize(("minor", "expected"), [("36", True), ("20", False)])
async def test_image_volumes(minor: str, expected: bool, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"groups": []} if request.path == "/apis" else {"major": "1", "minor": minor})

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        assert (await discover(api, with_gangs=False, with_image_volumes=True)).has_image_volumes is expected
        assert not (await discover(api, with_gangs=False, with_image_volumes=False)).has_image_volumes
