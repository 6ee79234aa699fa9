"""How big a JSON value may be before anything looks into it.

An API server stores objects of 1.5 MB that are nested ten thousand deep; a parser that calls itself would end with
them. So depth, number of values and bytes are measured first, in a loop, and the message names the limit. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_DEPTH = 64  # the deepest field of a pod template is some 15 deep
MOST_VALUES = 20_000
MOST_SPEC_BYTES = 64 * 1024  # of the spec beside its template


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator's administrator lets one job ask for.

    With 5,000 pods the operator needs some 70 MB for them, and the list of members in the status some 1 MB, where the
    API server stores no more than 1.5 MB an object. A template is copied for each of the pods that are being made.
    """

    replicas: int = 5_000
    template_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True)
class Size:
    """Of a JSON value: how deep, how many values, how many bytes as compact JSON (about)."""

    depth: int
    values: int
    bytes: int


def measure(value: Any, most_values: int = MOST_VALUES) -> Size:
    """Level by level, until there are more values than that: then the rest of the size means nothing.

    It never calls itself, and it ends for what contains itself.
    """
    depth = values = size = 0
    level = [value]
    while level:
        values += len(level)
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                size += _bytes(one)
            elif isinstance(one, Mapping):
                size += 2 + sum(_bytes(key) + 2 for key in one)
                below.extend(one.values())
            elif isinstance(one, list):
                size += 2 + len(one)
                below.extend(one)
            else:
                size += 4
            if values + len(below) > most_values:  # in YAML, one list may be meant a thousand times
                return Size(depth, values + len(below), size)
        depth += any(isinstance(one, (Mapping, list)) for one in level)
        level = below
    return Size(depth, values, size)


def _bytes(text: object) -> int:
    return len(str(text).encode(errors="replace")) + 2


def find_excess(value: Any, most_bytes: int, remedy: str) -> str:
    """What is too much about a value, with the limit and the remedy; empty where nothing is."""
    size = measure(value)
    if size.values > MOST_VALUES:
        return f"holds more than {MOST_VALUES} values: take out what is not needed"
    if size.depth > MOST_DEPTH:
        return f"is nested {size.depth} deep; at most {MOST_DEPTH} are read: make it flatter"
    if size.bytes > most_bytes:
        return f"takes {size.bytes} bytes; at most {most_bytes} are allowed: {remedy}"
    return ""
