"""What is kept of a child object other than a pod. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.model import ownership

LONGEST_DIGEST: Final = 64  # ours are shorter; others may write anything there


@dataclass(frozen=True, slots=True)
class ChildObject:
    owner: str  # UID of the job; "" if no job controls it
    digest: str  # digest of its input; "" if it was modified by someone else
    uid: str
    version: str  # resourceVersion
    sound: str  # its generation, or else its resourceVersion, when it last matched the wanted state
    is_shared: bool  # the job is not its only owner


_NAMES: Final[Mapping[str, Callable[[str], str]]] = {
    "Service": names.service_name,
    "PodDisruptionBudget": names.disruption_budget_name,
    "NetworkPolicy": names.network_policy_name,
    "ConfigMap": names.ca_config_map_name,
    "PodGroup": names.pod_group_name,
    "HorizontalPodAutoscaler": names.autoscaler_name,
}


def why_no_child(kind: str, metadata: Mapping[str, Any]) -> str:
    """Why an object with the operator's label is not a job's child; "" if it is one. A job has one of each kind."""
    job, uid = ownership.owner_of(metadata)
    if not uid:
        return f"no {names.KIND} controls it"
    if metadata.get("name") != _NAMES[kind](job):
        return f"its name is not the one that the operator gives to a {kind}"
    return ""


def observe_child(metadata: Mapping[str, Any], known: ChildObject | None, *, is_sound: bool) -> ChildObject:
    """The record of a child object. `known`: the one until now. `is_sound`: it is known to match the wanted state."""
    version, uid = str(metadata.get("resourceVersion", "")), str(metadata.get("uid", ""))
    # metadata.generation counts changes of the spec; kinds without it change only together with their spec.
    mark = str(metadata.get("generation") or version)
    if is_sound or (known is None and metadata.get("generation") in (None, 1)):
        sound = mark
    else:
        sound = known.sound if known is not None and known.uid == uid else ""
    digest = str((metadata.get("annotations") or {}).get(names.ANNOTATION_DIGEST, ""))[:LONGEST_DIGEST]
    return ChildObject(
        owner=ownership.owner_of(metadata)[1],
        digest=digest if mark == sound else "",
        uid=uid,
        version=version,
        sound=sound,
        is_shared=ownership.is_shared(metadata),
    )
