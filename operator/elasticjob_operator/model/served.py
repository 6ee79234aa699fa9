"""The catalogue of what differs between clusters: which API version each kind is served in. Pure.

Every row has a probe (the versions that the API server lists, and the kinds of a version that has not always had this
one) and a fall-back (the version that is tried where nothing is known, so that the API server's answer says what is
missing). Nothing lists that pods can mount images: the version of Kubernetes says so, and decides nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from elasticjob_operator import numerals

# Kind → the versions that this operator writes, the best one first.
VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "PodDisruptionBudget": ("policy/v1", "policy/v1beta1"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "autoscaling/v2beta2"),
    "PodGroup": ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"),  # of the default scheduler
}


IMAGE_VOLUMES: Final = (1, 36)  # the first version of Kubernetes whose pods can mount images without a feature gate


@dataclass(frozen=True, slots=True)
class Served:
    """The group versions that a cluster serves; none: nothing is known yet."""

    group_versions: frozenset[str] = frozenset()
    version: tuple[int, int] = (0, 0)  # of Kubernetes; (0, 0): not known, or nobody asked

    def has(self, kind: str) -> bool:
        return any(version in self.group_versions for version in VERSIONS[kind])

    def list_versions(self, group: str) -> list[str]:
        """The versions of this group, without its name."""
        return sorted(v.removeprefix(f"{group}/") for v in self.group_versions if v.startswith(f"{group}/"))

    @property
    def has_image_volumes(self) -> bool:
        """Whether pods can mount images."""
        return self.version >= IMAGE_VOLUMES

    def version_of(self, kind: str) -> str:
        """The version to use for this kind."""
        versions = VERSIONS[kind]
        return next((version for version in versions if version in self.group_versions), versions[0])


def keep_listed(found: Served, version: str, listed: Mapping[str, Any], kind: str) -> Served:
    """Without this version, unless what `/apis/<version>` lists has the kind: old clusters have other kinds in it."""
    if any(resource.get("kind") == kind for resource in listed.get("resources") or ()):
        return found
    return replace(found, group_versions=found.group_versions - {version})


def read_groups(groups: Mapping[str, Any]) -> Served:
    """What `/apis` lists."""
    return Served(frozenset(v["groupVersion"] for g in groups.get("groups") or () for v in g["versions"]))


def read_version(told: Mapping[str, Any]) -> tuple[int, int]:
    """What `/version` tells; (0, 0) where it is no version. Some clouds write a minor version of "36+"."""
    found = (re.match(r"[0-9]{1,9}", str(told.get(key, ""))) for key in ("major", "minor"))
    major, minor = (numerals.read_count(match and match[0]) for match in found)
    return (0, 0) if major is None or minor is None else (major, minor)
