"""Whatever number or text others send or write has bounds on both sides, in the schema itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.crd import build_crd, structural_schema

Schema = Mapping[str, Any]
# NaN is a loss like any other; no status and no decision takes what is not finite.
FREE = {"Progress.metrics"}


def find_unbounded(schema: Schema, definitions: Schema, path: str) -> Iterator[str]:
    """The paths of numbers and texts that may be as large as one likes."""
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from find_unbounded(branch, definitions, path)
    if "$ref" in schema:
        yield from find_unbounded(definitions[schema["$ref"].rpartition("/")[2]], definitions, path)
    kind = schema.get("type")
    if "enum" in schema or "const" in schema or path in FREE:
        return
    if kind in ("integer", "number") and not (
        {"minimum", "exclusiveMinimum"} & schema.keys() and {"maximum", "exclusiveMaximum"} & schema.keys()
    ):
        yield path
    for name, inner in (schema.get("properties") or {}).items():
        yield from find_unbounded(inner, definitions, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from find_unbounded(schema[name], definitions, path)
    for inner in schema.get("prefixItems", ()):
        yield from find_unbounded(inner, definitions, path)


def find_long_texts(schema: Schema, definitions: Schema, path: str) -> Iterator[str]:
    """The paths of texts without a limit."""
    for branch in schema.get("anyOf", ()):
        yield from find_long_texts(branch, definitions, path)
    if "$ref" in schema:
        yield from find_long_texts(definitions[schema["$ref"].rpartition("/")[2]], definitions, path)
    if schema.get("type") == "string" and not {"maxLength", "enum", "const"} & schema.keys():
        yield path
    for name, inner in (schema.get("properties") or {}).items():
        yield from find_long_texts(inner, definitions, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from find_long_texts(schema[name], definitions, path)


@pytest.mark.parametrize("message", [wire.Hello, wire.State, wire.Progress, wire.Diagnosis], ids=lambda m: m.__name__)
def test_what_an_agent_says_has_bounds(message: type[wire.Hello]) -> None:
    schema = message.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    assert list(find_unbounded(schema, definitions, message.__name__)) == []
    assert list(find_long_texts(schema, definitions, message.__name__)) == []


def test_what_a_tenant_writes_has_bounds() -> None:
    assert list(find_unbounded(structural_schema(api.Spec), {}, "spec")) == []


def find_long_lists(schema: Schema, path: str) -> Iterator[str]:
    """The paths of lists without a limit, in a structural schema."""
    if schema.get("type") == "array":
        if "maxItems" not in schema:
            yield path
        yield from find_long_lists(schema["items"], path)
    for name, inner in (schema.get("properties") or {}).items():
        yield from find_long_lists(inner, f"{path}.{name}")


def test_what_a_status_holds_has_bounds() -> None:
    """Whoever may write statuses makes none that takes long to read, and the operator knows what it may write."""
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    reals = {path for path, kind in list_types(schema, "status") if kind == "number"}  # of 64 bits, whatever they are
    assert set(find_unbounded(schema, {}, "status")) == reals
    assert list(find_long_texts(schema, {}, "status")) == []
    assert list(find_long_lists(schema, "status")) == []


def list_types(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    yield path, schema.get("type", "")
    for name, inner in (schema.get("properties") or {}).items():
        yield from list_types(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from list_types(schema[name], path)


def list_limits(schema: Schema, path: str) -> Iterator[tuple[str, float]]:
    yield from ((path, schema[name]) for name in ("minimum", "maximum") if name in schema)
    for name, inner in (schema.get("properties") or {}).items():
        yield from list_limits(inner, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from list_limits(schema["items"], path)


def test_the_limits_of_numbers_are_exact_in_the_api_server() -> None:
    """It compares whole values with them as 64-bit integers: beyond, a limit would change its sign."""
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found = list(list_limits(schema, ""))
    assert len(found) > 100
    assert [one for one in found if abs(one[1]) > 2**53] == []
