"""Runs manifests made for images on nodes without images: folders are mounted in place of the image's content."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def localize(manifest: Mapping[str, Any], mounts: Mapping[str, Path]) -> dict[str, Any]:
    """The manifest with these folders at these mount paths, in every container of its pod template.

    If the manifest already mounts a volume there, it is replaced.
    """
    result = copy.deepcopy(dict(manifest))
    spec = result["spec"]["template"]["spec"]
    for number, (path, folder) in enumerate(mounts.items()):
        name = _volume_at(spec, path) or f"local-{number}"
        others = [v for v in spec.get("volumes", []) if v["name"] != name]
        spec["volumes"] = [*others, {"name": name, "hostPath": {"path": str(folder)}}]
        for container in spec["containers"]:
            present = container.setdefault("volumeMounts", [])
            if not any(m["mountPath"] == path for m in present):
                present.append({"name": name, "mountPath": path})
    return result


def _volume_at(spec: Mapping[str, Any], path: str) -> str | None:
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            if mount["mountPath"] == path:
                return str(mount["name"])
    return None
