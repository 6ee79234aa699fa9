"""Waits until something in the cluster is ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from elasticjob_devcluster.api.kube import Kube, KubeError

NOT_READY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def wait_until(condition: Callable[[], bool], timeout: float, what: str, *, poll: float = 0.05) -> None:
    """Poll until the condition holds. Raises TimeoutError, which names `what`. Times are in seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {timeout:.0f} s: {what}")
        time.sleep(poll)


def make_namespace(kube: Kube, name: str, timeout: float) -> None:
    """Create the namespace, and wait until the server accepts pods there."""
    kube.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}

    def takes_pods() -> bool:
        try:
            kube.request("POST", f"/api/v1/namespaces/{name}/pods?dryRun=All", probe)
        except KubeError as error:
            if error.status in (403, 500, 504):
                return False
            raise
        return True

    wait_until(takes_pods, timeout, f"namespace {name} takes pods")


def wait_for_nodes(kube: Kube, names: Sequence[str], timeout: float) -> list[str]:
    """Wait for the nodes; return those that are not ready in time."""
    missing = list(names)

    def ready() -> bool:
        missing[:] = [name for name in missing if not is_node_ready(kube, name)]
        return not missing

    try:
        wait_until(ready, timeout, "nodes are ready")
    except TimeoutError:
        return missing
    return []


def is_node_ready(kube: Kube, name: str) -> bool:
    node = kube.get(f"/api/v1/nodes/{name}") or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    taints = (node.get("spec") or {}).get("taints") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not any(t["key"] in NOT_READY_TAINTS for t in taints)
