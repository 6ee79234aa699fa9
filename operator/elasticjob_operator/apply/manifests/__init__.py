"""An action of the plan → the object to send. Pure; what a user wrote in the template always wins over our defaults.

A worker pod is what its author could have created: nothing here adds privilege. We add environment, the projected
token (useless for anything but the hub), `/dev/shm` for data loaders and, where asked, the runtime.
"""

from elasticjob_operator.apply.manifests.children import RESOURCES, Resource, build_child, correct_child, resource_of
from elasticjob_operator.apply.manifests.common import Object, Settings, owner_reference
from elasticjob_operator.apply.manifests.events import build_event
from elasticjob_operator.apply.manifests.patches import merge_patch, status_patch
from elasticjob_operator.apply.manifests.pods import build_pod, environment, wants_runtime

__all__ = [
    "RESOURCES",
    "Object",
    "Resource",
    "Settings",
    "build_child",
    "build_event",
    "build_pod",
    "correct_child",
    "environment",
    "merge_patch",
    "owner_reference",
    "resource_of",
    "status_patch",
    "wants_runtime",
]
