"""Makes the hub's Service point to the leader only.

The Service has no selector; the leader writes its only EndpointSlice. An agent that reconnects finds the leader at
once, and the same write removes the former leader's address. Without a pod address (outside of a cluster), or if the
Service selects its pods, nothing is written: a replica that does not lead responds with 503.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from elasticjob_operator.api import names
from elasticjob_operator.kube.client import Api
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of

logger = logging.getLogger(__name__)

VERSIONS = ("discovery.k8s.io/v1", "discovery.k8s.io/v1beta1")  # the second: before Kubernetes 1.21
RETRY_SECONDS = 2.0


def is_ours_to_point(service: Mapping[str, Any], pod_address: str) -> bool:
    """Whether the operator manages this Service's endpoints."""
    return bool(pod_address) and not service["spec"].get("selector")


def build_slice(service: Mapping[str, Any], version: str, address: str, port: int) -> dict[str, Any]:
    """The EndpointSlice that points a Service to one address; deleted together with the Service."""
    metadata = service["metadata"]
    owner = {"apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": version,
        "kind": "EndpointSlice",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {
                "kubernetes.io/service-name": metadata["name"],
                "endpointslice.kubernetes.io/managed-by": names.LABEL_APP_VALUE,
            },
            "ownerReferences": [owner],
        },
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "hub", "port": port, "protocol": "TCP"}],
    }


async def point_service(api: Api, service: Mapping[str, Any], address: str, port: int) -> None:
    """Write the slice, overwriting any content that was there before; retry until it succeeds."""
    while True:
        for version in VERSIONS:
            try:
                await _write(api, build_slice(service, version, address, port))
                return
            except ApiError as error:
                last = error
                if error.status != 404:
                    break
        logger.warning("could not point the Service %s to this replica yet: %s", service["metadata"]["name"], last)
        await asyncio.sleep(RETRY_SECONDS)


async def _write(api: Api, body: dict[str, Any]) -> None:
    """Write over what is read now, and nothing later: a former leader's write may arrive after the next one's."""
    metadata = body["metadata"]
    path = path_of(body["apiVersion"], "endpointslices", metadata["namespace"])
    try:
        found = await api.request("GET", f"{path}/{metadata['name']}")
    except ApiError as error:
        if error.status != 404:
            raise
        await api.request("POST", path, body)
        return
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    await api.request("PUT", f"{path}/{metadata['name']}", {**body, "metadata": {**metadata, **version}})
