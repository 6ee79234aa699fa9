"""Every field of a schema with each of its extremes, alone or two at a time: a pure function of a schema and of dice.

A field that is added to the API is drawn from then on. What the API server refuses is harmless; what it takes, the
operator has to bear.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from elasticjob_operator.api import names, wire
from elasticjob_operator.integrations.kueue import names as kueue
from elasticjob_operator.model.own_size import LAST_APPLIED
from elasticjob_operator.model.topology import LABELS

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

TEXTS: tuple[Any, ...] = (
    *("", " ", "x" * 253, "x" * 60_000, "é\u202e\x1b[31m", "\x00", "٣", "１", "-1", "+1", " 1", "1_0", "1.5", "0x1"),
    *("1e3", "1e999999", "1e9999999", "-1e999999", "9" * 34, "9" * 5000, "NaN", "Infinity", "null", "../..", "$(X)"),
)
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 1.5, 1e-300, 1e300, 1e308, -1e308),
    *(2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30),
)
OTHERS: tuple[Any, ...] = (None, True, [], {}, [None], {"": ""})
DEEPEST: Any = json.loads("[" * 300 + "]" * 300)
LONGEST: tuple[Any, ...] = ([0] * 3_000, ["x"] * 3_000, [{}] * 3_000, {str(number): number for number in range(3_000)})


@dataclass(frozen=True, slots=True)
class Field:
    """A field and what its schema says of it."""

    path: Path
    schema: Schema

    def extremes(self) -> tuple[Any, ...]:
        """The values to try: the limits and what is just beyond them, what is longest and deepest, and other kinds."""
        kind, schema = self.schema.get("type"), self.schema
        low, high = schema.get("minimum"), schema.get("maximum")
        limits = [value for limit in (low, high) if limit is not None for value in (limit - 1, limit, limit + 1)]
        longest = schema.get("maxLength")
        limits += ["x" * n for n in (longest, longest + 1)] if longest and longest < 100_000 else []
        most = schema.get("maxItems")
        limits += [[1] * most, [1] * (most + 1)] if most else []
        if kind == "boolean":
            return (*OTHERS, "true", 1)
        own = (*NUMBERS, *TEXTS) if kind != "string" else (*TEXTS, *NUMBERS)
        return (*schema.get("enum", ()), *limits, *own, *OTHERS, *LONGEST, DEEPEST)


def list_fields(schema: Schema, definitions: Schema | None = None, path: Path = ()) -> Iterator[Field]:
    """The fields of an object, also those inside of others; of a list, those of its first item."""
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for branch in schema.get("anyOf", ()):
        if "$ref" in branch:
            yield from list_fields(branch, definitions, path)
    if path:
        yield Field(path, schema)
    for name, inner in (schema.get("properties") or {}).items():
        yield from list_fields(inner, definitions, (*path, name))
    if isinstance(schema.get("items"), Mapping):
        yield from list_fields(schema["items"], definitions, (*path, 0))


def put(whole: Any, path: Path, value: Any) -> Any:
    """A copy with this value at this path, whatever was on the way."""
    if not path:
        return value
    head, *rest = path
    if isinstance(head, int):
        first = whole[0] if isinstance(whole, list) and whole else None
        return [put(first, tuple(rest), value), *(whole[1:] if isinstance(whole, list) else ())]
    known = whole if isinstance(whole, dict) else {}
    return {**known, head: put(known.get(head), tuple(rest), value)}


def each(whole: Any, fields: list[Field]) -> Iterator[tuple[str, Any]]:
    """Every field with every extreme, alone: (what it is, the object)."""
    for field in fields:
        for value in field.extremes():
            yield f"{spell(field.path)}={value!r:.40}", put(whole, field.path, value)


def draw(dice: random.Random, whole: Any, fields: list[Field], count: int) -> tuple[str, Any]:
    """So many fields with an extreme each."""
    found, said = copy.copy(whole), []
    for field in dice.sample(fields, count):
        value = dice.choice(field.extremes())
        found = put(found, field.path, value)
        said.append(f"{spell(field.path)}={value!r:.40}")
    return " ".join(said), found


def spell(path: Path) -> str:
    return ".".join(str(part) for part in path)


# What the operator reads of a pod template, which has no schema of its own in the API.
_TEXT, _COUNT = {"type": "string"}, {"type": "integer"}
_RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "example.com/x")
_OF_CONTAINERS = ("name", "image", "command", "args", "env", "ports")
_OF_PODS = ("schedulerName", "nodeSelector", "affinity", "tolerations", "hostNetwork", "restartPolicy", "volumes")
_REQUIRED, _PREFERRED = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))
_OF_AFFINITIES: tuple[Path, ...] = (
    (),
    (_REQUIRED,),
    (_REQUIRED, "nodeSelectorTerms"),
    (_REQUIRED, "nodeSelectorTerms", 0),
    (_REQUIRED, "nodeSelectorTerms", 0, "matchExpressions"),
    (_PREFERRED,),
)
_PATHS: tuple[Path, ...] = (
    *(("spec", "containers", 0, "resources", kind, name) for kind in ("limits", "requests") for name in _RESOURCES),
    *(("spec", "containers", 0, name) for name in _OF_CONTAINERS),
    *(("spec", name) for name in (*_OF_PODS, "priorityClassName", "initContainers")),
    *(("spec", "containers", 0, "env", 0, name) for name in ("name", "value")),
    *(("spec", "containers", 0, "volumeMounts", 0, name) for name in ("name", "mountPath")),
    *(("spec", "affinity", "nodeAffinity", *path) for path in _OF_AFFINITIES),
    *(("spec", *path) for path in (("overhead",), ("overhead", "nvidia.com/gpu"), ("resources",))),
    *(("spec", "resources", *path) for path in (("limits",), ("requests",), ("requests", "nvidia.com/gpu"))),
    *(("metadata", name) for name in ("labels", "annotations")),
)
TEMPLATE: tuple[Field, ...] = (
    *(Field(("template", *path), _TEXT) for path in _PATHS),
    Field(("template", "spec", "terminationGracePeriodSeconds"), _COUNT),
)

# What is read of the metadata of any object: a name that is added to these modules is drawn from then on.
_NAMED = ("ANNOTATION_", "LABEL_", "TAINT_", "PREBUILT")
METADATA: tuple[str, ...] = tuple(
    sorted(
        {text for module in (names, kueue) for name, text in vars(module).items() if name.startswith(_NAMED)}
        - {names.LABEL_APP_VALUE}
        | {names.LABEL_APP, LAST_APPLIED, *LABELS}
    )
)


def draw_metadata(dice: random.Random, count: int) -> dict[str, str]:
    """So many of the annotations or labels that the operator reads, with extremes."""
    return {name: str(dice.choice((*TEXTS, *NUMBERS)))[:100_000] for name in dice.sample(METADATA, count)}


# The messages of an agent, each with an example to which extremes are put.
_STORE = {"address": "10.0.0.1", "port": 1}
_FAILURE = {"generation": 1, "rank": 0, "exitCode": 1, "message": "m"}
_STATE = {"phase": "ready", "generation": 1, "store": _STORE, "failure": _FAILURE}
_EXAMPLES: tuple[tuple[type[BaseModel], dict[str, Any]], ...] = (
    (wire.State, {"v": 1, "type": "state", "state": _STATE}),
    (wire.Hello, {"v": 1, "type": "hello", "agent": "a", "state": _STATE}),
    (wire.Progress, {"v": 1, "type": "progress", "generation": 1, "step": 1, "totalSteps": 9}),
    (wire.Diagnosis, {"v": 1, "type": "diagnosis"}),
)
MESSAGES: tuple[tuple[str, list[Field], dict[str, Any]], ...] = tuple(
    (example["type"], list(list_fields(model.model_json_schema(by_alias=True))), example)
    for model, example in _EXAMPLES
)
