"""Parts of JSON whose form nobody has checked: empty where something else is in their place. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def list_objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
