"""The draft of a job that a converter fills in, and how it takes fields from the source.

A converter *takes* the fields that it supports. The fields left at the end have no counterpart and become warnings
automatically, so that a field added to a source's API later is never lost silently.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from elasticjob_operator.api import names

_TRANSIENT: Final = {
    "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences",
    "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers",
}  # fmt: skip
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class ConversionError(ValueError):
    """The document cannot become an ElasticJob; the message names the field."""


@dataclass(frozen=True)
class Warning:
    """A field of the source without a counterpart, or with another meaning, and what to do about it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True)
class Conversion:
    manifest: dict[str, Any]
    warnings: tuple[Warning, ...]


class Source:
    """A part of the source document. Every `take` removes the field, so that the rest can be reported."""

    def __init__(self, values: object, path: str, draft: Draft) -> None:
        if values is not None and not isinstance(values, dict):
            raise ConversionError(f"{path}: must be an object, not {values!r}")
        self.values: dict[str, Any] = copy.deepcopy(values or {})
        self.path = path
        self.draft = draft

    def take(self, key: str, default: Any = None) -> Any:
        return self.values.pop(key, default)

    def take_number(self, key: str) -> int | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConversionError(f"{self.path}.{key}: must be a whole number, not {value!r}")
        return value

    def take_text(self, key: str) -> str:
        """The text of a field; empty if it is not there."""
        value = self.take(key)
        if value is not None and not isinstance(value, str):
            raise ConversionError(f"{self.path}.{key}: must be a text, not {value!r}")
        return value or ""

    def take_parts(self, key: str) -> list[Source]:
        """The objects of a list."""
        values = self.take(key)
        if values is not None and not isinstance(values, list):
            raise ConversionError(f"{self.path}.{key}: must be a list, not {values!r}")
        return [Source(value, f"{self.path}.{key}[{i}]", self.draft) for i, value in enumerate(values or [])]

    def take_texts(self, key: str) -> list[str]:
        """The scalars of a list, as texts."""
        values = self.take(key)
        if values is not None and (not isinstance(values, list) or any(isinstance(v, dict | list) for v in values)):
            raise ConversionError(f"{self.path}.{key}: must be a list of texts, not {values!r}")
        return [str(value) for value in values or []]

    def part(self, key: str) -> Source:
        return Source(self.take(key), f"{self.path}.{key}", self.draft)

    def warn(self, key: str, message: str) -> None:
        self.draft.warn(f"{self.path}.{key}", message)

    def drop(self, reasons: Mapping[str, str]) -> None:
        """Drop fields without a counterpart, each with a message that names the alternative."""
        for key, message in reasons.items():
            if self.take(key) is not None:
                self.warn(key, message)

    def drop_other_roles(self, advice: str = "") -> None:
        """Drop the kinds of pods that were not taken yet."""
        for key in list(self.values):
            self.take(key)
            self.warn(key, f"has no counterpart: an ElasticJob has one kind of pod{advice}")

    def finish(self) -> None:
        for key in self.values:
            self.warn(key, "has no counterpart and was dropped")


@dataclass
class Draft:
    """The draft of the job. Values of None are omitted from the result."""

    document: dict[str, Any]
    spec: dict[str, Any] = field(default_factory=dict)
    elastic: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)
    rendezvous: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)  # of the trainer, from the command that started it
    found: list[Warning] = field(default_factory=list)

    @property
    def title(self) -> str:
        metadata = self.document.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        return f"{self.document.get('kind')} {name}".strip()

    @property
    def source(self) -> Source:
        spec = self.document.get("spec")
        if not isinstance(spec, dict):
            raise ConversionError(f"{self.title}: spec: is required")
        return Source(spec, "spec", self)

    def warn(self, field: str, message: str) -> None:
        self.found.append(Warning(field, message))

    def finish(self) -> Conversion:
        spec = self.spec | {
            "elasticPolicy": _present(self.elastic),
            "rendezvous": _present(self.rendezvous),
            "runPolicy": _present(self.run),
            "failurePolicy": {"rules": self.rules} if self.rules else None,
            "template": self.template,
        }
        order = (
            "replicas",
            "elasticPolicy",
            "nprocPerNode",
            "rendezvous",
            "managedBy",
            "runPolicy",
            "failurePolicy",
            "successPolicy",
        )
        ordered = {key: spec[key] for key in (*order, "template") if spec.get(key)}
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": self._metadata(),
            "spec": ordered,
        }
        return Conversion(manifest, tuple(dict.fromkeys(self.found)))

    def _metadata(self) -> dict[str, Any]:
        metadata = self.document.get("metadata")
        if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
            raise ConversionError(f"{self.document.get('kind')}: metadata.name: is required")
        kept = {k: copy.deepcopy(v) for k, v in metadata.items() if k not in _TRANSIENT}
        if "annotations" in kept:
            annotations = kept["annotations"] if isinstance(kept["annotations"], dict) else {}
            kept["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
            if not kept["annotations"]:
                del kept["annotations"]
        return kept


def as_name(text: object, default: str) -> str:
    """A name that Kubernetes takes, from a name of a source that allows more."""
    plain = re.sub(r"[^a-z0-9]+", "-", str(text or "").lower())[:50].strip("-")
    return plain or default


def _present(values: Mapping[str, Any]) -> dict[str, Any] | None:
    return {k: v for k, v in values.items() if v is not None} or None
