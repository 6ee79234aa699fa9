"""What is kept of a child object other than a pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob_operator.api import names
from elasticjob_operator.model import ownership


@dataclass(frozen=True, slots=True)
class ChildObject:
    owner: str  # UID of the job; "" if no job controls it
    digest: str  # digest of its input; "" if it was modified by someone else
    uid: str
    version: str  # resourceVersion
    sound: str  # its generation, or else its resourceVersion, when it last matched the wanted state
    is_shared: bool  # the job is not its only owner


def observe_child(metadata: Mapping[str, Any], known: ChildObject | None, *, is_sound: bool) -> ChildObject:
    """The record of a child object. `known`: the one until now. `is_sound`: it is known to match the wanted state."""
    version, uid = str(metadata.get("resourceVersion", "")), str(metadata.get("uid", ""))
    # metadata.generation counts changes of the spec; kinds without it change only together with their spec.
    mark = str(metadata.get("generation") or version)
    if is_sound or (known is None and metadata.get("generation") in (None, 1)):
        sound = mark
    else:
        sound = known.sound if known is not None and known.uid == uid else ""
    digest = str((metadata.get("annotations") or {}).get(names.ANNOTATION_DIGEST, ""))
    return ChildObject(
        owner=ownership.owner_of(metadata)[1],
        digest=digest if mark == sound else "",
        uid=uid,
        version=version,
        sound=sound,
        is_shared=ownership.is_shared(metadata),
    )
