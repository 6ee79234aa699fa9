"""The generated CustomResourceDefinition follows the rules of structural schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from elasticjob_operator import api
from elasticjob_operator.api import crd

CRD = crd.build_crd()
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in (schema.get("properties") or {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def test_every_node_has_one_type() -> None:
    for path, node in nodes(SCHEMA):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path


def test_nothing_a_structural_schema_forbids() -> None:
    forbidden = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title", "default", "nullable"}
    for path, node in nodes(SCHEMA):
        allowed = {"default"} if path == ".status" else set()  # of a job that nobody has looked at; see below
        assert not (forbidden - allowed) & set(node), path
        assert not isinstance(node.get("additionalProperties"), bool), path


def test_a_job_that_nobody_has_looked_at_is_not_taken_for_one_that_is_all_right() -> None:
    assert SCHEMA["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_every_spec_field_is_described() -> None:
    bare = [
        p for p, n in nodes(SCHEMA["properties"]["spec"]) if p and not p.endswith("[]") and not n.get("description")
    ]
    assert bare == []


def test_only_a_rule_requires_the_pod_template() -> None:
    assert SCHEMA["required"] == ["spec"]
    assert "required" not in SCHEMA["properties"]["spec"]


def test_a_template_has_the_fields_of_a_job_but_those_of_one_job() -> None:
    version = crd.build_template_crd()["spec"]["versions"][0]
    assert "subresources" not in version
    job, template = (s["properties"]["spec"] for s in (SCHEMA, version["schema"]["openAPIV3Schema"]))
    assert job["properties"].keys() - template["properties"].keys() == {"templateRef", "replicas", "managedBy"}
    runs = (schema["properties"]["runPolicy"]["properties"].keys() for schema in (job, template))
    assert set.difference(*map(set, runs)) == {"suspend", "managedBy"}
    assert "required" not in template
    for path, node in nodes(template):
        for rule in node.get("x-kubernetes-validations") or ():
            assert "oldSelf" not in rule["rule"], f"{path}: a template may change"


def test_scale_and_status_are_subresources() -> None:
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert VERSION["subresources"]["status"] == {}


def test_every_rule_of_the_models_is_printed() -> None:
    printed = {r["message"] for _, n in nodes(SCHEMA) for r in n.get("x-kubernetes-validations") or ()}
    declared = {
        message
        for value in vars(api).values()
        if isinstance(value, type) and issubclass(value, api.Model)
        for _, message in (*value.CEL, *value.CEL_OF_CHANGES, *value.CEL_OF_JOBS)
    }
    assert printed == declared


def test_a_union_is_refused() -> None:
    class Bad(BaseModel):
        value: list[int] | str

    with pytest.raises(ValueError, match="a union cannot be expressed"):
        crd.structural_schema(Bad)


def test_the_text_is_the_object() -> None:
    texts = crd.render_crds()
    assert yaml.safe_load(texts["elasticjobs"]) == CRD
    assert yaml.safe_load(texts["elasticjobtemplates"]) == crd.build_template_crd()


def test_every_bound_is_a_number_that_api_servers_can_compare_whole_numbers_with() -> None:
    """Some compare a whole number, such as 90, with the bound as an integer of 64 bits, and let it overflow."""
    for path, node in nodes(SCHEMA):
        for bound in ("minimum", "maximum"):
            assert abs(node.get(bound, 0)) < 2**63, (path, bound)
