"""Applies objects from YAML files: creates them, or replaces them if they exist.

Only the API server validates them: `kubectl` rejects fields that this server's version does not know, such as the CEL
rules of a CRD before 1.25, while the server itself drops them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from elasticjob_devcluster.api.kube import Kube, KubeError

Object = dict[str, Any]


def read_objects(paths: Iterable[Path]) -> Iterator[Object]:
    """The objects in YAML files; a directory means all of its `.yaml` files. Raises ValueError with the file."""
    for path in paths:
        for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
            try:
                documents = [d for d in yaml.safe_load_all(file.read_text()) if d is not None]
            except yaml.YAMLError as error:
                raise ValueError(f"{file}: is no YAML: {' '.join(str(error).split())}") from None
            for document in documents:
                if not isinstance(document, dict) or not {"apiVersion", "kind", "metadata"} <= document.keys():
                    raise ValueError(f"{file}: holds something that is no Kubernetes object")
                yield document


def apply_object(kube: Kube, wanted: Object, namespace: str) -> str:
    """Create or replace one object; return `kind/name created` or `kind/name replaced`."""
    root, plural, namespaced = find_resource(kube, wanted["apiVersion"], wanted["kind"])
    name = wanted["metadata"]["name"]
    space = f"/namespaces/{wanted['metadata'].get('namespace') or namespace}" if namespaced else ""
    path, title = f"{root}{space}/{plural}", f"{wanted['kind'].lower()}/{name}"
    try:
        kube.request("POST", path, wanted)
    except KubeError as error:
        if error.status != 409:
            raise
        present = kube.request("GET", f"{path}/{name}")
        metadata = {**wanted["metadata"], "resourceVersion": present["metadata"]["resourceVersion"]}
        kube.request("PUT", f"{path}/{name}", {**wanted, "metadata": metadata})
        return f"{title} replaced"
    return f"{title} created"


def find_resource(kube: Kube, api_version: str, kind: str) -> tuple[str, str, bool]:
    """(root path, plural, whether it is namespaced) of a kind. Raises ValueError if the server does not have it."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    found = (kube.get(root) or {}).get("resources") or ()
    for resource in found:
        if resource["kind"] == kind and "/" not in resource["name"]:
            return root, resource["name"], resource["namespaced"]
    raise ValueError(f"this server has no {kind} of {api_version}")
