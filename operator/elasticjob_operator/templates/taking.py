"""Whether a job takes a template, and what it then keeps of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import api, numerals
from elasticjob_operator.api import bounds, names
from elasticjob_operator.templates.merge import merge
from elasticjob_operator.untyped import as_object

MOST_FIELDS: Final = 64
SHORTEST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds between two looks for a template that is not there
# What a job with a template may leave out, so that what it says can be checked without the template.
_STAND_IN: Final[Mapping[str, Any]] = {
    "elasticPolicy": {"maxReplicas": 100_000},
    "template": {"spec": {"containers": [{"name": "worker"}]}},
}


@dataclass(frozen=True, slots=True)
class Awaited:
    """The template that a job waits for, and the spec of the job as it is written."""

    name: str
    spec: Mapping[str, Any]

    @property
    def manager(self) -> str:
        """The controller that manages the job; "" if none is named."""
        return str(self.spec.get("managedBy") or as_object(self.spec.get("runPolicy")).get("managedBy") or "")

    @property
    def is_ours(self) -> bool:
        return names.is_ours(self.manager)


@dataclass(frozen=True, slots=True)
class Found:
    """An ElasticJobTemplate."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job cannot take a template now: the reason of the condition, and its message."""

    reason: str
    message: str


def find_awaited(spec: object, status: api.Status) -> Awaited | None:
    """The template that a job has still to take. The spec is not nested too deep.

    A job that has started takes none any more: servers without CEL let its spec name one later.
    """
    name = as_object(as_object(spec).get("templateRef")).get("name")
    if not isinstance(spec, Mapping) or not isinstance(name, str):
        return None
    if status.template is not None or status.start_time is not None or status.finished:
        return None
    return Awaited(name, spec)


def read_template(raw: Mapping[str, Any]) -> Found | Refusal:
    """The template from an object of the API server, unless it is too large to be kept while a pass lasts."""
    metadata, spec = raw["metadata"], raw.get("spec")
    namespace, name = str(metadata["namespace"]), str(metadata["name"])
    excess = bounds.find_excess(spec, bounds.MOST_TEMPLATE_BYTES, "move large texts into a ConfigMap")
    if excess:
        return refuse(name, namespace, f"spec {excess}")
    return Found(
        namespace=namespace,
        name=name,
        uid=str(metadata.get("uid", "")),
        generation=numerals.read_count(metadata.get("generation")) or 0,
        spec=as_object(spec),
    )


def refuse(name: str, namespace: str, why: str) -> Refusal:
    """For a template that no job can take."""
    return Refusal("InvalidSpec", f"{_title(name, namespace)}: {why}")


def _title(name: str, namespace: str) -> str:
    return f"{names.TEMPLATE_KIND} {name} of namespace {namespace}"


def describe_missing(name: str, namespaces: Iterable[str], forbidden: Iterable[str] = ()) -> Refusal:
    """For a template that is in none of these namespaces, of which some may not be read."""
    message = (
        f"spec.templateRef: no {names.TEMPLATE_KIND} {name} in namespace {' or '.join(namespaces)}: create it; the "
        "operator looks again"
    )
    hidden = ", ".join(forbidden)
    if hidden:
        message += f". It may not read them in {hidden}: its role needs get {names.TEMPLATE_PLURAL}.{names.GROUP}"
    return Refusal("TemplateNotFound", message)


def take(awaited: Awaited, found: Found) -> api.TemplateStatus | Refusal:
    """What the job keeps of the template, if both together are a valid spec."""
    merged = merge(found.spec, awaited.spec)
    try:
        api.parse_spec(api.without(merged.spec, api.find_unknown(merged.spec)))
    except api.InvalidJobError as error:
        title = _title(found.name, found.namespace)
        return Refusal("InvalidSpec", f"together with {title}: {error}: correct the job or the template")
    return api.TemplateStatus(
        namespace=found.namespace,
        name=found.name,
        uid=found.uid,
        generation=found.generation,
        fields=list(merged.fields[:MOST_FIELDS]),
        spec=json.dumps(found.spec, separators=(",", ":")),
    )


def complete(spec: Any, status: api.Status) -> Any:
    """The spec of a job together with the template that it took, if it took one."""
    if status.template is None or not isinstance(spec, Mapping):
        return spec
    return merge(json.loads(status.template.spec), spec).spec


def check_written(spec: Any) -> None:
    """Check a spec before it is sent: without its template as far as that is possible. Raises InvalidJobError."""
    has_template = isinstance(spec, Mapping) and spec.get("templateRef") is not None
    api.parse_spec(merge(_STAND_IN, spec).spec if has_template else spec)


def find_pause(waited: float) -> float:
    """Seconds until the next look for a template, after waiting for so many seconds."""
    return min(LONGEST_PAUSE, max(SHORTEST_PAUSE, waited / 10))
