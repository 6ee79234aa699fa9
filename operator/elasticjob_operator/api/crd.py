"""Generates the CustomResourceDefinition from the models in `api`.

pydantic's JSON schema is rewritten into a *structural* schema, as Kubernetes requires: references are inlined, optional
fields are absent, and unions are refused unless they are int-or-string. A schema that cannot be expressed raises
ValueError here, at build time, instead of failing at the API server. Defaults of the spec are left out: the models
apply them, so that the stored object is what the user wrote, and a default can change with the operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import yaml
from pydantic import BaseModel

from elasticjob_operator import api
from elasticjob_operator.api import names

_KEPT = (
    "type",
    "description",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
    "format",
)


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI v3 structural schema of a model. Raises ValueError if the model cannot be expressed as one."""
    schema = model.model_json_schema(by_alias=True)
    return _rewrite(schema, schema.get("$defs", {}), _rules(model))


def _rules(model: type[BaseModel]) -> dict[str, list[dict[str, str]]]:
    """CEL rules by model name, for the model and all models in the same package."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, value in inspect.getmembers(api, inspect.isclass):
        if issubclass(value, api.Model) and (value.CEL or value.CEL_OF_CHANGES):
            found[name] = [{"rule": r, "message": m} for r, m in (*value.CEL, *value.CEL_OF_CHANGES)]
    return found


def _rewrite(node: dict[str, Any], defs: dict[str, Any], rules: dict[str, list[dict[str, str]]]) -> dict[str, Any]:
    title = node.get("title", "")
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        target = {**defs[name], **{k: v for k, v in node.items() if k == "description"}}
        return _rewrite({**target, "title": name}, defs, rules)
    if "anyOf" in node:
        return _union(node, defs, rules)
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return {
            "type": "object",
            "description": node.get("description", ""),
            "x-kubernetes-preserve-unknown-fields": True,
        }
    result = {key: node[key] for key in _KEPT if key in node}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "const" in node:
        result["enum"] = [node["const"]]
    if "properties" in node:
        result["properties"] = {k: _rewrite(v, defs, rules) for k, v in node["properties"].items()}
        if node.get("required"):
            result["required"] = sorted(node["required"])
    if "items" in node:
        result["items"] = _rewrite(node["items"], defs, rules)
    extra = node.get("additionalProperties")
    if isinstance(extra, dict):
        result["additionalProperties"] = _rewrite(extra, defs, rules)
    if "type" not in result:
        raise ValueError(f"{title or node} cannot be expressed as a structural schema")
    if title in rules and result["type"] == "object":
        result["x-kubernetes-validations"] = rules[title]
    return result


def _union(node: dict[str, Any], defs: dict[str, Any], rules: dict[str, list[dict[str, str]]]) -> dict[str, Any]:
    branches = [b for b in node["anyOf"] if b.get("type") != "null"]
    if {b.get("type") for b in branches} == {"integer", "string"}:
        bounds: dict[str, Any] = {key: node[key] for key in ("pattern", "minimum", "maximum") if key in node}
        return {"x-kubernetes-int-or-string": True, "description": node.get("description", ""), **bounds}
    if len(branches) != 1:
        raise ValueError(f"a union cannot be expressed as a structural schema: {node}")
    outer = {k: v for k, v in node.items() if k in ("description", "minItems", "maxItems")}
    return _rewrite({**branches[0], **outer}, defs, rules)


# What a status may hold: more than any operator writes, and not so much that it takes long to read. The models have no
# such bounds: a status that somebody else has written is read as far as it can be.
_MOST_COUNT, _MOST_TEXT = 2**53, 64 * 1024
_MOST_ITEMS = 100_000  # pods
_LISTS = {
    "conditions": 64,
    "fields": 128,
    "metrics": 64,
    "checkpoints": 64,
    "saves": 64,
    "reports": 128,
    "speeds": 64,
    "lost": 128,
    "timeline": 128,
    "failures": 64,
    "stragglers": 64,
    "incidents": 64,
    "best": 64,
    "nodeFaults": 64,
    "preflight": 64,
}


def _bound(schema: dict[str, Any], name: str = "") -> dict[str, Any]:
    """A schema in which every whole number, text and list has bounds. Those that it has remain.

    A real number has 64 bits, and no bound of its own: old API servers overflow where they compare it with a whole one.
    """
    limits: dict[str, Any] = {}
    match schema.get("type"):
        case "integer":
            limits = {"minimum": -_MOST_COUNT, "maximum": _MOST_COUNT}
        case "string" if "enum" not in schema:
            limits = {"maxLength": _MOST_TEXT}
        case "array":
            limits = {"maxItems": _LISTS.get(name, _MOST_ITEMS)}
    bound = limits | schema
    if "properties" in bound:
        bound["properties"] = {key: _bound(inner, key) for key, inner in bound["properties"].items()}
    for part in ("items", "additionalProperties"):
        if isinstance(bound.get(part), dict):
            bound[part] = _bound(bound[part], name)
    return bound


def _column(name: str, path: str, kind: str = "integer", *, priority: int = 0, description: str = "") -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if description:
        column["description"] = description
    if priority:
        column["priority"] = priority
    return column


# What a template cannot say, because it is about one job.
_OF_ONE_JOB = ("templateRef", "replicas", "managedBy")
_OF_ONE_RUN = ("suspend", "managedBy")


def _schema_of_spec(rules: Iterable[tuple[str, str]]) -> dict[str, Any]:
    schema = structural_schema(api.Spec)
    del schema["required"]  # the pod template may be a job's or its template's: a rule of jobs says so
    return schema | _validations(rules)


def _validations(rules: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def _schema_of_template() -> dict[str, Any]:
    about_one = tuple(f"self.{name}" for name in _OF_ONE_JOB)
    schema = _schema_of_spec((r, m) for r, m in api.Spec.CEL if not any(field in r for field in about_one))
    for name in _OF_ONE_JOB:
        del schema["properties"][name]
    for name in _OF_ONE_RUN:
        del schema["properties"]["runPolicy"]["properties"][name]
    return schema


def _definition(
    called: dict[str, Any],
    description: str,
    parts: dict[str, Any],
    version: dict[str, Any],
    rules: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """A CustomResourceDefinition: its `names`, the schemas of its parts, what else its version has, and the rules of
    an object.
    """
    schema = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            **parts,
        },
        **(_validations(rules) if rules else {}),
    }
    known = {"name": names.VERSION, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{called['plural']}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": called,
            "versions": [{**known, **version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def build_template_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of templates as a plain object: a job's spec in which every field is optional."""
    return _definition(
        {
            "kind": names.TEMPLATE_KIND,
            "listKind": f"{names.TEMPLATE_KIND}List",
            "plural": names.TEMPLATE_PLURAL,
            "singular": names.TEMPLATE_KIND.lower(),
            "shortNames": [f"{names.SHORT_NAME}t"],
            "categories": ["training"],
        },
        "Fields that ElasticJobs take where they name this template and do not say otherwise.",
        {"spec": _schema_of_template()},
        {
            "additionalPrinterColumns": [
                _column("Min", ".spec.elasticPolicy.minReplicas"),
                _column("Max", ".spec.elasticPolicy.maxReplicas"),
                _column("Age", ".metadata.creationTimestamp", "date"),
            ],
        },
    )


def build_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of jobs as a plain object."""
    return _definition(
        {
            "kind": names.KIND,
            "listKind": f"{names.KIND}List",
            "plural": names.PLURAL,
            "singular": names.SINGULAR,
            "shortNames": [names.SHORT_NAME],
            "categories": ["all", "training"],
        },
        "A PyTorch training job that keeps training while its pods come and go.",
        {
            "spec": _schema_of_spec((*api.Spec.CEL, *api.Spec.CEL_OF_CHANGES)),
            # Tools such as kstatus take a job without a status for one that is all right.
            "status": {**_bound(structural_schema(api.Status)), "default": {"observedGeneration": -1}},
        },
        {
            "subresources": {
                "status": {},
                "scale": {
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector",
                },
            },
            "additionalPrinterColumns": [
                _column("Phase", ".status.phase", "string"),
                _column("World", ".status.rendezvous.worldSize", description="Pods in the world."),
                _column("Wanted", ".spec.replicas"),
                _column("Min", ".spec.elasticPolicy.minReplicas"),
                _column("Max", ".spec.elasticPolicy.maxReplicas"),
                _column("Restarts", ".status.restarts.total"),
                _column("Generation", ".status.rendezvous.generation", priority=1),
                _column("Progress", ".status.progress.percentage", priority=1),
                _column("Age", ".metadata.creationTimestamp", "date"),
            ],
        },
        api.Spec.CEL_OF_JOBS,
    )


def render_crds() -> dict[str, str]:
    """The CustomResourceDefinitions as YAML text by the plural of their kind, as committed in `crds/`."""
    header = "# Generated from operator/elasticjob_operator/api/ by `make generate`. Do not edit.\n"
    built = {names.PLURAL: build_crd(), names.TEMPLATE_PLURAL: build_template_crd()}
    return {
        plural: header + yaml.safe_dump(crd, sort_keys=False, width=110, allow_unicode=True)
        for plural, crd in built.items()
    }
