"""The field names of a spec, and the advice for an unknown field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from elasticjob_operator.api.base import Model
from elasticjob_operator.api.spec import Spec

Path = tuple[str | int, ...]  # the path of a field below the spec
Fields = Mapping[str, "Fields | None"]  # the fields of an object; None if the operator does not define its content


def spell(root: str, path: Path) -> str:
    """A path as a user would write it: `spec.failurePolicy.rules[0].action`."""
    return root + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)


def list_fields(model: type[BaseModel]) -> Fields:
    found: dict[str, Fields | None] = {}
    for name, field in model.model_fields.items():
        inner = (field.annotation, *get_args(field.annotation))
        inner = (*inner, *(deep for one in inner for deep in get_args(one)))
        models = [one for one in inner if isinstance(one, type) and issubclass(one, Model)]
        found[field.alias or name] = list_fields(models[0]) if models else None
    return found


FIELDS: Fields = list_fields(Spec)


def find_unknown(raw: Mapping[str, Any], fields: Fields = FIELDS, path: Path = ()) -> list[Path]:
    """The paths of fields that this version does not know. Content that the models do not define is skipped."""
    found: list[Path] = []
    for name, value in raw.items():
        here = (*path, name)
        if name not in fields:
            found.append(here)
        elif (inner := fields[name]) is not None:
            items = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, item in items:
                if isinstance(item, Mapping):
                    found += find_unknown(item, inner, here if index is None else (*here, index))
    return found


def without(raw: Any, paths: Iterable[Path]) -> Any:
    """A copy of the value without these paths. Parts that are not on a path are shared."""
    by_head: dict[str | int, list[Path]] = {}
    for head, *rest in paths:
        by_head.setdefault(head, []).append(tuple(rest))
    if not by_head:
        return raw
    items = enumerate(raw) if isinstance(raw, list) else raw.items()
    kept = {k: without(v, by_head.get(k, ())) for k, v in items if () not in by_head.get(k, ())}
    return list(kept.values()) if isinstance(raw, list) else kept


def advise(path: Path) -> str:
    """Advice for an unknown field: the likely intended field, if there is one."""
    name = str(path[-1])
    fields: Fields | None = FIELDS
    for part in path[:-1]:
        if isinstance(part, str):
            fields = (fields or {}).get(part)
    close = difflib.get_close_matches(name[:64], fields or (), 1)
    meant = _find_field(name, FIELDS, ()) or ((*path[:-1], close[0]) if close else None)
    return f"did you mean {spell('spec', meant)}?" if meant else "check the spelling, or remove it"


def _find_field(name: str, fields: Fields, path: Path) -> Path | None:
    if name in fields:
        return (*path, name)
    deeper = (_find_field(name, inner, (*path, part)) for part, inner in fields.items() if inner)
    return next((found for found in deeper if found), None)
