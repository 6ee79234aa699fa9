"""Reads and writes the fields of JSON messages."""

from __future__ import annotations

from typing import Any


class WireError(ValueError):
    """The peer sent a message that this version cannot parse."""


def drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def read_text(value: dict[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise WireError(f"{key} is no text")
    return found


def read_count(value: dict[str, Any], key: str, default: int | None = None) -> int:
    found = value.get(key, default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise WireError(f"{key} is no count")
    return found


def read_number(value: dict[str, Any], key: str, default: float | None = None) -> float:
    found = value.get(key, default)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < float("inf"):
        raise WireError(f"{key} is no number")
    return float(found)
