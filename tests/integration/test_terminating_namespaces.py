"""Namespaces that are deleted while jobs train in them, and that somebody's finalizers keep from being gone."""

from __future__ import annotations

import re
import secrets
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import MERGE, Jobs, OperatorProcess, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KEPT = {"metadata": {"finalizers": ["example.com/keep"]}}
FREED: dict[str, Any] = {"metadata": {"finalizers": None}}
QUIET_SECONDS = 20.0
MOST_REQUESTS = 40  # in these seconds, of four pods that are kept and of two jobs that try again, later and later


class Watched:
    """An operator for all namespaces, and the requests that it has sent."""

    def __init__(self, operator: OperatorProcess, port: int) -> None:
        self.operator = operator
        self._address = f"http://127.0.0.1:{port}/metrics"

    def count(self) -> dict[str, float]:
        """Requests by what the metric says of them, watches aside."""
        with urllib.request.urlopen(self._address, timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(r"^elasticjob_api_requests_total\{(.*)\} (\S+)$", text, re.MULTILINE)
        return {labels: float(value) for labels, value in found if "WATCH" not in labels}


@pytest.fixture(scope="module")
def watched(operator_factory: Callable[..., OperatorProcess]) -> Iterator[Watched]:
    port = free_port()
    operator = operator_factory(["--stable-seconds", "1", "--http-port", str(port)])
    yield Watched(operator, port)
    print(f"the operator said:\n{operator.log[-12000:]}")
    operator.stop()


@pytest.fixture
def doomed(cluster: Cluster) -> Iterator[str]:
    """A namespace of somebody else. What keeps it is taken away after the test."""
    name = f"doomed-{secrets.token_hex(4)}"
    cluster.make_namespace(name)
    yield name
    for kind in (f"/api/v1/namespaces/{name}/pods", f"/apis/elasticjob.dev/v1alpha1/namespaces/{name}/elasticjobs"):
        for item in cluster.kube.request("GET", kind)["items"]:
            cluster.kube.request("PATCH", f"{kind}/{item['metadata']['name']}", FREED, content_type=MERGE)


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {labels: value - before.get(labels, 0) for labels, value in after.items() if value > before.get(labels, 0)}


def test_a_namespace_that_is_kept_costs_nothing_and_delays_nobody(
    cluster: Cluster, watched: Watched, namespace: str, doomed: str
) -> None:
    kube, calm, theirs = cluster.kube, Jobs(cluster, namespace), Jobs(cluster, doomed)
    calm.create("calm", light_spec(replicas=1))
    for name in ("kept", "plain"):
        theirs.create(name, light_spec(replicas=2))
    for name in ("kept", "plain"):
        theirs.await_world(name, 2)
    calm.await_world("calm", 1)
    kube.request("PATCH", f"{theirs.path}/kept", KEPT, content_type=MERGE)
    pods = f"/api/v1/namespaces/{doomed}/pods"
    for pod in (*theirs.pods("kept"), *theirs.pods("plain")):
        kube.request("PATCH", f"{pods}/{pod['metadata']['name']}", KEPT, content_type=MERGE)
    before = {pod["metadata"]["uid"] for pod in kube.request("GET", pods)["items"]}

    kube.request("DELETE", f"/api/v1/namespaces/{doomed}")

    def is_held() -> bool:
        """The pods are going. Before 1.34 so are the jobs; since then, these are deleted after the pods."""
        found = kube.request("GET", f"/api/v1/namespaces/{doomed}")
        left = kube.request("GET", pods)["items"]
        return found["status"]["phase"] == "Terminating" and all(
            one["metadata"].get("deletionTimestamp") for one in left
        )

    wait_for(is_held, "only what is kept is left")
    calm.scale("calm", 2)
    calm.await_world("calm", 2, timeout=30)
    first = watched.count()
    end = time.monotonic() + QUIET_SECONDS
    wait_for(lambda: time.monotonic() > end, "some time goes by", timeout=3 * QUIET_SECONDS)
    requests = grown(first, watched.count())
    print(f"requests in {QUIET_SECONDS:.0f} s: {requests}")
    assert sum(requests.values()) <= MOST_REQUESTS, requests
    assert {pod["metadata"]["uid"] for pod in kube.request("GET", pods)["items"]} <= before, "no pod was made again"
    assert "this is a bug" not in watched.operator.log
