"""Whose number `spec.replicas` is. Pure.

Where nobody writes one, the operator does: autoscalers and `kubectl scale` read it. Such a number is no wish of
anybody's. It gives way to a change of `elasticPolicy`, and is marked by an annotation that is written together with it.
A number is its user's if it is another one, if another writer has it among its fields, or if it is in the file that
`kubectl apply` sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import api, numerals
from elasticjob_operator.api import bounds, names
from elasticjob_operator.model.ownership import find_writers
from elasticjob_operator.untyped import as_object

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is looked at in the metadata of a job to tell whose number it is."""

    marks: tuple[int | None, ...]
    writers: frozenset[str]
    applied: int  # the hash of what `kubectl apply` sent, which may be large


def find_evidence(metadata: Mapping[str, Any]) -> Evidence:
    annotations = as_object(metadata.get("annotations"))
    applied = annotations.get(LAST_APPLIED)
    marks = tuple(_read_mark(annotations, mark) for mark in (names.ANNOTATION_DEFAULT, names.ANNOTATION_POOL))
    return Evidence(
        marks, frozenset(find_writers(metadata, "replicas")), hash(applied) if isinstance(applied, str) else 0
    )


def find_own(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> int | None:
    """The number in `spec.replicas` if it is the operator's, the pool's, or that of an autoscaler of the operator."""
    number = spec.get("replicas")
    if not isinstance(number, int):
        return None
    is_pooled = as_object(spec.get("scaling")).get("mode") == api.ScalingMode.GOODPUT
    if as_object(spec.get("elasticPolicy")).get("metrics") and not is_pooled:
        return number
    annotations = as_object(metadata.get("annotations"))
    # In the mode Manual, a number of the pool is what the job was to keep.
    marks = (names.ANNOTATION_DEFAULT, names.ANNOTATION_POOL) if is_pooled else (names.ANNOTATION_DEFAULT,)
    if all(_read_mark(annotations, mark) != number for mark in marks):
        return None
    return None if set(find_writers(metadata, "replicas")) - {names.FIELD_MANAGER} else number


def _read_mark(annotations: Mapping[str, Any], mark: str) -> int | None:
    return numerals.read_count(annotations.get(mark), 10**9)


def read_applied(annotations: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The spec of the file that `kubectl apply` sent; None if there is none, or it is too much to be read."""
    applied = annotations.get(LAST_APPLIED)
    # Counted before it is read: 250 kB of empty lists take 50 ms, at each version of a job.
    if not isinstance(applied, str) or sum(map(applied.count, ",[{")) > 2 * bounds.MOST_VALUES:
        return None
    try:
        spec = json.loads(applied)["spec"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # the annotation is kubectl's; another tool may have changed it
    return spec if isinstance(spec, dict) and not bounds.find_excess(spec, len(applied), "") else None


def is_in_file(metadata: Mapping[str, Any], number: int) -> bool:
    """Whether the number is in the file: `kubectl apply` sends only what differs, and so does not own what is equal."""
    applied = read_applied(as_object(metadata.get("annotations")))
    return applied is not None and applied.get("replicas") == number
