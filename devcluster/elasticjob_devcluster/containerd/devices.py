"""Devices that a container node declares without a device plugin: sufficient for the scheduler."""

from __future__ import annotations

from elasticjob_devcluster.api.kube import Kube
from elasticjob_devcluster.config import NodeSpec


def declared_devices(spec: NodeSpec) -> dict[str, str]:
    """The resources that a kubelet does not detect by itself."""
    return {key: value for key, value in spec.capacity().items() if "/" in key}


def advertise_devices(kube: Kube, spec: NodeSpec) -> None:
    changes = [
        {"op": "add", "path": f"/status/capacity/{key.replace('/', '~1')}", "value": value}
        for key, value in declared_devices(spec).items()
    ]
    if changes:
        path = f"/api/v1/nodes/{spec.name}/status"
        kube.raw("PATCH", path, changes, content_type="application/json-patch+json")
