"""A request to the API server as a value, and the paths of resources. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
# For responses of which only the metadata is new: less to write for the server and less to parse for us.
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

Query = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """What to send, and how error messages describe it."""

    method: str
    path: str
    what: str = ""
    query: Query = ()
    body: Mapping[str, Any] | None = None
    content_type: str = JSON
    accept: str = JSON

    @property
    def title(self) -> str:
        """The description in error messages: `what`, or else method and path."""
        return self.what or f"{self.method} {self.path}"


def api_root(group_version: str) -> str:
    return f"/api/{group_version}" if "/" not in group_version else f"/apis/{group_version}"


def path_of(group_version: str, plural: str, namespace: str = "", name: str = "", sub: str = "") -> str:
    """The path of a resource or an object. Namespace and name may be user input: they are quoted."""
    parts = [api_root(group_version)]
    if namespace:
        parts.append(f"namespaces/{quote(namespace, safe='')}")
    parts.append(plural)
    parts += [quote(p, safe="") for p in (name, sub) if p]
    return "/".join(parts)


def namespace_of(path: str) -> str:
    """The namespace of a request; "" for a cluster-wide one."""
    return path.partition("/namespaces/")[2].partition("/")[0]


@functools.lru_cache(256)  # each request is asked for it three times, and the pods of a job have one path
def resource_name(path: str) -> str:
    """The resource of a request, for metrics: `pods`, `elasticjobs/status`, …"""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return "/".join([parts[0], *parts[2:3]]) if parts else path
