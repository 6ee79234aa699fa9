"""JSON merge patches (RFC 7396). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_operator import api
from elasticjob_operator.apply.manifests.common import Object
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.policy import Resize


def status_patch(job: Job, status: api.Status, keep: Sequence[str] = ()) -> Object:
    """The merge patch to this status. Fields in `keep` are not changed."""
    patch = merge_patch(job.status_raw, status.dump())
    return {name: value for name, value in patch.items() if name not in keep}


def build_resize(resize: Resize) -> Object:
    """The strategic merge patch that gives the containers of this very pod their CPU and memory."""
    found: dict[str, Object] = {}
    for container, kind, resource, amount in resize.sizes:
        found.setdefault(container, {}).setdefault(kind, {})[resource] = amount
    containers = [{"name": name, "resources": resources} for name, resources in found.items()]
    return {"metadata": {"uid": resize.uid}, "spec": {"containers": containers}}


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any], *, is_whole: bool = True) -> Object:
    """The JSON merge patch (RFC 7396) from one object to another: absent keys become null, unless `after` is a part."""
    patch: Object = dict.fromkeys(before.keys() - after.keys()) if is_whole else {}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, Mapping):
            inner = merge_patch(old, value, is_whole=is_whole)
            if inner:
                patch[key] = inner
        elif value != old:
            patch[key] = value
    return patch
