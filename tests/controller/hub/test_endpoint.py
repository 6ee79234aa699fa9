"""The target of the hub's Service."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.hub import endpoint

pytestmark = pytest.mark.timeout(30)

SERVICE: dict[str, Any] = {
    "metadata": {"name": "hub", "namespace": "ops", "uid": "u1"},
    "spec": {"clusterIP": "10.96.0.7"},
}


@pytest.mark.parametrize(
    ("selector", "address", "ours"),
    [
        pytest.param(None, "10.0.0.1", True, id="nobody says where it leads"),
        pytest.param({}, "10.0.0.1", True, id="an empty selector is none"),
        pytest.param({"app": "x"}, "10.0.0.1", False, id="it selects its pods itself"),
        pytest.param(None, "", False, id="not in a pod"),
    ],
)
def test_whose_business_it_is(selector: dict[str, str] | None, address: str, ours: bool) -> None:
    service = {**SERVICE, "spec": {"selector": selector} if selector is not None else {}}
    assert endpoint.is_ours_to_point(service, address) is ours


def test_the_slice_belongs_to_the_service_and_names_one_address() -> None:
    made = endpoint.build_slice(SERVICE, "discovery.k8s.io/v1", "10.0.0.1", 8443)
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "hub"
    assert [o["uid"] for o in made["metadata"]["ownerReferences"]] == ["u1"]
    assert made["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]
    assert made["ports"] == [{"name": "hub", "port": 8443, "protocol": "TCP"}]
    assert made["addressType"] == "IPv4"


def test_addresses_of_both_kinds() -> None:
    assert endpoint.build_slice(SERVICE, "discovery.k8s.io/v1", "fd00::7", 1)["addressType"] == "IPv6"


async def test_the_write_of_a_former_leader_that_comes_late_changes_nothing(tmp_path: Path) -> None:
    """Its process was stopped before it pointed the Service to itself, and goes on when another one has done so."""
    stored, version, late, over = dict[str, Any](), 0, asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal stored, version
        body = await request.json() if request.can_read_body else {}
        if request.method == "GET" and stored:
            return web.json_response(stored)
        if request.method == "GET" or (request.method == "PUT" and not stored):
            return web.json_response({"code": 404, "message": "not found"}, status=404)
        is_late = body["endpoints"][0]["addresses"] == ["10.0.0.1"]
        if is_late:
            late.set()
            await over.wait()
        asked = body["metadata"].get("resourceVersion", str(version))
        if asked != str(version) or (request.method == "POST" and stored):
            return web.json_response({"code": 409, "message": "conflict"}, status=409)
        version += 1
        stored = {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}
        return web.json_response(stored)

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        await endpoint.point_service(api, SERVICE, "10.0.0.9", 8443)
        former = asyncio.create_task(endpoint.point_service(api, SERVICE, "10.0.0.1", 8443))
        await late.wait()
        await endpoint.point_service(api, SERVICE, "10.0.0.2", 8443)
        api.leadership.end()
        over.set()
        await asyncio.wait([former], timeout=0.3)
        former.cancel()
    assert stored["endpoints"][0]["addresses"] == ["10.0.0.2"]
