"""The Node object and its Lease. Pure builders, and two loops that send them."""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import time
from typing import Any, Final

import aiohttp

from elasticjob_devcluster.node.client import MERGE, STRATEGIC, Api, ApiError
from elasticjob_devcluster.node.context import Settings
from elasticjob_devcluster.node.status import timestamp

LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STATUS_SECONDS: Final = 10.0


def build_node(settings: Settings, now: float) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": settings.name,
            "labels": {
                "kubernetes.io/hostname": settings.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "arm64" if platform.machine() == "aarch64" else "amd64",
                **settings.labels,
            },
        },
        "spec": {"taints": list(settings.taints)} if settings.taints else {},
        "status": build_node_status(settings, now),
    }


def build_node_status(settings: Settings, now: float) -> dict[str, Any]:
    quiet = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [_condition(kind, False, "NodeHasSufficientResources", now) for kind in quiet]
    conditions.append(_condition("Ready", True, "KubeletReady", now))
    return {
        "capacity": settings.capacity,
        "allocatable": settings.capacity,
        "addresses": [
            {"type": "InternalIP", "address": settings.address},
            {"type": "Hostname", "address": settings.name},
        ],
        "conditions": conditions,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": settings.port}},
        "nodeInfo": {
            "architecture": "arm64" if platform.machine() == "aarch64" else "amd64",
            "bootID": _boot_id(),
            "containerRuntimeVersion": "process://1",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": settings.version,
            "kubeletVersion": settings.version,
            "machineID": settings.name,
            "operatingSystem": "linux",
            "osImage": "devcluster (processes)",
            "systemUUID": settings.name,
        },
    }


def _condition(kind: str, holds: bool, reason: str, now: float) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": "the node agent posts ready status" if kind == "Ready" else "",
        "lastHeartbeatTime": timestamp(now),
    }


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return str(os.getpid())


def build_lease(settings: Settings, node_uid: str, now: float) -> dict[str, Any]:
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    owner = {"apiVersion": "v1", "kind": "Node", "name": settings.name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": settings.name, "ownerReferences": [owner]},
        "spec": {"holderIdentity": settings.name, "leaseDurationSeconds": 40, "renewTime": moment},
    }


async def register(api: Api, settings: Settings) -> str:
    """Create or update the Node object, retrying until the API server responds; return its UID."""
    delay = 0.02
    while True:
        try:
            return await _register_once(api, settings)
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(delay)
            delay = min(0.25, delay * 1.5)


async def _register_once(api: Api, settings: Settings) -> str:
    body = build_node(settings, time.time())
    try:
        node = await api.request("POST", "/api/v1/nodes", body)
    except ApiError as error:
        if error.status != 409:
            raise
        labels = {"metadata": {"labels": body["metadata"]["labels"]}}
        node = await api.request("PATCH", f"/api/v1/nodes/{settings.name}", labels, content_type=MERGE)
        await send_status(api, settings)
    return str(node["metadata"]["uid"])


async def send_status(api: Api, settings: Settings) -> None:
    wanted = build_node_status(settings, time.time())
    current = await api.request("GET", f"/api/v1/nodes/{settings.name}")
    before = {c["type"]: c for c in current["status"].get("conditions") or ()}
    for condition in wanted["conditions"]:
        old = before.get(condition["type"], {})
        same = old.get("status") == condition["status"]
        since = old.get("lastTransitionTime") if same else None
        condition["lastTransitionTime"] = since or condition["lastHeartbeatTime"]
    path = f"/api/v1/nodes/{settings.name}/status"
    await api.request("PATCH", path, {"status": wanted}, content_type=STRATEGIC)


async def heartbeat(api: Api, settings: Settings, node_uid: str) -> None:
    """Renew the Lease often and the status rarely, for ever. Failed requests do not end the loop."""
    last_status = time.monotonic()
    while True:
        try:
            await _renew(api, settings, node_uid)
            if time.monotonic() - last_status > STATUS_SECONDS or await _seen_unready(api, settings):
                await send_status(api, settings)
                last_status = time.monotonic()
        except ApiError as error:
            if error.status == 404:
                node_uid = await register(api, settings)
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        await asyncio.sleep(settings.lease_seconds)


async def _seen_unready(api: Api, settings: Settings) -> bool:
    """Whether the cluster considers this node lost meanwhile, so that it reports its status at once."""
    node = await api.request("GET", f"/api/v1/nodes/{settings.name}")
    conditions = node["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] != "True" for c in conditions)


async def _renew(api: Api, settings: Settings, node_uid: str) -> None:
    lease = build_lease(settings, node_uid, time.time())
    spec = {"spec": lease["spec"]}
    path = f"{LEASES}/{settings.name}"
    try:
        await api.request("PATCH", path, spec, content_type=MERGE, timeout=5)
    except ApiError as error:
        if error.status != 404:
            raise
        await api.request("POST", LEASES, lease, timeout=5)
