"""A dashboard in this process, and an API server that is none."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

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


class Loopback(AbstractResolver):
    """As browsers resolve every name below `localhost`, without asking anybody."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)
        return [found] if host.endswith("localhost") else []

    async def close(self) -> None:
        """It has nothing to close."""


@contextlib.asynccontextmanager
async def visiting() -> AsyncIterator[aiohttp.ClientSession]:
    """A visitor that keeps cookies and finds the names of this machine, as a browser does."""
    connector, jar = aiohttp.TCPConnector(resolver=Loopback()), aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session:
        yield session


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
