"""Fixtures for tests that need a cluster: one for the whole session, a new namespace for every test.

Mark such tests with `cluster`. They are skipped, with the reason, if the control plane's programs are not available.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator

import pytest

from elasticjob_devcluster import BinariesUnavailable, Cluster, KubeError, NodeSpec, Tuning

NODES = tuple(NodeSpec(f"node-{i}", gpus=2) for i in range(3))
GONE_SECONDS = 60.0


@pytest.fixture(scope="session")
def cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Starts clusters for one test; takes the arguments of `Cluster.start`. All end with the session."""
    clusters: list[Cluster] = []

    def start(**arguments: object) -> Cluster:
        try:
            cluster = Cluster.start(**arguments)  # type: ignore[arg-type]
        except BinariesUnavailable as error:
            if os.environ.get("ELASTICJOB_REQUIRE_CLUSTER"):  # where a skip would hide that nothing was tested
                raise
            pytest.skip(f"no cluster: {error}")
        clusters.append(cluster)
        return cluster

    yield start
    for cluster in clusters:
        cluster.stop()


@pytest.fixture(scope="session")
def cluster(cluster_factory: Callable[..., Cluster]) -> Cluster:
    """The session's cluster: three nodes with two GPUs each. A test that breaks a node repairs it."""
    return cluster_factory(nodes=NODES)


@pytest.fixture(scope="session")
def audited(cluster_factory: Callable[..., Cluster]) -> Cluster:
    """A cluster whose API server writes an audit log of every request, for the tests that read it."""
    return cluster_factory(nodes=[NodeSpec("node-0"), NodeSpec("node-1")], tuning=Tuning(audit=True))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A new namespace for the test, ready for pods; everything in it is deleted afterwards."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.make_namespace(name)
    yield name
    remove_namespace(cluster, name)


def remove_namespace(cluster: Cluster, name: str) -> None:
    """Delete the namespace and wait for its pods, so that the next test finds free nodes."""
    kube = cluster.kube
    with contextlib.suppress(KubeError):
        kube.request("DELETE", f"/api/v1/namespaces/{name}")
    deadline = time.monotonic() + GONE_SECONDS
    while pods := kube.request("GET", f"/api/v1/namespaces/{name}/pods")["items"]:
        for pod in pods:
            with contextlib.suppress(KubeError):
                path = f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}"
                kube.request("DELETE", path, {"gracePeriodSeconds": 0})
        if time.monotonic() > deadline:
            raise TimeoutError(f"pods of namespace {name} are still there after {GONE_SECONDS:.0f} s")
        time.sleep(0.05)
