"""A dashboard in this process, and an API server that is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller import client_fixture as given
from dashboard.fake_api import FakeApi, served
from elasticjob_operator.client import Client
from elasticjob_operator.dashboard.server import Dashboard


def job(name: str = "digits", namespace: str = "default", **changes: Any) -> dict[str, Any]:
    """A job that trains, as the API server returns it; `changes` are fields of the status."""
    status = given.running_status() | changes
    for member in status["rendezvous"].get("members", ()):
        member["pod"] = member["pod"].replace("digits", name)
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**given.manifest(name), "metadata": metadata, "status": status}


def pod(owner: str, index: int, namespace: str = "default", node: str = "node-0") -> dict[str, Any]:
    raw = given.pod_object(owner, index, "true")
    raw["metadata"] |= {"namespace": namespace, "uid": f"u{index}"}
    raw["spec"]["nodeName"] = node
    state = {"name": "worker", "state": {"running": {}}}
    return {**raw, "status": {"phase": "Running", "containerStatuses": [state]}}


@pytest.fixture
def api() -> FakeApi:
    """It has one job, `digits`."""
    made = FakeApi()
    made.put(job())
    return made


@pytest.fixture
async def client(api: FakeApi, tmp_path: Path) -> AsyncIterator[Client]:
    async with served(api, tmp_path) as kubeconfig, Client(kubeconfig=kubeconfig) as client:
        yield client


@pytest.fixture
async def shown(client: Client) -> AsyncIterator[tuple[Dashboard, str]]:
    """A dashboard of all namespaces, and its address with the token."""
    dashboard = Dashboard(client, all_namespaces=True)
    async with dashboard.serve("127.0.0.1", 0) as address:
        yield dashboard, address
