"""The catalogue of what differs between clusters: which API version each kind is served in. Pure.

Every row has a probe (the groups that the API server lists) and a fall-back (the version that is tried where nothing is
known, so that the API server's answer says what is missing). There is no other check of a Kubernetes version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# Kind → the versions that this operator writes, the best one first.
VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "PodDisruptionBudget": ("policy/v1", "policy/v1beta1"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "autoscaling/v2beta2"),
}


@dataclass(frozen=True, slots=True)
class Served:
    """The group versions that a cluster serves; none: nothing is known yet."""

    group_versions: frozenset[str] = frozenset()

    def has(self, kind: str) -> bool:
        return any(version in self.group_versions for version in VERSIONS[kind])

    def list_versions(self, group: str) -> list[str]:
        """The versions of this group, without its name."""
        return sorted(v.removeprefix(f"{group}/") for v in self.group_versions if v.startswith(f"{group}/"))

    def version_of(self, kind: str) -> str:
        """The version to use for this kind."""
        versions = VERSIONS[kind]
        return next((version for version in versions if version in self.group_versions), versions[0])


def read_groups(groups: Mapping[str, Any]) -> Served:
    """What `/apis` lists."""
    return Served(frozenset(v["groupVersion"] for g in groups.get("groups") or () for v in g["versions"]))
