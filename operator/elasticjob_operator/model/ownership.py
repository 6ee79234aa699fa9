"""Determines which job owns an object: by its controller reference, since anybody can copy labels. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticjob_operator import numerals, text
from elasticjob_operator.api import names
from elasticjob_operator.untyped import as_object

Raw = Mapping[str, Any]
POD = "Pod"
MOST_WRITERS = 100  # that are looked at
MOST_OWNERS = 64  # that are looked at: the operator's objects have one, and others may add some
MOST_KEEPERS = 3  # of an object that are named
LONGEST_NAME = 253  # of any object; also more than any UID has


@dataclass(frozen=True, slots=True)
class UnownedObject:
    """An object with the operator's label that no ElasticJob controls."""

    kind: str
    namespace: str
    name: str
    job: str  # the job in its labels
    why: str


@dataclass(frozen=True, slots=True)
class Dependent:
    """An object that only one job owns, as it was seen last."""

    kind: str
    name: str
    uid: str
    version: str  # its resourceVersion, which changes if the owner reference is removed
    is_going: bool = False  # it is being deleted


def owner_of(metadata: Raw) -> tuple[str, str]:
    """(name, UID) of the ElasticJob that controls this object; empty strings if none does, or none that can exist."""
    for reference in (metadata.get("ownerReferences") or ())[:MOST_OWNERS]:
        group = str(reference.get("apiVersion", "")).partition("/")[0]
        if reference.get("controller") and reference.get("kind") == names.KIND and group == names.GROUP:
            name, uid = str(reference.get("name", "")), str(reference.get("uid", ""))
            return (name, uid) if len(name) <= LONGEST_NAME and len(uid) <= LONGEST_NAME else ("", "")
    return "", ""


def is_shared(metadata: Raw) -> bool:
    """Whether it has another owner: then the garbage collector keeps it when its job is gone."""
    return len(metadata.get("ownerReferences") or ()) > 1


def find_writers(metadata: Raw, field: str) -> Iterator[str]:
    """The field managers that have this field of the spec among theirs; the one that wrote last comes last."""
    entries = metadata.get("managedFields")
    for entry in entries[:MOST_WRITERS] if isinstance(entries, list) else ():
        if f"f:{field}" in as_object(as_object(as_object(entry).get("fieldsV1")).get("f:spec")):
            manager = text.clean(str(entry.get("manager") or ""), 128)
            if manager:
                yield manager


def find_writer(metadata: Raw, field: str) -> str:
    """Who has set this field of the spec, other than the operator; "" if the API server does not know.

    It knows whoever changes an object later; what admission sets in a new one has no manager.
    """
    return next((one for one in find_writers(metadata, field) if one != names.FIELD_MANAGER), "")


def find_keepers(metadata: Raw) -> tuple[str, ...]:
    """The first finalizers of a deleted object that only they keep: its grace period is over, or it had none."""
    if metadata.get("deletionTimestamp") is None or metadata.get("deletionGracePeriodSeconds") != 0:
        return ()
    return tuple(str(finalizer)[:LONGEST_NAME] for finalizer in (metadata.get("finalizers") or ())[:MOST_KEEPERS])


def describe_keepers(keepers: Sequence[str], kind: str, also: str = "") -> str:
    """Who keeps a deleted object of this kind, and the remedy. `also`: what else is to be said of how it is kept."""
    finalizer, keep, them, those, are = (
        ("finalizer", "keeps", "it", "that", "is")
        if len(keepers) == 1
        else ("finalizers", "keep", "them", "those", "are")
    )
    return (
        f"the {finalizer} {', '.join(keepers)} {keep} it{also}: whoever set {them} has to remove {them}; if {those} "
        f"{are} gone for good, remove {them} from the {kind}'s metadata.finalizers"
    )


def why_no_worker(metadata: Raw) -> str:
    """Why a pod with the operator's label is not a worker; "" if it is one."""
    job, uid = owner_of(metadata)
    if not uid:
        return f"no {names.KIND} controls it"
    labels = metadata.get("labels") or {}
    if (labels.get(names.LABEL_JOB), labels.get(names.LABEL_JOB_UID)) != (names.label(job), uid):
        return f"its labels do not name the {names.KIND} that controls it"
    index = numerals.read_count(labels.get(names.LABEL_INDEX))
    if index is None or metadata.get("name") != names.pod_name(job, index):
        return "its name is not the one that the operator gives to its replica index"
    return ""
