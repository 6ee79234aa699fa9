"""The content of the API server's audit log for the tenants suite, and whose objects were deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replicas_fixture import READS, Audited

# What the operator may write although another has made it: its users' jobs, its Lease, its certificate.
SHARED = ("elasticjobs", "leases", "secrets")


def build_policy(namespace: str) -> dict[str, Any]:
    """An audit policy that keeps the log of an hour small: writes of users and of the operator, and its Lease."""
    leases = [{"group": "coordination.k8s.io", "resources": ["leases"]}]
    groups = [f"system:serviceaccounts:{namespace}", "system:masters"]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "RequestResponse", "resources": leases, "namespaces": [namespace]},  # reads as well
            {"level": "None", "verbs": list(READS)},
            {"level": "None", "users": ["system:apiserver", "devcluster-control-plane"]},
            {"level": "Metadata", "userGroups": groups},
            {"level": "None"},
        ],
    }


def find_foreign_deletions(requests: Iterable[Audited]) -> list[str]:
    """Objects that a replica deleted or changed although another client created them."""
    ours: dict[tuple[str, str, str], bool] = {}
    wrong = []
    for request in sorted(requests, key=lambda r: r.received):
        resource, _, subresource = request.resource.partition("/")
        target = (resource, request.namespace, request.name)
        if request.code >= 300 or resource in SHARED:
            continue
        if request.verb == "create" and not subresource:
            ours[target] = bool(request.replica)
        elif request.replica and request.verb not in (*READS, "create") and not ours.get(target, True):
            wrong.append(f"{request}, which was made by somebody else")
    return wrong
