"""Limits of depth and size for JSON values, checked before any recursive parsing. Pure.

An API server stores objects of 1.5 MB with ten thousand nested levels, on which a recursive parser would crash. Depth,
number of values and bytes are therefore measured iteratively, and the error message names the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MOST_DEPTH = 64  # the deepest field of a pod template has a depth of about 15
MOST_VALUES = 20_000
MOST_SPEC_BYTES = 64 * 1024  # of the spec without its template
MOST_TEMPLATE_BYTES = 16 * 1024  # of an ElasticJobTemplate, which the status of each of its jobs holds


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator's administrator allows one job to request.

    5,000 pods take about 70 MB in the operator, and their list of members about 1 MB of the status, of the 1.5 MB that
    the API server stores per object. The template is copied for each pod that is being created.
    """

    replicas: int = 5_000
    template_bytes: int = 256 * 1024
    weight: int = 1  # of a job that shares a pool: what more than that would have, others lack


@dataclass(frozen=True, slots=True)
class Size:
    """Of a JSON value: depth, number of values, and approximate bytes as compact JSON."""

    depth: int
    values: int
    bytes: int


def measure(value: Any, most_values: int = MOST_VALUES, most_bytes: int | None = None) -> Size:
    """Measure a value level by level. Stops at `most_values` values or `most_bytes`; other numbers are then too small.

    The function is iterative, and terminates for a value that contains itself.
    """
    depth = values = size = 0
    level = [value]
    while level:
        values += len(level)
        texts = [one for one in level if isinstance(one, str)]
        containers = [one for one in level if isinstance(one, (dict, list))]
        size += 4 * (len(level) - len(texts) - len(containers))
        level = []
        for one in containers:
            size += 2 + len(one)
            if isinstance(one, dict):
                size += len(one)
                texts.extend(map(str, one))
                level.extend(one.values())
            else:
                level.extend(one)
            if values + len(level) > most_values:  # with YAML aliases, one list may occur a thousand times
                return Size(depth, values + len(level), size)
        if most_bytes is not None and size + sum(map(len, texts)) > most_bytes:  # one text a thousand times, likewise
            return Size(depth, values, size + sum(map(len, texts)))
        size += 2 * len(texts) + len("".join(texts).encode(errors="replace"))
        depth += bool(containers)
    return Size(depth, values, size)


def is_too_deep(value: object) -> bool:
    """Whether a value is nested deeper than MOST_DEPTH levels. It must come from JSON text, where nothing is shared."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        containers = [one for one in level if isinstance(one, (dict, list))]
        if not containers:
            return False
        level = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def find_excess(value: Any, most_bytes: int, remedy: str) -> str:
    """The first exceeded limit as a message with the remedy; empty if the value is within all limits."""
    size = measure(value)
    if size.values > MOST_VALUES:
        return f"has more than {MOST_VALUES} values: remove what is not needed"
    if size.depth > MOST_DEPTH:
        return f"is nested {size.depth} levels deep; the limit is {MOST_DEPTH}: flatten it"
    if size.bytes > most_bytes:
        return f"has {size.bytes} bytes; the limit is {most_bytes}: {remedy}"
    return ""
