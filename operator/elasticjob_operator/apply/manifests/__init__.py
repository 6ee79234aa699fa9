"""Builds the objects to send for an action of a plan. Pure; the user's template takes precedence over defaults.

A worker pod has no more privileges than its author could request. The operator adds environment variables, the
projected token (valid only for the hub), `/dev/shm` for data loaders and, on request, the runtime.
"""

from elasticjob_operator.apply.manifests.children import build_child, correct_child, resource_of, resource_of_kind
from elasticjob_operator.apply.manifests.common import Object, Settings, metadata, owner_reference
from elasticjob_operator.apply.manifests.events import build_event
from elasticjob_operator.apply.manifests.gangs import Resource
from elasticjob_operator.apply.manifests.patches import build_resize, merge_patch, status_patch
from elasticjob_operator.apply.manifests.pods import build_pod, environment, wants_runtime, without_shm

__all__ = [
    "Object",
    "Resource",
    "Settings",
    "build_child",
    "build_event",
    "build_pod",
    "build_resize",
    "correct_child",
    "environment",
    "merge_patch",
    "metadata",
    "owner_reference",
    "resource_of",
    "resource_of_kind",
    "status_patch",
    "wants_runtime",
    "without_shm",
]
