"""Cordon, taint and drain through the API, like `kubectl`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from elasticjob_devcluster.api.kube import MERGE, Kube, KubeError

RETRY_SECONDS: Final = 0.5


class DrainTimeout(Exception):  # noqa: N818 - says what happened
    """Some pods could not be evicted in time, most often because a PodDisruptionBudget forbids it."""


def set_taint(kube: Kube, node: str, taint: Mapping[str, str], *, remove: bool = False) -> None:
    """Add, replace or remove one taint; retries conflicts with other writers."""
    while True:
        current = kube.request("GET", f"/api/v1/nodes/{node}")
        others = [
            t for t in current["spec"].get("taints") or () if (t["key"], t["effect"]) != (taint["key"], taint["effect"])
        ]
        wanted = others if remove else [*others, dict(taint)]
        body = {
            "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
            "spec": {"taints": wanted or None},
        }
        try:
            kube.request("PATCH", f"/api/v1/nodes/{node}", body, content_type=MERGE)
            return
        except KubeError as error:
            if error.status != 409:
                raise


def eviction_version(kube: Kube) -> str:
    """`policy/v1` if the server supports it for evictions, otherwise `policy/v1beta1`."""
    resources = kube.request("GET", "/api/v1")["resources"]
    subresource: Mapping[str, Any] = next((r for r in resources if r["name"] == "pods/eviction"), {})
    return f"policy/{subresource.get('version', 'v1beta1')}"


def should_evict(pod: Mapping[str, Any]) -> bool:
    """False for pods that have ended, and for those that a DaemonSet or the node itself would restart at once."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    metadata = pod["metadata"]
    if "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}):
        return False
    return not any(o.get("kind") == "DaemonSet" and o.get("controller") for o in metadata.get("ownerReferences") or ())


def drain(kube: Kube, node: str, *, timeout: float) -> None:
    """Evict every pod of the node and wait until they are deleted. Raises DrainTimeout; `timeout` is in seconds."""
    version, deadline = eviction_version(kube), time.monotonic() + timeout
    refusals: dict[str, str] = {}
    while True:
        pods = kube.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
        left = [pod for pod in pods if should_evict(pod)]
        if not left:
            return
        for pod in left:
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            if not pod["metadata"].get("deletionTimestamp"):
                refusals[name] = _evict(kube, pod, version)
        if time.monotonic() > deadline:
            names = {f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in left}
            details = "; ".join(f"{n}: {refusals.get(n) or 'still terminating'}" for n in sorted(names))
            raise DrainTimeout(f"node {node} is not drained after {timeout:.0f} s: {details}")
        time.sleep(RETRY_SECONDS if any(refusals.values()) else 0.1)


def _evict(kube: Kube, pod: Mapping[str, Any], version: str) -> str:
    """Request one eviction; return why it was refused, or ""."""
    metadata = pod["metadata"]
    body = {
        "apiVersion": version,
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
    }
    try:
        kube.request("POST", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction", body)
    except KubeError as error:
        if error.status == 429:
            return str(error)
        if error.status not in (404, 409):
            raise
    return ""
